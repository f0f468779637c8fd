"""Tests of data files with arbitrary damage.

Either the rows that are read can be trained on, or an error names the file.
"""

import gzip
import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import data_beside
from damage import damaged_bytes
from program import refused

from hf_roformer_lite import RoFormerLiteTokenizer
from roformer_lite.data.data_files import read_table
from roformer_lite.data.tables import TableWriter
from roformer_lite.errors import InputError
from roformer_lite.recipes import RECIPES
from roformer_lite.training.trainer import RoFormerLiteTrainer

ROWS = [
    {"text": f"the {word} house", "label": "ab"[n % 2]}
    for n, word in enumerate("red old big wee".split())
]
CSV = "text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in ROWS)
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)
TAGGED = "Anna B-PER\nlives O\n\nRome B-LOC\n! O\n"
# Each file has a task, a content, and options of the task.
FILES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a.csv": ("classify", CSV, {}),
    "a.tsv": ("classify", CSV.replace('"', "").replace(",", "\t"), {}),
    "a.jsonl": ("classify", JSONL, {}),
    "numbers.csv": (
        "classify",
        CSV.replace(",a", ",1").replace(",b", ",2.5"),
        {"problem_type": "regression"},
    ),
    "pairs.tsv": ("seq2seq", "source\ttarget\none\teins\ntwo\tzwei\n", {}),
    "a.txt": ("mlm", "the red house\n\nthe old house\n", {}),
    "text.jsonl": ("causal", JSONL, {}),
    "a.conll": ("tag", TAGGED, {}),
    "tags.jsonl": ("tag", '{"tokens": ["Anna", "lives"], "tags": ["B", "O"]}\n' * 2, {}),
}


def read(path: Path, task_name: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    kind = RECIPES[task_name]
    reader = kind.reader_class(kind.options_class(train_file=[str(path)], **options))
    return list(reader.read_rows([str(path)]))


def check(path: Path, task: str, options: dict[str, Any]) -> str:
    """Read a file, and describe what goes wrong. The description is empty if nothing does."""
    try:
        rows = read(path, task, options)
    except InputError as error:
        return "" if str(error).startswith(str(path)) else f"no place: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    columns = {frozenset(row) for row in rows}
    if len(columns) > 1:
        return f"rows of several kinds: {columns}"
    for row in rows:
        # Tokenizers and files need text that can be encoded.
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    return ""


@pytest.mark.parametrize("name", FILES)
def test_damaged_files(name, tmp_path):
    task, content, options = FILES[name]
    wrong = []
    path = tmp_path / name
    for seed in range(150):
        path.write_bytes(damaged_bytes(content.encode(), random.Random(seed)))
        problem = check(path, task, options)
        if problem:
            wrong.append(f"{seed}, {path.read_bytes()[:80]!r}: {problem[:200]}")
    assert not wrong, "\n".join(wrong)


def test_damaged_compression(tmp_path):
    """With one bit of a compressed file flipped, it is refused, or read as before the damage.

    Some bytes of its header do not matter.
    """
    task, content, options = FILES["a.csv"]
    whole = gzip.compress(content.encode(), mtime=0)
    path = tmp_path / "a.csv.gz"
    path.write_bytes(whole)
    right = read(path, task, options)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        assert not check(path, task, options)
        with suppress(InputError):
            assert read(path, task, options) == right


def some_text(chance: random.Random) -> str:
    alphabet = "aé中\U0001f600 ,;\"'\\/{}[]|=+-#\u2028\u00a0\x0b\x1c\x1f"
    return "".join(chance.choice(alphabet) for _ in range(chance.randrange(1, 12)))


@pytest.mark.parametrize(
    ("name", "more"), [("a.csv", "\n\r\t"), ("a.tsv", ""), ("a.jsonl", "\n\r\t\x00\u0085")]
)
def test_what_is_written_is_read(name, more, tmp_path):
    """Cells with any characters are read unchanged from files like those of `predict`."""
    for seed in range(50):
        chance = random.Random(seed)
        cells = [some_text(chance) + chance.choice(["", *more]) + "z" for _ in range(12)]
        rows = [{"a": one, "b": other} for one, other in zip(cells[::2], cells[1::2], strict=True)]
        path = tmp_path / name
        with open(path, "w", encoding="utf-8", newline="") as stream:
            writer = TableWriter(stream, path.suffix)
            for row in rows:
                writer.write(row)
        assert [row["columns"] for row in read_table(path)] == rows


MISTAKES = data_beside(__file__)


@pytest.fixture
def no_training(current_folder, monkeypatch) -> None:
    """Run commands in an empty folder, and fail where a training begins."""
    monkeypatch.setattr(
        RoFormerLiteTrainer, "train", lambda self, **options: pytest.fail("the training began")
    )


def refusal(task: str, files: list[str]) -> str:
    """Run a `train` command that must fail before the training, and return its message.

    The command must not leave an output directory, nor one of checkpoints.
    """
    options = "--output_dir out --use_cpu --size tiny --train_file"
    messages = refused(f"train {task} {options}", *files)
    assert not list(Path().glob("*out*"))
    assert "Traceback" not in messages
    error = messages.splitlines()[-1]
    assert error.startswith("roformer-lite train: error: ")
    return error


@pytest.mark.parametrize("mistake", MISTAKES)
def test_training_on_wrong_files(mistake, no_training):
    case = MISTAKES[mistake]
    for name, content in case["files"].items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content, "utf-8")
    train_files = [Path(name).parts[0] for name in case["files"] if name != "v.txt"]
    assert case["message"] in refusal(case["task"], train_files)


def test_text_without_a_known_word_is_refused(no_training):
    text = "the cat sees the cat"
    tokenizer = RoFormerLiteTokenizer.train([text], algorithm="wordpiece")
    tokenizer.save_pretrained("tokenizer")
    Path("a.txt").write_text(text)
    Path("v.txt").write_text("[UNK] [PAD]")
    task = "mlm --tokenizer tokenizer --validation_file v.txt"
    message = "the tokenizer finds no word in the text that begins here"
    assert message in refusal(task, ["a.txt"])


def test_pipes_are_refused_where_data_are_read_again(no_training):
    os.mkfifo("a.txt")
    assert "a.txt: there is no such file" in refusal("mlm", ["a.txt"])
