"""A saved model gives the same answers in every way of asking.

The card, `evaluate` and `predict` agree with each other and with scikit-learn, seqeval and
sacrebleu. The order, the number, the batches, the file format and the line ends of the rows do not
matter, nor does the number of threads.
"""

import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqeval.metrics
import torch
from answering import assert_same_answers
from huggingface_hub import ModelCard
from program import TINY, card_of, evaluated, predicted, results_of, run, write_csv, write_rows
from sacrebleu import corpus_bleu, corpus_chrf
from saved_models import save_bert
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, classification_report, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

Rows = list[dict[str, Any]]

COLOURS = "red green blue".split()
THINGS = "house tree boat star road wave film cast".split()
LABELS = ["x|y", "b", "c"]
NUMBERS = {"train": 64, "validation": 16, "test": 30}
WINDOWS = {"max_length": 18}
# Each task has options of its training, and of `predict`.
TASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "classify": ({}, {"top_k": 3}),
    "classify, in windows": (WINDOWS, {}),
    "labels": ({"join_baseline": True}, {}),
    "labels, of the encoder": ({"join_baseline": False}, {}),
    "tag": ({"max_length": 16}, {}),
    "tag, in windows": (WINDOWS, {}),
    "seq2seq": ({"max_target_length": 8}, {}),
    "mlm": ({"block_size": 16}, {}),
    "causal": ({"block_size": 16}, {"beams": 1, "max_new_tokens": 4}),
    "embed": ({}, {}),
    "rerank": ({}, {}),
}


def rows_of(task: str, split: str) -> Rows:
    """Rows that a small model learns only in part."""
    draw = random.Random(split)
    rows = []
    for _ in range(NUMBERS[split]):
        colour = draw.randrange(3)
        label = colour if draw.random() < 0.8 else draw.randrange(3)
        words = [*draw.choices(THINGS, k=draw.randint(1, 24)), COLOURS[colour]]
        rows.append(row_of(task, words, label, draw))
    return rows


def row_of(task: str, words: list[str], label: int, draw: random.Random) -> dict[str, Any]:
    text = " ".join(words)
    number = 2 if len(words) % 4 == 0 else 1
    scored = {"sentence1": text, "sentence2": " ".join(words[:3]), "score": draw.random()}
    return {
        "classify": {"text": text, "label": LABELS[label]},
        "labels": {"text": text, "label": LABELS[label : label + number]},
        "tag": {"tokens": words, "tags": [*["O"] * (len(words) - 1), f"B-{'XYZ'[label]}"]},
        "seq2seq": {"source": text, "target": " ".join(words[-2 - label :])},
        "mlm": {"text": f"{text} [MASK] house"},
        "causal": {"text": text},
        "embed": scored,
        "rerank": scored,
    }[task.partition(",")[0]]


@pytest.fixture(scope="module", params=TASKS)
def trained(request, tmp_path_factory) -> tuple[str, Path]:
    """A task, and the folder of its model and data."""
    task = request.param
    folder = tmp_path_factory.mktemp("task")
    options, _ = TASKS[task]
    if "windows" in task:
        bert = save_bert(folder / "bert", [*COLOURS, *THINGS], max_position_embeddings=18)
        command = "--use_cpu"
        options = {**options, "model_name_or_path": bert}
    else:
        command = f"{TINY} --learning_rate 2e-3"
    for split in NUMBERS:
        path = write_rows(folder / f"{split}.jsonl", rows_of(task, split))
        options = {**options, f"{split}_file": path}
    kind = task.partition(",")[0].replace("labels", "classify")
    run(f"train {kind} {command} --num_train_epochs 2", output_dir=folder / "model", **options)
    return task, folder


def table_of(task: str, folder: Path, data: Path, **more: Any) -> Rows:
    """The rows of a table with the columns that `predict` adds."""
    _, options = TASKS[task]
    return predicted(folder / "model", data, prefix="own_", **options, **more)


def answers_of(task: str, folder: Path, data: Path, **more: Any) -> Rows:
    rows = table_of(task, folder, data, **more)
    return [{name: row[name] for name in row if name.startswith("own_")} for row in rows]


def test_neither_order_nor_number_nor_batches_nor_format_nor_threads_matter(trained):
    task, folder = trained
    data = folder / "test.jsonl"
    rows = rows_of(task, "test")
    expected = answers_of(task, folder, data)
    for size in (1, 7):
        assert_same_answers(expected, answers_of(task, folder, data, batch_size=size))
    order = random.Random(0).sample(range(len(rows)), len(rows))
    shuffled = write_rows(folder / "shuffled.jsonl", [rows[place] for place in order])
    assert_same_answers([expected[place] for place in order], answers_of(task, folder, shuffled))
    doubled = write_rows(folder / "two.jsonl", rows + rows)
    assert_same_answers(expected + expected, answers_of(task, folder, doubled))
    files = [data]
    if not task.startswith("tag"):
        files.append(write_csv(folder / "test.csv", rows))
        assert_same_answers(expected, answers_of(task, folder, files[1]))
    for path in files:
        windows = path.with_stem("windows")
        windows.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert_same_answers(expected, answers_of(task, folder, windows))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert_same_answers(expected, answers_of(task, folder, data))
    torch.set_num_threads(threads)


def measured_by_libraries(task: str, rows: Rows) -> tuple[dict[str, float], dict[str, dict]]:
    """Metrics of the answers in a table, and those of each label."""
    kind = task.partition(",")[0]
    options: dict[str, Any] = {"zero_division": 0}
    if kind == "classify":
        name = "own_label_1" if "own_label_1" in rows[0] else "own_label"
        pair = ([row["label"] for row in rows], [row[name] for row in rows])
        macro = f1_score(*pair, average="macro", **options)
        report = classification_report(*pair, output_dict=True, **options)
        return {"accuracy": accuracy_score(*pair), "macro_f1": macro}, report
    if kind == "labels":
        own = [(row["own_label"] or "").split(",") for row in rows]
        coder = MultiLabelBinarizer(classes=LABELS)
        true = coder.fit_transform(row["label"] for row in rows)
        chosen = coder.transform([name for name in names if name] for names in own)
        metrics = {"accuracy": accuracy_score(true, chosen)}
        for average in ("macro", "micro"):
            metrics[f"{average}_f1"] = f1_score(true, chosen, average=average, **options)
        return metrics, {}
    if kind == "tag":
        pair = ([row["tags"] for row in rows], [row["own_tags"] for row in rows])
        metrics = {"accuracy": seqeval.metrics.accuracy_score(*pair)}
        for name in ("f1", "precision", "recall"):
            metrics[name] = getattr(seqeval.metrics, f"{name}_score")(*pair, **options)
        report = seqeval.metrics.classification_report(*pair, output_dict=True, **options)
        return metrics, report
    if kind == "seq2seq":
        true = [row["target"] for row in rows]
        found = [row["own_prediction"] for row in rows]
        metrics = {
            "bleu": corpus_bleu(found, [true]).score,
            "chrf": corpus_chrf(found, [true]).score,
            "exact_match": accuracy_score(true, found),
        }
        return metrics, {}
    return {}, {}


def test_the_card_is_what_evaluate_measures_and_predict_answers(trained):
    task, folder = trained
    model = folder / "model"
    data = folder / "test.jsonl"
    noted = results_of(model)["metrics"]["test"]
    found = evaluated(model, data)
    assert found["metrics"]["test"] == noted
    assert found["settings"] == results_of(model)["settings"]
    has_answers = task not in "mlm causal embed rerank".split()
    assert ("The worst answers:" in found["report"]) == has_answers == bool(found["predictions"])
    rows = table_of(task, folder, data)
    expected, report = measured_by_libraries(task, rows)
    assert {name: noted[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    card = card_of(model)
    first_table = card.split("\n### ")[0]
    shown = dict(re.findall(r"^\| (\w+) \|.* ([\d.e+-]+) \|$", first_table, re.MULTILINE))
    for name, value in expected.items():
        assert float(shown[name]) == pytest.approx(value, rel=1e-3), name
    if report:
        check_labels(card, report)
    if "labels" in task:
        threshold = results_of(model)["settings"]["threshold"]
        assert card.count(f"at least {threshold:.4f}") == 1
        labels = [row["own_label"] for row in rows]
        others = table_of(task, folder, data, threshold=0.5)
        assert labels != [row["own_label"].removeprefix("-") for row in others]


def test_the_files_of_a_finished_model(trained):
    """The metadata of the card have the metrics of the results, and the code of the card runs."""
    _, folder = trained
    model = folder / "model"
    names = "README.md config.json model.safetensors tokenizer.json tokenizer_config.json".split()
    assert {*names, "results.json"} <= set(os.listdir(model))
    assert not list(folder.glob(".*"))
    assert not (folder / "model.training").exists()
    card = card_of(model)
    results = results_of(model)
    assert results["command"] in card
    measured = {
        (result.dataset_split, result.metric_name): result.metric_value
        for result in ModelCard(card).data.eval_results
    }
    expected = {}
    for split, metrics in results["metrics"].items():
        for name in metrics.keys() - {"loss"}:
            expected[split, name] = pytest.approx(metrics[name], abs=1e-4)
    assert measured == expected
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    code = code.replace('"model"', repr(str(model)))
    exec(compile(code, "card", "exec"), {})


def check_labels(card: str, report: dict[str, dict[str, float]]) -> None:
    """Check the table by label."""
    pattern = r"^\| ([^|\\]+(?:\\\|)?[^|]*) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \|$"
    section = card.split("### By label, on the test data")[1]
    rows = re.findall(pattern, section, re.MULTILINE)
    names = ("precision", "recall", "f1-score", "support")
    assert len(rows) == 3
    for label, *row in rows:
        expected = [report[label.replace("\\|", "|")][name] for name in names]
        assert [float(cell) for cell in row] == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("trained", ["classify"], indirect=True)
def test_comparison_on_the_card(trained):
    """The bold cells and the verdict follow from the p-values, and these from the answers."""
    task, folder = trained
    rows = table_of(task, folder, folder / "test.jsonl")
    results = results_of(folder / "model")
    card = card_of(folder / "model")
    picture = folder / "model" / "reliability.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.name in card
    right = np.array([row["label"] == row["own_label_1"] for row in rows])
    section = card.split("### Compared with baselines")[1].split("\n## ")[0]
    assert "| its encoder alone |" in section
    weights = map(float, re.findall(r"\(weight ([\d.]+)\)", card))
    assert sum(weights) == pytest.approx(1)
    chances = results["p_values"]["test"]
    for name, chance in chances.items():
        (cell,) = re.findall(rf"^\| {re.escape(name)} \|.* (\S+) \|$", section, re.MULTILINE)
        assert cell.startswith("**") == (chance >= 0.05)
    learned = [row["label"] for row in rows_of(task, "train")]
    most_frequent = max(LABELS, key=learned.count)
    theirs = np.array([row["label"] == most_frequent for row in rows])
    assert chances["this model"] == 1
    exact = binomtest(int((right & ~theirs).sum()), int((right != theirs).sum())).pvalue
    assert chances["most frequent class"] == pytest.approx(exact, abs=0.02)
