"""`roformer-lite prepare`: the blocks that training would make, held-out rows, and directories that are not whole."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset

from hf_roformer_lite.cli import main
from hf_roformer_lite.errors import InputError
from hf_roformer_lite.training.corpus.corpus import Corpus
from hf_roformer_lite.training.corpus.hold_out import hold_out
from hf_roformer_lite.training.corpus.manifest import read_manifest
from hf_roformer_lite.training.corpus.shards import ShardWriter
from hf_roformer_lite.training.language_model_arguments import LanguageModelDataArguments, MaskedLMDataArguments
from hf_roformer_lite.training.model_and_tokenizer import prepared_tokenizer
from hf_roformer_lite.training.pretrained import pretrained_tokenizer
from hf_roformer_lite.training.splits import load_splits
from hf_roformer_lite.training.tasks.language_model import CausalLMTask, MaskedLMTask, blocks

TASKS = {"mlm": (MaskedLMTask, MaskedLMDataArguments), "causal": (CausalLMTask, LanguageModelDataArguments)}
WORDS = "a river runs past the old house and nobody knows how far it will go".split()


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with one long document, and a table of many short ones, some empty."""
    folder, random = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    lines = [" ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(400)]
    (folder / "book.txt").write_text("\n\n".join(lines) + "\n", "utf-8")
    rows = [{"text": "" if number % 50 == 7 else line} for number, line in enumerate(lines)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer(texts) -> Path:
    assert prepared(texts, "mlm", "first", "--vocab_size", 300, tokenizer=None) == 0
    return texts / "first" / "tokenizer"


def prepared(folder: Path, task: str, name: str, *more: object, tokenizer: Path | None, files=("rows.jsonl",)) -> int:
    options = ["--num_proc", "1", "--block_size", "16", "--output_dir", str(folder / name), *map(str, more)]
    options += [] if tokenizer is None else ["--tokenizer", str(tokenizer)]
    return main(["prepare", task, "--train_file", *(str(folder / file) for file in files), *options])


@pytest.mark.parametrize("task", list(TASKS))
def test_blocks_are_those_of_a_training_on_the_files(texts, tokenizer, task, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_roformer_lite.training.corpus.shards.CHUNK_TOKENS", 500)
    files = ("book.txt", "rows.jsonl")
    more = ("--validation_fraction", 0, "--shard_size", 0.001)
    assert prepared(texts, task, f"whole-{task}", *more, tokenizer=tokenizer, files=files) == 0
    task_class, arguments = TASKS[task]
    own = task_class(arguments(train_file=[str(texts / file) for file in files], block_size=16, validation_fraction=0))
    rows = load_splits(own, own.args, tmp_path, seed=0)["train"]
    loaded = prepared_tokenizer(own, corpus := Corpus.prepared([str(texts / f"whole-{task}")]), None)
    wanted = [block["input_ids"] for block in blocks(rows, loaded, 16, own.is_causal)]
    assert [corpus.block(number) for number in range(len(corpus))] == wanted
    manifest = read_manifest(texts / f"whole-{task}")
    assert len(manifest.shards) > 3 and manifest.blocks == len(wanted) and manifest.tokens == sum(map(len, wanted))
    assert manifest.text_bytes == sum(len(text.encode()) for text in rows["text"])
    assert manifest.documents == 1 + 392 and manifest.held_out == {}


def test_two_processes_make_the_same_as_one(texts, tokenizer, monkeypatch):
    monkeypatch.setattr("hf_roformer_lite.training.corpus.tokenising._BATCH_CHARACTERS", 2_000)
    for number in (1, 2):
        assert prepared(texts, "mlm", f"by-{number}", "--num_proc", number, tokenizer=tokenizer) == 0
    assert read_manifest(texts / "by-1").digest == read_manifest(texts / "by-2").digest


def test_validation_rows_are_kept_as_text_and_not_learnt(texts, tokenizer):
    for name, seed in (("one", 1), ("same", 1), ("two", 2)):
        assert prepared(texts, "mlm", f"held-{name}", "--seed", seed, tokenizer=tokenizer) == 0
    held = {name: Dataset.from_parquet(str(texts / f"held-{name}" / "validation.parquet")) for name in ("one", "two")}
    assert len(held["one"]) == 39 == read_manifest(texts / "held-one").held_out["validation"]
    assert set(held["one"]["origin"]) != set(held["two"]["origin"])
    digests = [read_manifest(texts / f"held-{name}").digest for name in ("one", "same", "two")]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(("most", "amount"), [(5, 5), (5, 3), (50, 4), (0, 0)])
@pytest.mark.parametrize("are_documents", [True, False])
def test_hold_out(most, amount, are_documents):
    rows = [{"text": str(n), "origin": str(n), "document": str(n) if are_documents else "one"} for n in range(30)]
    held: deque = deque()
    kept = list(hold_out(iter(rows), held, most, lambda number, which: amount, seed=0))
    assert len(held) == amount and sorted(int(row["text"]) for row in [*kept, *held]) == list(range(30))
    if not are_documents:
        assert kept + list(held) == rows


def test_every_row_is_equally_likely_to_be_held_out():
    rows = [{"text": str(n), "origin": str(n), "document": str(n)} for n in range(20)]
    counts = np.zeros(20)
    for seed in range(2_000):
        held: deque = deque()
        list(hold_out(iter(rows), held, 8, lambda number, which: 4, seed))
        counts[[int(row["text"]) for row in held]] += 1
    assert abs(counts / 2_000 - 0.2).max() < 0.04  # four standard deviations


def cut(folder: Path) -> str:
    shard = folder / "train-00000.parquet"
    os.truncate(shard, shard.stat().st_size - 1)
    return "train-00000.parquet has .* bytes and should have"


def without_shard(folder: Path) -> str:
    (folder / "train-00000.parquet").unlink()
    return "train-00000.parquet is missing"


def of_another_version(folder: Path) -> str:
    change(folder, format=99)
    return "was prepared by another version of this package"


def without_manifest(folder: Path) -> str:
    (folder / "prepared.json").unlink()
    return "there is no prepared.json .* `roformer-lite prepare` has finished"


def not_json(folder: Path) -> str:
    (folder / "prepared.json").write_text("{", "utf-8")
    return "prepared.json is damaged"


def with_unknown_field(folder: Path) -> str:
    change(folder, more=1)
    return "prepared.json is damaged; it should have task, block_size"


def change(folder: Path, **fields: object) -> None:
    content = json.loads((folder / "prepared.json").read_text("utf-8"))
    (folder / "prepared.json").write_text(json.dumps({**content, **fields}), "utf-8")


@pytest.mark.parametrize(
    "damage", [cut, without_shard, of_another_version, without_manifest, not_json, with_unknown_field]
)
def test_what_is_not_whole_is_refused(tokenizer, tmp_path, damage):
    folder = shutil.copytree(tokenizer.parent, tmp_path / "copy")
    message = damage(folder)
    with pytest.raises(InputError, match=message):
        MaskedLMDataArguments(prepared=[str(folder)])


def test_a_changed_page_is_noticed(tokenizer, tmp_path):
    folder = shutil.copytree(tokenizer.parent, tmp_path / "copy")
    shard = folder / "train-00000.parquet"
    content = bytearray(shard.read_bytes())
    content[200] ^= 1
    shard.write_bytes(content)
    corpus = Corpus.prepared([str(folder)])
    with pytest.raises(InputError, match="train-00000.parquet is damaged"):
        corpus.block(0)


def test_another_tokenizer_is_refused(texts, tokenizer, tmp_path):
    assert prepared(texts, "mlm", "other", "--vocab_size", 290, tokenizer=None) == 0
    with pytest.raises(InputError, match="prepared with different tokenizers"):
        MaskedLMDataArguments(prepared=[str(tokenizer.parent), str(texts / "other")])
    task = MaskedLMTask(MaskedLMDataArguments(prepared=[str(texts / "other")]))
    with pytest.raises(InputError, match="is not the one that the data were prepared with"):
        prepared_tokenizer(task, Corpus.prepared([str(texts / "other")]), str(tokenizer))
    shutil.rmtree(texts / "other" / "tokenizer")
    shutil.copytree(tokenizer, texts / "other" / "tokenizer")
    with pytest.raises(InputError, match="it was changed since"):
        prepared_tokenizer(task, Corpus.prepared([str(texts / "other")]), None)
    assert pretrained_tokenizer(str(tokenizer)).vocab_size == 300


def test_an_interrupted_preparation_leaves_nothing(texts, tokenizer, tmp_path, monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(ShardWriter, "_close", interrupt)
    before = sorted(texts.iterdir())
    assert prepared(texts, "mlm", "broken", tokenizer=tokenizer) == 130
    assert sorted(texts.iterdir()) == before


@pytest.mark.slow
def test_a_killed_preparation_leaves_nothing_that_looks_whole(texts, tokenizer):
    with (texts / "long.txt").open("w", encoding="utf-8") as stream:
        for _ in range(60):
            stream.write((texts / "book.txt").read_text("utf-8"))
    options = ["--train_file", texts / "long.txt", "--tokenizer", tokenizer, "--num_proc", "2"]
    options += ["--output_dir", texts / "killed", "--shard_size", "0.1"]
    command = [sys.executable, "-m", "hf_roformer_lite.cli", "prepare", "causal", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not list(texts.glob(".killed.unfinished-*/train-00000.parquet")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (texts / "killed").exists()
    with pytest.raises(InputError):
        LanguageModelDataArguments(prepared=[str(texts / "killed")])
    assert main([*command[3:], "--num_proc", "1"]) == 0 and not list(texts.glob(".killed*"))
    assert read_manifest(texts / "killed").tokens > 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixture": [1.0, 2.0]}, "--mixture 1 2 needs a number for each directory"),
        ({"mixture": [0.0]}, "--mixture=0.0 must be above 0"),
        ({"block_size": 64}, "--block_size 64 has no effect beside --prepared"),
        ({"validation_fraction": 0.1}, "--validation_fraction 0.1 has no effect beside --prepared"),
        ({"packing": 12}, "--packing 12 is below the length of the blocks, 16"),
        ({"streaming": True}, "--streaming has no effect beside --prepared"),
        ({"train_file": ["x.txt"]}, "give either --train_file or --dataset_name or --prepared"),
    ],
)
def test_options_beside_prepared(tokenizer, options, message):
    with pytest.raises(InputError, match=message):
        MaskedLMDataArguments(prepared=[str(tokenizer.parent)], **options)


def test_the_other_task_is_refused(tokenizer):
    with pytest.raises(InputError, match="was prepared for mlm; this is causal"):
        LanguageModelDataArguments(prepared=[str(tokenizer.parent)])


def test_an_existing_directory_is_refused(texts, tokenizer, capsys):
    assert prepared(texts, "mlm", "first", tokenizer=tokenizer) == 2
    assert "first exists; remove it, or choose a new directory" in capsys.readouterr().err
