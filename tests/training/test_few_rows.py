"""A classifier that starts from a sentence encoder and has few rows: the stage of pairs, and
cross-validation."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, BertTokenizer

from roformer_lite.cli import main
from roformer_lite.training import cross_validation
from roformer_lite.training.callbacks import TrainingClock
from roformer_lite.training.cross_validation import CrossValidation, divided, folds_of
from roformer_lite.training.pairs import PAIRS_FOLDER
from roformer_lite.training.results import comparison_table

COLOURS = ["red", "green", "blue", "white"]
WORKER = ROOT / "tests" / "training" / "killed_worker.py"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """A tiny sentence encoder with a token for each letter."""
    folder = tmp_path_factory.mktemp("few") / "encoder"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = [*tokens, *letters, *(f"##{letter}" for letter in letters)]
    folder.parent.joinpath("vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer(str(folder.parent / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    return folder


def write_table(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    return path


def make_rows(number: int) -> list[tuple[str, str]]:
    """Different texts of which nine tenths name the colour that is their label."""
    draw = np.random.default_rng(0)
    rows = []
    for index in range(number):
        word = "".join(draw.choice(list("acdhmnost"), 4))
        colour = COLOURS[index % 4]
        shown = colour if index % 10 else COLOURS[(index + 1) % 4]
        rows.append((f"{word}{chr(97 + index % 26)} {shown}", colour))
    return rows


def command(encoder: Path, data: Path, out: Path, *options: str | Path) -> list[str]:
    files = ["--train_file", data, "--output_dir", out, "--model_name_or_path", encoder]
    return list(map(str, ["train", "classify", *files, "--use_cpu", "true", *options]))


def train(encoder: Path, data: Path, out: Path, *options: str | Path) -> dict:
    assert main(command(encoder, data, out, *options)) == 0
    return json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_a_killed_stage_of_pairs_ends_with_the_same_weights(encoder, tmp_path):
    """The process is killed twice, after the first checkpoint and close to the end."""
    data = write_table(tmp_path / "rows.csv", make_rows(40))
    killed = json.dumps([[0, None, 6], [0, None, 31]])
    words = command(encoder, data, tmp_path / "killed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = []
    for status in (-9, -9, 0):
        done = subprocess.run(
            [sys.executable, str(WORKER), str(tmp_path), killed, *words],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == status, done.stderr
        said.append(done.stderr)
        if status:
            assert (tmp_path / "killed.training" / PAIRS_FOLDER).is_dir()
    assert "Step 4/32: loss" in said[0] and "Resuming" not in said[0]
    assert "Resuming from step 4" in said[1] and "Resuming from step 28" in said[2]
    whole = train(encoder, data, tmp_path / "whole")
    results = json.loads((tmp_path / "killed" / "results.json").read_text())
    assert results["metrics"] == whole["metrics"]
    weights = load_file(tmp_path / "killed" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert (weights[name] == tensor).all(), name


def test_an_interrupted_fine_tuning_after_pairs(encoder, tmp_path, monkeypatch):
    """The stage of pairs is over, and is reported like that of an uninterrupted training. So many
    steps are planned that bfloat16 is used on processors that have it."""

    def interrupt(clock, args, state, control, **kwargs) -> None:
        if state.global_step == 50 and Path(args.output_dir).name != PAIRS_FOLDER:
            raise KeyboardInterrupt

    data = write_table(tmp_path / "rows.csv", make_rows(105))
    options = ["--num_train_epochs", "10", "--per_device_train_batch_size", "4"]
    whole = train(encoder, data, tmp_path / "whole", *options)
    with monkeypatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        assert main(command(encoder, data, tmp_path / "m", *options)) == 130
    results = train(encoder, data, tmp_path / "m", *options)
    assert results["metrics"] == whole["metrics"] and "validation" in whole["metrics"]
    assert results["training"]["steps"] == whole["training"]["steps"] > 50
    for name in ("steps", "texts_per_batch", "learning_rate"):
        assert results["training"]["pairs"][name] == whole["training"]["pairs"][name]
    weights = load_file(tmp_path / "m" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "whole" / "model.safetensors").items():
        assert (weights[name] == tensor).all(), name


MORE = [pytest.param(number, marks=pytest.mark.slow) for number in (300, 480)]


@pytest.mark.parametrize("number", [12, 60, *MORE])
def test_few_rows_end_with_a_table(number, encoder, tmp_path, capsys):
    data = write_table(tmp_path / "rows.csv", make_rows(number))
    results = train(encoder, data, tmp_path / "m")
    (split,) = results["metrics"]
    assert split == "cross-validation" and results["rows"][split] == number
    accuracy = results["metrics"][split]["accuracy"]
    found = results["training"]["cross_validation"]
    is_tuned = results["training"]["steps"] > 0
    assert accuracy == found["fine_tuned_accuracy" if is_tuned else "fitted_accuracy"]
    assert is_tuned == (found["fine_tuned_accuracy"] > found["fitted_accuracy"])
    summary = capsys.readouterr().out
    # Values that are not significantly worse than the best one are bold.
    card = (tmp_path / "m" / "README.md").read_text().replace("**", "")
    for baseline in results["baselines"].values():
        assert f"{baseline[split]['accuracy']:.4f}" in summary
        assert f"| {baseline[split]['accuracy']:.4g} |" in card
    assert f"{accuracy:.4f}" in summary and f"| accuracy | {accuracy:.4g} |" in card
    # The encoder learns from at least 32 batches of all rows, or of 48 of them.
    pairs = results["training"]["pairs"]
    per_batch = min(number, 48)
    assert pairs["texts_per_batch"] == per_batch
    assert f"{pairs['steps']} steps" in summary and f"{pairs['steps']} steps" in card
    assert ("num_train_epochs" in card) == is_tuned


@pytest.mark.slow
def test_the_accuracy_is_that_of_models_without_the_rows_of_a_fold(encoder, tmp_path, monkeypatch):
    """Each fold is trained and answered once more by commands of its own."""
    rows = make_rows(30)
    whole = train(encoder, write_table(tmp_path / "rows.csv", rows), tmp_path / "whole")
    monkeypatch.setattr(cross_validation, "MAX_MINUTES", 0.0)
    names = sorted(COLOURS)
    folds = folds_of([text for text, _ in rows], [names.index(label) for _, label in rows])
    right = 0
    for number, (learned, held_out) in enumerate(divided(folds)):
        train_file = write_table(tmp_path / f"{number}.csv", [rows[row] for row in learned])
        test_file = write_table(tmp_path / f"{number}-test.csv", [rows[row] for row in held_out])
        model = tmp_path / str(number)
        results = train(encoder, train_file, model, "--test_file", test_file)
        texts = tmp_path / f"{number}-texts.csv"
        texts.write_text("\n".join(["text", *(rows[row][0] for row in held_out)]) + "\n")
        answers = tmp_path / f"{number}-answers.csv"
        answer = ["predict", model, "--input_file", texts, "--output_file", answers]
        assert main(list(map(str, answer))) == 0
        with answers.open() as stream:
            table = list(csv.DictReader(stream))
        right_in_fold = sum(
            row["label"] == label
            for row, (_, label) in zip(table, (rows[row] for row in held_out), strict=True)
        )
        # There is no figure but that of the test data, and no time to compare.
        assert list(results["metrics"]) == ["test"] and results["training"]["steps"] == 0
        assert results["metrics"]["test"]["accuracy"] == pytest.approx(
            right_in_fold / len(held_out)
        )
        right += right_in_fold
    fitted = whole["training"]["cross_validation"]["fitted_accuracy"]
    assert fitted == pytest.approx(right / len(rows))


def test_without_the_time_the_head_is_measured_on_the_untrained_encoder(
    encoder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(cross_validation, "MAX_MINUTES", 0.0)
    data = write_table(tmp_path / "rows.csv", make_rows(60))
    results = train(encoder, data, tmp_path / "m")
    (split,) = results["metrics"]
    assert split == "cross-validation (head only)"
    assert results["training"]["steps"] == 0
    # What is compared with the baselines is not this model.
    assert "this model" not in comparison_table(results) and not results["verdict"]
    card = (tmp_path / "m" / "README.md").read_text()
    for unused in ("optim", "warmup_steps", "num_train_epochs", "steps, epochs"):
        assert f"| {unused}" not in card
    assert "model-index" not in card
    for text in (card, capsys.readouterr().out):
        assert "does not measure this model" in text


def test_a_time_limit_leaves_no_time_for_training_in_folds(encoder, tmp_path, capsys):
    data = write_table(tmp_path / "rows.csv", make_rows(60))
    results = train(encoder, data, tmp_path / "m", "--time_limit_minutes", "1e-6")
    assert list(results["metrics"]) == ["cross-validation (head only)"]
    assert results["training"]["pairs"]["steps"] == 1
    card = (tmp_path / "m" / "README.md").read_text()
    for text in (card, capsys.readouterr().out):
        assert "in 1 steps" in text and "the limit is 0.0 minutes" in text


def test_a_single_row_of_a_label_leaves_nothing_to_cross_validate(encoder, tmp_path, capsys):
    rows = [(text, "red") for text, _ in make_rows(10)]
    data = write_table(tmp_path / "rows.csv", [*rows, ("quite another text", "green")])
    results = train(encoder, data, tmp_path / "m")
    assert results["metrics"] == {} and results["training"]["steps"] == 0
    card = (tmp_path / "m" / "README.md").read_text()
    for text in (card, capsys.readouterr().out):
        assert "too few rows" in text and "not measured" in text


def test_folds():
    """Each label is in each fold, and spellings of a text are on one side."""
    texts = [f"text {number // 3}" for number in range(90)]
    texts[1] = " TEXT  0"
    labels = [number // 3 % 3 for number in range(90)]
    parts = divided(folds_of(texts, labels))
    assert sorted(row for _, held_out in parts for row in held_out) == list(range(90))
    for learned, held_out in parts:
        assert {labels[row] for row in held_out} == {0, 1, 2}
        seen = {" ".join(texts[row].lower().split()) for row in learned}
        assert seen.isdisjoint(" ".join(texts[row].lower().split()) for row in held_out)
    assert folds_of(["a", "A ", "b", "c"], [0, 0, 1, 2]) is None
    assert folds_of(["a", "b", "c"], [0, 0, 0]) is None


@pytest.mark.parametrize(
    ("fitted", "fine_tuned", "prefers"), [(0.8, 0.81, True), (0.8, 0.8, False), (0.8, None, False)]
)
def test_fine_tuning_has_to_be_better(fitted, fine_tuned, prefers):
    found = CrossValidation(fitted_accuracy=fitted, fine_tuned_accuracy=fine_tuned)
    assert found.prefers_fine_tuning == prefers
