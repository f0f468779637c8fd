"""A training whose weights are no longer numbers stops, keeps its last good checkpoint and finishes no model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, TrainingArguments

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.train.callbacks import check_metrics, weights_are_finite

pytestmark = pytest.mark.slow

NEW_MODEL = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--vocab_size 300"
).split()
OPTIONS = (
    "--disable_tqdm true --use_cpu true --problem_type regression --max_steps 8 --per_device_train_batch_size 4"
).split()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "train.tsv"
    path.write_text("text\tlabel\n" + "".join(f"row {i} of some\t{i % 3}\n" for i in range(24)))
    return path


def train(data: Path, out: Path, *options: str) -> int:
    model = [] if "--model_name_or_path" in options else NEW_MODEL
    return main(["train", "classify", "--train_file", str(data), "--output_dir", str(out), *model, *OPTIONS, *options])


def explode(at_step: int, monkeypatch) -> None:
    """Make the weights infinite in one step of the training, as a learning rate that is too high does."""
    from roformer_lite.train.callbacks import TrainingClock

    tick = TrainingClock.on_step_end

    def on_step_end(self, args, state, control, model, **kwargs):
        tick(self, args, state, control, model=model, **kwargs)
        if state.global_step == at_step:
            with torch.no_grad():
                next(model.parameters()).mul_(torch.inf)

    monkeypatch.setattr(TrainingClock, "on_step_end", on_step_end)


@pytest.mark.parametrize(
    ("arguments", "last_step"),
    [
        ("logging_steps=3 save_strategy=no", 6),  # at the next log
        ("logging_steps=1000 save_strategy=steps save_steps=5", 5),  # before a checkpoint
        ("logging_strategy=no save_strategy=no", 6),  # at the end of the epoch
    ],
)
def test_it_stops_and_says_so(data, tmp_path, monkeypatch, capsys, arguments, last_step):
    explode(5, monkeypatch)
    assert train(data, tmp_path / "m", "--training_arguments", *arguments.split()) == 2
    message = capsys.readouterr().err
    assert f"the training diverged: the weights are no longer finite after step {last_step}" in message
    assert "--learning_rate (now 0.0005)" in message and "no model was saved" in message
    assert not (tmp_path / "m").exists()


def test_the_last_good_checkpoint_is_kept(data, tmp_path, monkeypatch, capsys):
    explode(5, monkeypatch)
    schedule = (
        "--training_arguments logging_steps=1000 save_strategy=steps save_steps=2 save_total_limit=1 --ema_decay 0.9"
    )
    assert train(data, tmp_path / "m", *schedule.split()) == 2
    good = tmp_path / "m.training" / "checkpoint-4"
    assert f"The last good checkpoint is {good}" in capsys.readouterr().err
    assert [path.name for path in good.parent.glob("checkpoint-*")] == ["checkpoint-4"]
    for name in ("model.safetensors", "averaged_weights.safetensors"):
        assert all(torch.isfinite(tensor).all() for tensor in load_file(good / name).values())
    assert weights_are_finite(AutoModelForSequenceClassification.from_pretrained(good))
    monkeypatch.undo()
    assert train(data, tmp_path / "next", "--model_name_or_path", str(good), "--learning_rate", "1e-4") == 0


def test_a_rate_that_is_far_too_high(data, tmp_path, capsys):
    options = "--learning_rate 1e38 --warmup_steps 0 --training_arguments max_grad_norm=0".split()
    assert train(data, tmp_path / "m", *options) == 2
    assert "the training diverged" in capsys.readouterr().err
    assert not (tmp_path / "m").exists() and not list(tmp_path.glob("m.training/checkpoint-*"))


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e39"])
def test_a_label_that_is_no_number(data, tmp_path, capsys, value):
    path = tmp_path / "train.tsv"
    path.write_text(data.read_text() + f"one more\t{value}\n")
    assert train(path, tmp_path / "m") == 2
    assert f"train.tsv:26: column 'label' must be a number for regression, not '{value}'" in capsys.readouterr().err
    path.with_suffix(".jsonl").write_text(json.dumps({"text": "a", "label": float("nan")}) + "\n")
    assert train(path.with_suffix(".jsonl"), tmp_path / "m") == 2
    assert "train.jsonl:1: column 'label' must be a number for regression, not nan" in capsys.readouterr().err


def test_metrics_that_are_no_numbers_are_not_published(tmp_path):
    args = TrainingArguments(str(tmp_path / "m.training"), use_cpu=True, report_to="none")
    with pytest.raises(InputError, match="on the test data, loss nan instead of a number. There is no checkpoint"):
        check_metrics({"loss": float("nan"), "accuracy": 1.0}, "test", args)
