"""Rows with several of many labels: the beginning of the head, and the threshold of the scores."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import build, stack_config
from datasets import Dataset
from sklearn.metrics import f1_score

import hf_roformer_lite as rl
from roformer_lite.answers import open_model
from roformer_lite.cli import main
from roformer_lite.recipes.classify_scores import best_threshold
from roformer_lite.training.head import start_at_log_odds

NAMES = [f"label{number}" for number in range(12)]
CLASSIFIER = rl.RoFormerLiteForSequenceClassification


def test_a_new_head_begins_at_the_frequencies_of_the_labels():
    """Without a contribution of the text, the scores are the smoothed fractions of rows."""
    labels = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    fields = {"num_labels": 3, "problem_type": "multi_label_classification"}
    model = build(CLASSIFIER, stack_config(**fields))
    start_at_log_odds(model, Dataset.from_dict({"labels": labels.tolist()}))
    expected = (labels.sum(axis=0) + 0.5) / 5
    np.testing.assert_allclose(
        model.classifier.out_proj.bias.sigmoid().detach(), expected, atol=1e-6
    )
    single = build(CLASSIFIER, stack_config(num_labels=3))
    before = single.classifier.out_proj.bias.clone()
    start_at_log_odds(single, Dataset.from_dict({"labels": [0, 0, 0, 1]}))
    torch.testing.assert_close(single.classifier.out_proj.bias, before, rtol=0, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_threshold(seed):
    draw = np.random.default_rng(seed)
    # Coarse scores are often equal.
    scores = draw.integers(0, 20, (15, 4)) / 20
    true = draw.random((15, 5)) < 0.2 + scores.mean(axis=1, keepdims=True) / 2
    own = true[:, :4].astype(int)

    def f1_of(threshold: float) -> float:
        return f1_score(own, scores >= threshold, average="micro", zero_division=0)

    best = max(f1_of(threshold) for threshold in np.unique(scores))
    # The model lacks the last label.
    assert f1_of(best_threshold(scores, true.astype(int))) == pytest.approx(best, abs=1e-12)


def test_without_any_true_label_the_threshold_is_a_half():
    assert best_threshold(np.array([[0.9, 0.1]]), np.zeros((1, 2), dtype=int)) == 0.5


@pytest.mark.parametrize("join", ["true", "false"])
def test_the_threshold_decides_in_every_command(join, tmp_path):
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(120):
        labels = draw.choice(NAMES, size=draw.integers(1, 4), replace=False).tolist()
        rows.append({"text": " ".join([*labels, "and more"]), "label": labels})
    files = SimpleNamespace(train=tmp_path / "train.jsonl", held_out=tmp_path / "held_out.jsonl")
    for path, own in ((files.train, rows[:80]), (files.held_out, rows[80:])):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in own), "utf-8")
    out = tmp_path / "out"
    command = ["train", "classify", "--train_file", files.train, "--output_dir", out]
    command += ["--validation_file", files.held_out, "--test_file", files.held_out]
    command += ["--join_baseline", join, "--size", "tiny", "--vocab_size", 300]
    command += "--num_train_epochs 2 --use_cpu true --disable_tqdm true".split()
    assert main(list(map(str, command))) == 0
    results = json.loads((out / "results.json").read_text("utf-8"))
    threshold = results["settings"]["threshold"]
    assert 0 < threshold < 1
    assert f"{threshold:.4f}" in (out / "README.md").read_text("utf-8")
    saved = open_model(out, "cpu")
    answers = saved.answers([row["text"] for row in rows[80:]], 8)
    labels = list(saved.recipe.labels)
    predicted = np.array([[answer[label] >= threshold for label in labels] for answer in answers])
    true = np.array([[label in row["label"] for label in labels] for row in rows[80:]])
    found = f1_score(true, predicted, average="micro")
    assert found > 0
    assert results["metrics"]["test"]["micro_f1"] == pytest.approx(found)
    command = ["evaluate", out, "--test_file", files.held_out, "--output_dir", tmp_path / "again"]
    assert main(list(map(str, command))) == 0
    again = json.loads((tmp_path / "again" / "results.json").read_text("utf-8"))
    assert again["metrics"]["test"] == pytest.approx(results["metrics"]["test"], abs=1e-6)
    table = tmp_path / "predicted.jsonl"
    command = ["predict", out, "--input_file", files.held_out, "--output_file", table]
    assert main(list(map(str, [*command, "--prefix", "our_"]))) == 0
    written = [json.loads(line)["our_label"] for line in table.read_text("utf-8").splitlines()]
    expected = [
        ",".join(label for label, is_chosen in zip(labels, own, strict=True) if is_chosen)
        for own in predicted
    ]
    assert written == expected
