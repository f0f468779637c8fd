"""A saved model gives the same answers in every way of asking.

The card, `evaluate` and `predict` agree with each other and with scikit-learn, seqeval and
sacrebleu. The order, the number, the batches, the file format and the line ends of the rows do not
matter, nor does the number of threads.
"""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from seqeval.metrics import f1_score as entity_f1_score
from sklearn.metrics import accuracy_score, f1_score

from roformer_lite.cli import main

Rows = list[dict[str, Any]]

WORDS = "red green blue one two three film train house Ann Bob Rome moon sun".split()
SMALL = ["--size", "tiny", "--vocab_size", "300", "--num_train_epochs", "2", "--use_cpu", "true"]
SMALL += ["--disable_tqdm", "true", "--seed", "0"]
# Each task has the columns that `predict` reads, options of the training, and options of `predict`.
TASKS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "classify": (["text"], [], []),
    "tag": (["tokens"], ["--max_length", "16"], []),
    "seq2seq": (["source"], ["--max_target_length", "8"], []),
    "mlm": (["text"], ["--block_size", "16"], []),
    "causal": (["text"], ["--block_size", "16"], ["--greedy", "--max_new_tokens", "4"]),
    "embed": (["sentence1"], [], []),
    "rerank": (["sentence1", "sentence2"], [], []),
}


def rows_of(task: str, number: int, seed: int) -> Rows:
    draw = random.Random(seed)
    rows: Rows = []
    for _ in range(number):
        length = draw.randint(2, 30 if task == "tag" else 9)
        words = [draw.choice(WORDS) for _ in range(length)]
        text = " ".join(words)
        other = " ".join(draw.choice(WORDS) for _ in range(5))
        names = [("B-PER" if word in ("Ann", "Bob") else "O") for word in words]
        score = draw.random()
        pair = {"sentence1": text, "sentence2": other, "score": score}
        rows_by_task = {
            "classify": {"text": text, "label": "person" if "B-PER" in names else "none"},
            "tag": {"tokens": words, "tags": names},
            "seq2seq": {"source": text, "target": " ".join(words[:3]).lower()},
            "mlm": {"text": f"{text} [MASK] {other}"},
            "causal": {"text": text},
            "embed": pair,
            "rerank": pair,
        }
        rows.append(rows_by_task[task])
    return rows


def write_jsonl(path: Path, rows: Rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_csv(path: Path, rows: Rows) -> str:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


@pytest.fixture(scope="module", params=TASKS)
def trained(request, tmp_path_factory) -> tuple[str, Path]:
    """A task, and the folder of its model and data."""
    task = request.param
    folder = tmp_path_factory.mktemp(task)
    files = []
    for split, number in (("train", 64), ("validation", 16), ("test", 24)):
        path = write_jsonl(folder / f"{split}.jsonl", rows_of(task, number, seed=number))
        files += [f"--{split}_file", path]
    _, options, _ = TASKS[task]
    command = ["train", task, *files, *SMALL, *options, "--output_dir", str(folder / "model")]
    assert main(command) == 0
    return task, folder


def predicted(task: str, folder: Path, data: str, *more: str) -> Rows:
    """Return the rows of a table with the columns that `predict` adds."""
    columns, _, options = TASKS[task]
    out = folder / "answers.jsonl"
    command = ["predict", str(folder / "model"), "--input_file", data, "--output_file", str(out)]
    command += ["--prefix", "own_", "--text_column", columns[0]]
    if len(columns) > 1:
        command += ["--text_pair_column", columns[1]]
    assert main([*command, *options, *more]) == 0
    return [json.loads(line) for line in out.read_text().splitlines()]


def answers_in(rows: Rows) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name.startswith("own_")} for row in rows]


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert len(ours) == len(theirs)
    for own, their in zip(ours, theirs, strict=True):
        for name, value in own.items():
            if isinstance(value, float) or name == "own_embedding":
                value = pytest.approx(value, abs=2e-4)
            assert their[name] == value


def test_neither_order_nor_number_nor_batches_nor_format_nor_threads_matter(trained):
    task, folder = trained
    rows = rows_of(task, 24, seed=24)
    expected = answers_in(predicted(task, folder, str(folder / "test.jsonl")))
    for size in ("1", "7"):
        data = str(folder / "test.jsonl")
        assert_same(expected, answers_in(predicted(task, folder, data, "--batch_size", size)))
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    data = write_jsonl(folder / "shuffled.jsonl", [rows[place] for place in order])
    shuffled = answers_in(predicted(task, folder, data))
    assert_same([expected[place] for place in order], shuffled)
    doubled = answers_in(predicted(task, folder, write_jsonl(folder / "two.jsonl", rows + rows)))
    assert_same(expected + expected, doubled)
    if task != "tag":
        data = write_csv(folder / "test.csv", rows)
        table = answers_in(predicted(task, folder, data))
        assert_same(expected, table)
    for name in ("test.jsonl", "test.csv"):
        data = folder / f"windows_{name}"
        if (folder / name).exists():
            lines = (folder / name).read_text().splitlines()
            data.write_bytes("".join(f"{line}\r\n" for line in lines).encode())
            assert_same(expected, answers_in(predicted(task, folder, str(data))))
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    assert_same(expected, answers_in(predicted(task, folder, str(folder / "test.jsonl"))))
    torch.set_num_threads(threads)


def test_the_card_is_what_evaluate_measures_and_predict_answers(trained):
    task, folder = trained
    results = json.loads((folder / "model" / "results.json").read_text())
    noted = results["metrics"]["test"]
    command = ["evaluate", str(folder / "model"), "--test_file", str(folder / "test.jsonl")]
    command += ["--device", "cpu", "--output_dir", str(folder / "evaluation")]
    assert main([*command, "--overwrite_output_dir"]) == 0
    again = json.loads((folder / "evaluation" / "results.json").read_text())
    assert again["metrics"]["test"] == noted
    rows = predicted(task, folder, str(folder / "test.jsonl"))
    if task == "classify":
        true = [row["label"] for row in rows]
        answers = [row["own_label"] for row in rows]
        assert noted["accuracy"] == accuracy_score(true, answers)
        assert noted["macro_f1"] == f1_score(true, answers, average="macro", zero_division=0)
    if task == "tag":
        true = [row["tags"] for row in rows]
        answers = [row["own_tags"] for row in rows]
        assert noted["f1"] == entity_f1_score(true, answers, zero_division=0)
    if task == "seq2seq":
        true = [row["target"] for row in rows]
        answers = [row["own_prediction"] for row in rows]
        assert noted["bleu"] == BLEU().corpus_score(answers, [true]).score
        assert noted["chrf"] == CHRF().corpus_score(answers, [true]).score
