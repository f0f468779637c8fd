"""A classifier that starts from a sentence encoder and has few rows: the stage of pairs, and
cross-validation."""

import json
import re
from pathlib import Path
from string import ascii_lowercase

import numpy as np
import pytest
from conftest import ROOT
from program import (
    COLOURS,
    assert_same_models,
    card_of,
    in_new_process,
    interrupted,
    predicted,
    train,
    write_rows,
)
from saved_models import save_sentence_encoder
from sklearn.model_selection import PredefinedSplit

from roformer_lite.training import cross_validation
from roformer_lite.training.cross_validation import folds_of
from roformer_lite.training.pairs import PAIRS_FOLDER

WORKER = ROOT / "tests" / "training" / "killed_worker.py"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """A tiny sentence encoder with a token for each letter."""
    words = [*ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    folder = tmp_path_factory.mktemp("few") / "encoder"
    return save_sentence_encoder(folder, words, pooling_mode="mean")


def make_rows(number: int) -> list[dict[str, str]]:
    """Different texts of which nine tenths name the colour that is their label."""
    draw = np.random.default_rng(0)
    rows = []
    for index in range(number):
        word = "".join(draw.choice(list("acdhmnost"), 4))
        colour = COLOURS[index % 4]
        shown = colour if index % 10 else COLOURS[(index + 1) % 4]
        rows.append({"text": f"{word}{ascii_lowercase[index % 26]} {shown}", "label": colour})
    return rows


def written(folder: Path, number: int) -> Path:
    return write_rows(folder / "rows.jsonl", make_rows(number))


def trained(encoder: Path, data: Path, out: Path, **options: object) -> dict:
    return train("classify --use_cpu", data, out, model_name_or_path=encoder, **options)


@pytest.mark.slow
def test_a_killed_stage_of_pairs_ends_with_the_same_weights(encoder, tmp_path):
    """The process is killed twice, after the first checkpoint and close to the end."""
    data = written(tmp_path, 40)
    killed = json.dumps([[0, None, 6], [0, None, 31]])
    words = f"train classify --use_cpu --train_file {data} --output_dir {tmp_path / 'killed'}"
    words += f" --model_name_or_path {encoder}"
    said = []
    for status in (-9, -9, 0):
        done = in_new_process(WORKER, tmp_path, killed, *words.split(), status=status)
        said.append(done.stderr)
        if status:
            assert (tmp_path / "killed.training" / PAIRS_FOLDER).is_dir()
    assert "Resuming from step 4" in said[1] and "Resuming from step 28" in said[2]
    trained(encoder, data, tmp_path / "whole")
    assert_same_models(tmp_path / "killed", tmp_path / "whole")


def test_an_interrupted_fine_tuning_after_pairs(encoder, tmp_path):
    """The stage of pairs is over, and is reported like that of an uninterrupted training."""
    data = written(tmp_path, 105)
    options = {
        "num_train_epochs": 10,
        "per_device_train_batch_size": 4,
        # They are for fine-tuning alone.
        "training_arguments": [
            "lr_scheduler_type=cosine_with_restarts",
            'lr_scheduler_kwargs={"num_cycles": 2}',
        ],
    }
    whole = trained(encoder, data, tmp_path / "whole", **options)
    files = {"train_file": data, "output_dir": tmp_path / "m", "model_name_or_path": encoder}
    interrupted("train classify --use_cpu", step=50, **files, **options)
    results = trained(encoder, data, tmp_path / "m", **options)
    assert "validation" in whole["metrics"]
    assert results["training"]["steps"] == whole["training"]["steps"] > 50
    for name in ("steps", "texts_per_batch"):
        assert results["training"]["pairs"][name] == whole["training"]["pairs"][name]
    assert_same_models(tmp_path / "m", tmp_path / "whole")


MORE = [pytest.param(number, marks=pytest.mark.slow) for number in (60, 300, 480)]


@pytest.mark.parametrize("number", [12, *MORE])
def test_few_rows_end_with_a_table(number, encoder, tmp_path, capsys):
    data = written(tmp_path, number)
    results = trained(encoder, data, tmp_path / "m")
    (split,) = results["metrics"]
    assert split == "cross-validation" and results["rows"][split] == number
    accuracy = results["metrics"][split]["accuracy"]
    found = results["training"]["cross_validation"]
    is_tuned = results["training"]["steps"] > 0
    assert accuracy == found["fine_tuned_accuracy" if is_tuned else "fitted_accuracy"]
    assert is_tuned == (found["fine_tuned_accuracy"] > found["fitted_accuracy"])
    summary = capsys.readouterr().out
    # Values that are not significantly worse than the best one are bold.
    card = card_of(tmp_path / "m").replace("**", "")
    for baseline in results["baselines"].values():
        assert f"{baseline[split]['accuracy']:.4f}" in summary
        assert f"| {baseline[split]['accuracy']:.4g} |" in card
    assert f"{accuracy:.4f}" in summary and f"| accuracy | {accuracy:.4g} |" in card
    # The encoder learns from at least 32 batches of all rows, or of 48 of them.
    pairs = results["training"]["pairs"]
    per_batch = min(number, 48)
    assert pairs["texts_per_batch"] == per_batch
    assert f"{pairs['steps']} steps" in summary and f"{pairs['steps']} steps" in card
    assert ("learning_rate" in card) == is_tuned


@pytest.mark.slow
def test_the_accuracy_is_that_of_models_without_the_rows_of_a_fold(encoder, tmp_path, monkeypatch):
    """Each fold is trained and answered once more by commands of its own."""
    monkeypatch.setattr(cross_validation, "NUM_FOLDS", 3)
    rows = make_rows(30)
    whole = trained(encoder, written(tmp_path, 30), tmp_path / "whole")
    monkeypatch.setattr(cross_validation, "MAX_MINUTES", 0.0)
    names = sorted(COLOURS)
    labels = [names.index(row["label"]) for row in rows]
    folds = folds_of([row["text"] for row in rows], labels)
    right = 0
    for number, (learned, held_out) in enumerate(PredefinedSplit(folds).split()):
        learned_rows, test_rows = ([rows[row] for row in part] for part in (learned, held_out))
        data = write_rows(tmp_path / f"{number}.jsonl", learned_rows)
        test_file = write_rows(tmp_path / f"{number}-test.jsonl", test_rows)
        model = tmp_path / str(number)
        results = trained(encoder, data, model, test_file=test_file)
        table = predicted(model, test_file, prefix="our_")
        right_in_fold = sum(row["label"] == row["our_label"] for row in table)
        # There is no figure but that of the test data, and no time to compare.
        assert list(results["metrics"]) == ["test"] and results["training"]["steps"] == 0
        for unused in ("warmup_steps", "num_train_epochs", "steps, epochs"):
            assert f"| {unused}" not in card_of(model)
        accuracy = results["metrics"]["test"]["accuracy"]
        assert accuracy == pytest.approx(right_in_fold / len(held_out))
        right += right_in_fold
    fitted = whole["training"]["cross_validation"]["fitted_accuracy"]
    assert fitted == pytest.approx(right / len(rows))


def test_without_the_time_a_head_and_the_baselines_are_measured(
    encoder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(cross_validation, "MAX_MINUTES", 0.0)
    results = trained(encoder, written(tmp_path, 60), tmp_path / "m", baselines=True)
    # What is compared with the baselines is not this model.
    assert results["metrics"] == {} and not results["verdict"]
    assert "cross_validation" not in results["training"]
    for text in (card_of(tmp_path / "m"), capsys.readouterr().out):
        found = re.search(
            r"not measure this model.* head (0\.\d+), .*SVM on n-grams (0\.\d+)", text, re.S
        )
        assert found is not None and 0 < float(found[1]) and 0 < float(found[2])


def test_a_single_row_of_a_label_leaves_nothing_to_cross_validate(encoder, tmp_path, capsys):
    rows = [{**row, "label": "red"} for row in make_rows(10)]
    rows.append({"text": "quite another text", "label": "green"})
    data = write_rows(tmp_path / "rows.jsonl", rows)
    results = trained(encoder, data, tmp_path / "m")
    assert results["metrics"] == {} and results["training"]["steps"] == 0
    for text in (card_of(tmp_path / "m"), capsys.readouterr().out):
        assert "too few rows" in text and "not measured" in text


def test_folds():
    """Each label is in each fold, and spellings of a text are on one side."""
    texts = [f"text {number // 3}" for number in range(90)]
    texts[1] = " TEXT  0"
    labels = [number // 3 % 3 for number in range(90)]
    spellings = [" ".join(text.lower().split()) for text in texts]
    parts = list(PredefinedSplit(folds_of(texts, labels)).split())
    assert sorted(row for _, held_out in parts for row in held_out) == list(range(90))
    for learned, held_out in parts:
        assert {labels[row] for row in held_out} == {0, 1, 2}
        assert {spellings[row] for row in learned}.isdisjoint(spellings[row] for row in held_out)
    assert folds_of(["a", "A ", "b", "c"], [0, 0, 1, 2]) is None
    assert folds_of(["a", "b", "c"], [0, 0, 0]) is None
