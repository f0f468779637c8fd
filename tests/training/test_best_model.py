"""The best checkpoint is kept, training stops when nothing gets better, and what happened is said."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.train.results import Evaluation, is_within_chance, verdict, what_happened

COLOURS = ["red", "green", "blue", "white"]
OPTIONS = "--size tiny --vocab_size 300 --text_scores false --word_dropout 0 --seed 3 --use_cpu --disable_tqdm true"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The training data say one thing, the validation data another: the longer the training, the worse."""
    folder = tmp_path_factory.mktemp("data")
    for name, shift in (("train", 0), ("validation", 1)):
        rows = [f"{colour} {colour}\t{COLOURS[(i + shift) % 4]}" for i, colour in enumerate(COLOURS * 12)]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


def _train(data, out, *options: str) -> dict:
    files = ["--train_file", str(data / "train.tsv"), "--validation_file", str(data / "validation.tsv")]
    arguments = [*files, *OPTIONS.split(), "--output_dir", str(out), *options]
    assert main(["train", "classify", *arguments]) == 0
    return json.loads((out / "results.json").read_text())


def test_the_best_model_is_kept_and_training_stops(data, tmp_path, capsys):
    metric = "--early_stopping_patience 3 --training_arguments metric_for_best_model=loss save_total_limit=50".split()
    results = _train(data, tmp_path / "model", *metric, "--keep_checkpoints", "--num_train_epochs", "30")
    training = results["training"]
    losses = {}
    for folder in (tmp_path / "model.training").glob("checkpoint-*"):
        log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        losses |= {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    chosen = training["chosen_step"]
    assert losses[chosen] == min(losses.values())
    steps = sorted(losses)
    assert training["steps"] == steps[-1] and len(steps) == steps.index(chosen) + 1 + 3 < 30
    assert "Training stopped after epoch" in training["what_happened"]
    assert training["what_happened"] in (tmp_path / "model" / "README.md").read_text()
    assert results["metrics"]["validation"]["loss"] == pytest.approx(losses[chosen], abs=1e-4)

    averaged = load_file(tmp_path / "model.training" / f"checkpoint-{chosen}" / "averaged_weights.safetensors")
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in averaged.items())


@pytest.mark.slow
def test_a_resumed_training_stops_at_the_same_step(data, tmp_path):
    """The patience counts what was measured before the interruption."""
    options = "--early_stopping_patience 4 --num_train_epochs 30".split()
    options += ["--training_arguments", "metric_for_best_model=loss", "save_total_limit=50"]
    whole = _train(data, tmp_path / "whole", *options, "--keep_checkpoints")
    shutil.copytree(tmp_path / "whole.training", tmp_path / "again.training")
    last = max(int(folder.name.split("-")[1]) for folder in (tmp_path / "again.training").glob("checkpoint-*"))
    for folder in (tmp_path / "again.training").glob("checkpoint-*"):
        if int(folder.name.split("-")[1]) > last - 5:  # two evaluations of three rows each
            shutil.rmtree(folder)
    again = _train(data, tmp_path / "again", *options)
    assert again["training"]["steps"] == whole["training"]["steps"]
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_validation_data_are_held_out_by_default(data, tmp_path, caplog):
    long = tmp_path / "long.tsv"
    rows = (data / "train.tsv").read_text().splitlines()
    long.write_text("\n".join(rows + rows[1:] * 3) + "\n")
    options = [*OPTIONS.split(), "--num_train_epochs", "1"]
    assert main(["train", "classify", "--train_file", str(long), "--output_dir", str(tmp_path / "a"), *options]) == 0
    assert json.loads((tmp_path / "a" / "results.json").read_text())["rows"] == {"train": 173, "validation": 19}
    assert "19 of the 192 training rows, at random, are held out" in caplog.text
    nothing = ["--validation_fraction", "0", "--output_dir", str(tmp_path / "b")]
    assert main(["train", "classify", "--train_file", str(long), *nothing, *options]) == 0
    assert json.loads((tmp_path / "b" / "results.json").read_text())["rows"] == {"train": 192}


@pytest.mark.parametrize(
    ("losses", "epochs", "more", "expected"),
    [
        ([3, 2, 1], 3, {}, "epoch 3, step 30, is kept, with the best validation loss, 1. It was still getting better"),
        ([3, 2, 1], 3, {"metrics": {"exact_match": 1.0}}, "the best validation loss, 1."),
        (
            [3, 2, 1],
            3,
            {"parts": {"its encoder alone": {}}},
            "the best validation loss of the encoder alone, 1.",
        ),
        ([3, 1, 2, 2], 4, {}, "1. The validation loss has risen since epoch 2"),
        (
            [3, 1, 2],
            9,
            {},
            "1. Training stopped after epoch 3, as it no longer helped. The validation loss has",
        ),
    ],
)
def test_what_is_said(losses, epochs, more, expected):
    args = SimpleNamespace(
        metric_for_best_model="loss", greater_is_better=False, load_best_model_at_end=True, num_train_epochs=epochs
    )
    history = [{"epoch": n, "step": 10 * n, "eval_loss": loss} for n, loss in enumerate(losses, 1)]
    evaluations = [Evaluation("validation", more.get("metrics", {}), 100, 1.0)]
    said = what_happened(args, history, evaluations, more.get("parts", {}))
    assert expected in said and ("longer training" in said) == ("metrics" not in more and losses[-1] == 1)


def test_a_difference_within_chance_is_called_so():
    """Six rows of 2,000 are; a hundred are not."""
    assert is_within_chance("accuracy", 0.903, 0.9, 2000) and not is_within_chance("accuracy", 0.95, 0.9, 2000)
    assert is_within_chance("spearman", 0.80, 0.79, 200) and not is_within_chance("spearman", 0.80, 0.5, 200)
    assert not is_within_chance("perplexity", 9.0, 10.0, 200)
    said = {
        accuracy: verdict(
            "accuracy",
            [Evaluation("test", {"accuracy": accuracy}, 2000, 1.0)],
            {"n-grams": {"test": {"accuracy": 0.9}}},
        )
        for accuracy in (0.903, 0.95, 0.85)
    }
    assert "about equal" in said[0.903] and "2,000 rows" in said[0.903]
    assert said[0.95].startswith("The model is better") and said[0.85].startswith("A baseline is better")
