"""A training ends with the best model, with averaged weights, or with none if it diverged."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import assert_close
from datasets import Dataset
from program import (
    COLOURS,
    TINY,
    assert_same_models,
    card_of,
    evaluated,
    predicted,
    read_json,
    refused,
    train,
    write_rows,
)
from safetensors.torch import load_file
from transformers import TrainerControl, TrainerState
from transformers.trainer_utils import get_last_checkpoint

from roformer_lite.errors import InputError
from roformer_lite.evaluation import evaluate
from roformer_lite.measuring.significance import Measured, mean
from roformer_lite.training.callbacks import (
    AVERAGED_WEIGHTS,
    TrainingClock,
    WeightAveraging,
)

OPTIONS = (
    f"classify {TINY} --join_baseline false --word_dropout 0 --baselines false --seed 3 "
    "--learning_rate 3e-3"
)
STOPPING = (
    "--num_train_epochs 30 --early_stopping_patience 3 --keep_checkpoints "
    "--training_arguments metric_for_best_model=loss save_total_limit=50"
)


def coloured(number: int, shift: int = 0) -> list[dict[str, str]]:
    """Rows whose label is the colour of the text, or another colour."""
    rows = []
    for place in range(number):
        colour = COLOURS[place % 4]
        rows.append({"text": f"{colour} {colour}", "label": COLOURS[(place + shift) % 4]})
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Data whose validation labels contradict the training labels, so longer training is worse."""
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "train.jsonl", coloured(48))
    write_rows(folder / "validation.jsonl", coloured(48, shift=1))
    return folder


def trained(data: Path, out: Path, options: str) -> dict:
    validation = data / "validation.jsonl"
    command = f"{OPTIONS} {options}"
    return train(command, data / "train.jsonl", out, validation_file=validation)


def assert_holds(model: Path, step: int) -> None:
    """The weights are the averaged ones of this step."""
    checkpoint = model.with_name(f"{model.name}.training") / f"checkpoint-{step}"
    saved = load_file(model / "model.safetensors")
    for name, tensor in load_file(checkpoint / AVERAGED_WEIGHTS).items():
        assert torch.equal(saved[name], tensor)


def test_the_best_model_is_kept_and_training_stops(data, tmp_path):
    training = trained(data, tmp_path / "model", STOPPING)["training"]
    losses = {}
    for folder in (tmp_path / "model.training").glob("checkpoint-*"):
        log = read_json(folder / "trainer_state.json")["log_history"]
        losses |= {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    chosen = training["chosen_step"]
    assert losses[chosen] == min(losses.values())
    steps = sorted(losses)
    assert training["steps"] == steps[-1] and len(steps) == steps.index(chosen) + 1 + 3 < 30
    assert f"step {chosen:,} is kept" in training["what_happened"]
    assert training["what_happened"] in card_of(tmp_path / "model")
    assert_holds(tmp_path / "model", chosen)


@pytest.mark.parametrize(
    ("given", "possible"),
    # An epoch has two steps.
    [
        ("eval_strategy=steps eval_steps=3", (3, 6)),
        ("save_strategy=steps save_steps=3", (2, 4, 6)),
        ("eval_strategy=steps eval_steps=1 save_strategy=steps save_steps=4", (1, 2, 3, 5, 6)),
    ],
)
def test_the_best_model_is_kept_even_between_checkpoints(data, tmp_path, given, possible):
    """Every evaluated model is saved, also between the checkpoints of another strategy, so that the
    card names the one that is there."""
    options = f"{STOPPING} {given} --num_train_epochs 3 --ema_decay 0.9"
    training = trained(data, tmp_path / "model", options)["training"]
    assert training["chosen_step"] in possible and "is kept" in training["what_happened"]
    assert_holds(tmp_path / "model", training["chosen_step"])


@pytest.mark.slow
def test_a_resumed_training_stops_at_the_same_step(data, tmp_path):
    """Patience counts the evaluations before the interruption, also after the directory was
    moved."""
    whole = trained(data, tmp_path / "whole", STOPPING)
    left = shutil.move(tmp_path / "whole.training", tmp_path / "again.training")
    for _ in range(2):
        shutil.rmtree(get_last_checkpoint(left))
    again = trained(data, tmp_path / "again", STOPPING)
    for name in ("steps", "what_happened", "arguments"):
        assert again["training"][name] == whole["training"][name]
    assert_same_models(tmp_path / "whole", tmp_path / "again")


@pytest.mark.parametrize("separator", ["", "+"])
def test_labels_of_rows_to_measure_only_are_missed(tmp_path, capsys, separator):
    """The accuracy in the results equals the accuracy of the labels that `predict` writes."""
    # A row with two of the new labels is one row.
    label = "pink+red+teal" if separator else "pink"
    new = [{"text": "pink pink", "label": label}, {"text": "teal teal", "label": "teal"}]
    data = write_rows(tmp_path / "train.jsonl", coloured(48))
    test = write_rows(tmp_path / "test.jsonl", [*coloured(29), *new])
    validation = write_rows(tmp_path / "validation.jsonl", [*coloured(8), *new])
    options = {"validation_file": validation, "test_file": test}
    if separator:
        options["label_separator"] = separator
    model = tmp_path / "m"
    command = f"{OPTIONS} --join_baseline true --num_train_epochs 2"
    results = train(command, data, model, **options)
    message = (
        "2 of the rows of the test data have 2 labels that the training data lack (pink, teal)"
    )
    assert message in capsys.readouterr().err
    never = {"precision": 0, "recall": 0, "f1": 0, "support": 1}
    assert results["by_label"]["test"]["pink"] == never
    for measured in (results["metrics"], *results["parts"].values()):
        assert measured["test"]["accuracy"] <= 29 / 31
    rows = predicted(model, test, prefix="predicted_")
    right = [row["label"] == row["predicted_label"] for row in rows]
    assert results["metrics"]["test"]["accuracy"] == pytest.approx(np.mean(right))
    again = evaluated(model, test)["metrics"]["test"]
    assert again == pytest.approx(results["metrics"]["test"], abs=1e-5)


def test_average_follows_the_formula_and_changes_places_exactly():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    model.tied = model.weight
    averaging = WeightAveraging(0.9)
    of_trainer = (SimpleNamespace(), TrainerState(), TrainerControl())
    averaging.on_train_begin(*of_trainer, model=model)
    expected = torch.zeros_like(model.weight)
    for step in range(100):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        averaging.on_step_end(*of_trainer, model=model)
        own = model.weight.detach().clone()
        decay = min(0.9, (1 + step) / (10 + step)) if step else 0
        expected = decay * expected + (1 - decay) * own
        with averaging.in_place_of(model):
            assert_close(model.weight, expected)
        assert torch.equal(model.weight, own) and (not step or not torch.equal(own, expected))


def test_average_with_dynamic_rotary_positions(tmp_path):
    """The frequencies change in batches longer than max_position_embeddings, and change back."""
    rows = coloured(16)
    for row in rows[8:]:
        row["text"] *= 9
    data = write_rows(tmp_path / "train.jsonl", rows)
    rope = '{"rope_type":"dynamic","factor":2.0,"rope_theta":10000.0}'
    command = (
        f"classify {TINY} rope_parameters={rope} max_position_embeddings=8 --ema_decay 0.9 "
        "--per_device_train_batch_size 2 --num_train_epochs 2 --word_dropout 0"
    )
    assert train(command, data, tmp_path / "model")["training"]["steps"] == 16


@pytest.fixture
def exploding(monkeypatch) -> None:
    """Make weights infinite in step 5 of every training, as too high a learning rate would."""

    def on_step_end(self, args, state, control, model, **kwargs):
        if state.global_step == 5:
            with torch.no_grad():
                next(model.parameters()).mul_(torch.inf)

    monkeypatch.setattr(TrainingClock, "on_step_end", on_step_end)


def diverged(data: Path, out: Path, options: str) -> str:
    """Run a training that diverges, and return its messages."""
    command = f"train {OPTIONS} --max_steps 8 --per_device_train_batch_size 8"
    command += f" --training_arguments logging_steps=1000 {options}"
    messages = refused(command, train_file=data / "train.jsonl", output_dir=out)
    assert not out.exists()
    return messages


@pytest.mark.parametrize(
    ("arguments", "last_step"),
    [
        # The divergence is noticed at the next log.
        ("logging_steps=3 save_strategy=no", 6),
        # It is noticed before a checkpoint is written.
        ("save_strategy=steps save_steps=5", 5),
        # It is noticed at the end of the epoch.
        ("save_strategy=no", 6),
    ],
)
def test_a_training_that_diverges_stops_and_saves_no_model(
    data, tmp_path, exploding, arguments, last_step
):
    message = f"no longer finite after step {last_step}"
    assert message in diverged(data, tmp_path / "m", arguments)


def test_the_last_good_checkpoint_is_kept(data, tmp_path, exploding):
    saving = "save_strategy=steps save_steps=2 save_total_limit=1 --ema_decay 0.9"
    good = tmp_path / "m.training" / "checkpoint-4"
    assert str(good) in diverged(data, tmp_path / "m", saving)
    assert [path.name for path in good.parent.glob("checkpoint-*")] == ["checkpoint-4"]
    for name in ("model.safetensors", AVERAGED_WEIGHTS):
        assert all(torch.isfinite(tensor).all() for tensor in load_file(good / name).values())


def test_answers_that_are_no_numbers_are_not_measured(data, tmp_path):
    """The weights of the only step are finite, but too large to compute with."""
    validation = data / "validation.jsonl"
    options = f"--learning_rate 1e30 --max_steps 1 --warmup_steps 0 --validation_file {validation}"
    assert "returns NaN" in diverged(data, tmp_path / "m", options)


def test_metrics_that_are_no_numbers_are_not_published():
    measured = Measured({"loss": float("nan")}, mean(np.ones(1)))
    recipe = SimpleNamespace(evaluate=lambda *args, **kwargs: measured)
    with pytest.raises(InputError, match="test data.* loss nan"):
        evaluate(SimpleNamespace(), recipe, "test", Dataset.from_dict({}), 1, seed=0)
