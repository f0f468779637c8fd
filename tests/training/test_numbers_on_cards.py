"""The numbers on a card follow from the table that `predict` writes, computed by other libraries."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import seqeval.metrics
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import model_index_to_eval_results
from sacrebleu import corpus_bleu, corpus_chrf
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, classification_report, f1_score

from roformer_lite.cli import main

TINY = (
    "--size tiny --vocab_size 300 --disable_tqdm true --use_cpu true --learning_rate 2e-3 "
    "--num_train_epochs 2 --validation_fraction 0.2"
).split()
COLOURS = "red green blue".split()
THINGS = "house tree boat star road wave film cast".split()
LABELS = ["x|y", "b", "c"]


def rows_of(task: str, number: int, seed: int) -> list[dict]:
    """Rows that a small model learns only in part."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        colour = int(draw.integers(3))
        words = [*draw.choice(THINGS, 3), COLOURS[colour], *draw.choice(THINGS, 2)]
        label = colour if draw.random() < 0.8 else int(draw.integers(3))
        if task == "classify":
            rows.append({"text": " ".join(words), "label": LABELS[label]})
        elif task == "tag":
            tags = ["O"] * 6
            tags[3] = f"B-{'XYZ'[label]}"
            rows.append({"tokens": list(map(str, words)), "tags": tags})
        else:
            rows.append({"source": " ".join(words), "target": " ".join(words[3 : 5 + label])})
    return rows


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def trained(folder: Path, task: str) -> tuple[str, dict, list[dict]]:
    """The card and the results of a training, and the table of `predict` for its test file."""
    rows = rows_of(task, 60, seed=1)
    test = write(folder / "test.jsonl", rows)
    # The predicted tags are a column of the same name as the true ones.
    asked = [{name: value for name, value in row.items() if name != "tags"} for row in rows]
    files = ["--train_file", str(write(folder / "train.jsonl", rows_of(task, 120, seed=0)))]
    files += ["--test_file", str(test), "--output_dir", str(folder / "m")]
    assert main(["train", task, *files, *TINY]) == 0
    answers = folder / "answers.jsonl"
    options = ["--top_k", "3"] if task == "classify" else []
    files = ["--input_file", str(write(folder / "asked.jsonl", asked))]
    files += ["--output_file", str(answers)]
    assert main(["predict", str(folder / "m"), *files, "--device", "cpu", *options]) == 0
    table = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    results = json.loads((folder / "m" / "results.json").read_text("utf-8"))
    return (folder / "m" / "README.md").read_text("utf-8"), results, table


def check_card(card: str, metrics: dict[str, float]) -> None:
    """Check the last column of the first table, and the metadata, which name the test file."""
    shown = dict(
        re.findall(r"^\| (\w+) \|.* ([\d.e+-]+) \|$", card.split("\n### ")[0], re.MULTILINE)
    )
    for name, value in metrics.items():
        assert float(shown[name]) == pytest.approx(value, rel=1e-3), name
    data = ModelCard(card).data
    assert not re.search(r"\bnull\b|\.nan|\.inf", data.to_yaml())
    _, entries = model_index_to_eval_results(data.to_dict()["model-index"])
    found = {}
    for entry in entries:
        expected = "test.jsonl" if entry.dataset_split == "test" else "train.jsonl"
        assert entry.dataset_name == expected
        found[entry.dataset_split, entry.metric_name] = entry.metric_value
    for name, value in metrics.items():
        if name != "loss":
            assert found["test", name] == pytest.approx(value, abs=1e-4)
    assert {split for split, _ in found} == {"validation", "test"}


def check_labels(card: str, report: dict[str, dict[str, float]]) -> None:
    """Check the table by label."""
    pattern = r"^\| ([^|\\]+(?:\\\|)?[^|]*) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \|$"
    section = card.split("### By label, on the test data")[1]
    shown = {label.replace("\\|", "|"): row for label, *row in re.findall(pattern, section, re.M)}
    assert shown.keys() == report.keys()
    for label, row in shown.items():
        names = ("precision", "recall", "f1-score", "support")
        assert [float(cell) for cell in row] == pytest.approx(
            [report[label][name] for name in names], abs=6e-4
        )


def test_classify(tmp_path):
    card, results, table = trained(tmp_path, "classify")
    true = [row["label"] for row in table]
    predicted = [row["label_1"] for row in table]
    scores = [{row[f"label_{n}"]: row[f"score_{n}"] for n in (1, 2, 3)} for row in table]
    losses = [-np.log(own[label]) for own, label in zip(scores, true, strict=True)]
    check_card(
        card,
        {
            "accuracy": accuracy_score(true, predicted),
            "macro_f1": f1_score(true, predicted, average="macro"),
            "loss": float(np.mean(losses)),
        },
    )
    report = classification_report(true, predicted, output_dict=True, zero_division=0)
    check_labels(card, {label: report[label] for label in LABELS})
    # The calibration error is the mean gap of ten groups of equal size.
    best = np.array([row["score_1"] for row in table])
    gaps = (best - (np.array(true) == predicted))[np.argsort(best, kind="stable")]
    error = np.abs(gaps.reshape(10, -1).sum(axis=1)).sum() / len(gaps)
    (shown,) = re.findall(r"calibration error on the test data is (\d\.\d+)", card)
    assert float(shown) == pytest.approx(error, abs=2e-3)


@pytest.mark.parametrize("task", ["tag", "seq2seq"])
def test_tags_and_texts(task, tmp_path):
    card, results, table = trained(tmp_path, task)
    if task == "tag":
        rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
        true = [row["tags"] for row in rows]
        predicted = [row["tags"] for row in table]
        metrics = {
            "f1": seqeval.metrics.f1_score(true, predicted),
            "precision": seqeval.metrics.precision_score(true, predicted),
            "recall": seqeval.metrics.recall_score(true, predicted),
            "accuracy": seqeval.metrics.accuracy_score(true, predicted),
        }
        report = seqeval.metrics.classification_report(
            true, predicted, output_dict=True, zero_division=0
        )
        check_labels(card, {kind: report[kind] for kind in "XYZ"})
    else:
        true = [row["target"] for row in table]
        predicted = [row["prediction"] for row in table]
        metrics = {
            "bleu": corpus_bleu(predicted, [true]).score,
            "chrf": corpus_chrf(predicted, [true]).score,
            "exact_match": np.mean(np.array(true) == predicted),
        }
    check_card(card, metrics)


def test_the_comparison_is_that_of_the_table(tmp_path):
    """The bold cells and the verdict follow from the p-values, and these from the answers."""
    card, results, table = trained(tmp_path, "classify")
    section = card.split("### Compared with baselines")[1].split("\n## ")[0]
    chances = results["p_values"]["test"]
    for name, chance in chances.items():
        (cell,) = re.findall(rf"^\| {re.escape(name)} \|.* (\S+) \|$", section, re.MULTILINE)
        assert cell.startswith("**") == (chance >= 0.05)
    right = np.array([row["label"] == row["label_1"] for row in table])
    learned = [row["label"] for row in rows_of("classify", 120, seed=0)]
    most_frequent = max(LABELS, key=learned.count)
    theirs = np.array([row["label"] == most_frequent for row in table])
    if chances["this model"] == 1:
        exact = binomtest(int((right & ~theirs).sum()), int((right != theirs).sum())).pvalue
        assert chances["most frequent class"] == pytest.approx(exact, abs=0.02)
