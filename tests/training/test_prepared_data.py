"""`roformer-lite prepare`: the blocks that training would make, held-out rows, and what is refused."""

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

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.training.corpus.corpus import Corpus
from roformer_lite.training.corpus.hold_out import hold_out
from roformer_lite.training.corpus.manifest import read_manifest
from roformer_lite.training.corpus.shards import ShardWriter
from roformer_lite.training.corpus.stream import TextStream
from roformer_lite.training.corpus.tokenising import tokenised
from roformer_lite.training.language_model_arguments import LanguageModelDataArguments, MaskedLMDataArguments
from roformer_lite.training.model_and_tokenizer import prepared_tokenizer
from roformer_lite.training.pretrained import pretrained_tokenizer
from roformer_lite.training.source import Source
from roformer_lite.training.splits import load_splits
from roformer_lite.training.tasks.language_model import CausalLMTask, MaskedLMTask, blocks

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
    monkeypatch.setattr("roformer_lite.training.corpus.shards.CHUNK_TOKENS", 500)
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


def test_a_dataset_gives_the_blocks_of_its_file(texts, tokenizer):
    """A folder of data stands in for a name on the Hub: `datasets` loads both by the same call."""
    (texts / "dataset").mkdir()
    shutil.copy(texts / "rows.jsonl", texts / "dataset" / "train.jsonl")
    assert prepared(texts, "mlm", "of-file", tokenizer=tokenizer) == 0
    options = ["--num_proc", "1", "--block_size", "16", "--tokenizer", str(tokenizer)]
    name = str(texts / "dataset")
    assert main(["prepare", "mlm", "--dataset_name", name, *options, "--output_dir", str(texts / "of-name")]) == 0
    of_file, of_name = (Corpus.prepared([str(texts / folder)]) for folder in ("of-file", "of-name"))
    assert len(of_file) == len(of_name) > 300
    assert all(of_file.block(number) == of_name.block(number) for number in range(len(of_file)))


@pytest.mark.slow
def test_two_processes_make_the_same_as_one(texts, tokenizer, monkeypatch):
    monkeypatch.setattr("roformer_lite.training.corpus.tokenising._BATCH_CHARACTERS", 2_000)
    for number in (1, 2):
        assert prepared(texts, "mlm", f"by-{number}", "--num_proc", number, tokenizer=tokenizer) == 0
    assert read_manifest(texts / "by-1").digest == read_manifest(texts / "by-2").digest


def test_held_out_rows_are_those_of_a_training_on_the_files(texts, tokenizer, tmp_path):
    files = ("rows.jsonl", "book.txt")  # the lines of the second one are no documents
    assert prepared(texts, "causal", "held", tokenizer=tokenizer, files=files) == 0
    task = CausalLMTask(LanguageModelDataArguments(train_file=[str(texts / file) for file in files], block_size=16))
    rows = load_splits(task, task.args, tmp_path, seed=0)
    held = Dataset.from_parquet(str(texts / "held" / "validation.parquet"))
    assert held.to_list() == rows["validation"].to_list()
    manifest = read_manifest(texts / "held")
    assert manifest.held_out == {"validation": len(held)} and len(held) > 50
    assert manifest.text_bytes == sum(len(text.encode()) for text in rows["train"]["text"])


@pytest.mark.parametrize(("most", "amount"), [(5, 5), (5, 3), (50, 4), (0, 0)])
def test_hold_out(most, amount):
    rows = [{"text": str(number)} for number in range(30)]
    held: deque = deque()
    kept = list(hold_out(iter(rows), held, most, lambda number: amount))
    assert len(held) == amount and kept + list(held) == rows


@pytest.mark.slow
def test_a_new_process_prepares(texts, tokenizer):
    """One that has imported nothing yet: a circle of imports shows in no other."""
    options = ["--train_file", texts / "rows.jsonl", "--tokenizer", tokenizer, "--num_proc", 1]
    options += ["--shard_size", 1, "--output_dir", texts / "by-itself"]
    command = [sys.executable, "-m", "roformer_lite.cli", "prepare", "mlm", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "and 1 shard, in" in done.stdout and read_manifest(texts / "by-itself").blocks > 0


def test_blank_text_is_refused(tmp_path, capsys):
    (tmp_path / "blank.txt").write_text(" \n\n", "utf-8")
    assert prepared(tmp_path, "causal", "none", "--vocab_size", 300, tokenizer=None, files=("blank.txt",)) == 2
    assert "blank.txt: there is no row with text" in capsys.readouterr().err


def test_a_process_that_ends_is_reported(texts, tokenizer, monkeypatch):
    monkeypatch.setattr("roformer_lite.training.corpus.tokenising._load", os._exit)  # its folder is no number
    rows = [{"text": "a river", "document": "one"}]
    with pytest.raises(InputError, match="one of the 2 processes that tokenise has ended.*a smaller --num_proc"):
        list(tokenised(rows, pretrained_tokenizer(str(tokenizer)), tokenizer, 2))


def test_a_model_notes_how_its_text_was_read(texts, tokenizer, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        (texts / "rows.jsonl").read_text("utf-8").replace('"text"', '"body"'), "utf-8"
    )
    assert prepared(tmp_path, "mlm", "data", "--text_column", "body", tokenizer=tokenizer) == 0
    data, other = str(tmp_path / "data"), str(tokenizer.parent)
    small = "--config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 --max_steps 1"
    options = [*small.split(), "--size", "tiny", "--use_cpu", "true", "--output_dir", str(tmp_path / "model")]
    assert main(["train", "mlm", "--prepared", data, *options]) == 0
    assert json.loads((tmp_path / "model" / "results.json").read_text("utf-8"))["settings"]["text_column"] == "body"
    assert MaskedLMDataArguments(prepared=[other, data], text_column="body").text_column == "body"
    measured = MaskedLMDataArguments(prepared=[data], test_file=[str(texts / "rows.jsonl")])
    assert measured.text_column == "text"
    with pytest.raises(InputError, match="--text_column title has no effect beside --prepared"):
        MaskedLMDataArguments(prepared=[data], text_column="title")


def test_blocks_of_two_lengths_are_learnt_together(texts, tokenizer, tmp_path):
    folders = [str(tokenizer.parent), str(tmp_path / "longer")]
    options = ["--train_file", texts / "rows.jsonl", "--tokenizer", tokenizer, "--num_proc", 1, "--block_size", 48]
    assert main(["prepare", "mlm", *map(str, options), "--output_dir", folders[1]]) == 0
    task = MaskedLMTask(MaskedLMDataArguments(prepared=folders))
    assert task.args.block_size == 48
    rows = load_splits(task, task.args, tmp_path / "cache", seed=0)
    prepared_tokenizer(task, rows["train"], None)
    manifests = [read_manifest(folder) for folder in folders]
    assert len(rows["train"]) == sum(manifest.blocks for manifest in manifests)
    assert len(set(rows["validation"]["document"])) == sum(manifest.held_out["validation"] for manifest in manifests)


def test_a_change_in_the_middle_of_a_stream_is_noticed(tmp_path):
    def digest() -> str:
        return TextStream(None, Source("text", None), 0, LanguageModelDataArguments(train_file=[str(path)])).digest

    path = tmp_path / "text.txt"
    content = bytearray(b"a river\n" * 2**18)
    path.write_bytes(content)
    before = digest()
    content[2**20 + 2**19 : 2**20 + 2**19 + 2**16] = b"b" * 2**16
    path.write_bytes(content)
    assert digest() != before


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
    command = [sys.executable, "-m", "roformer_lite.cli", "prepare", "causal", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not list(texts.glob(".killed.unfinished/train-00000.parquet")):
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
        ({"line_by_line": True}, "--line_by_line True has no effect beside --prepared"),
        ({"packing": 12}, "--packing 12 is below the length of the blocks, 16"),
        ({"streaming": True}, "--streaming has no effect beside --prepared"),
        ({"train_file": ["x.txt"]}, "give either --train_file or --dataset_name or --prepared"),
    ],
)
def test_options_beside_prepared(tokenizer, options, message):
    with pytest.raises(InputError, match=message):
        MaskedLMDataArguments(prepared=[str(tokenizer.parent)], **options)


def test_a_block_of_no_tokens_is_refused(texts):
    with pytest.raises(InputError, match="--block_size=0 must be at least 8"):
        LanguageModelDataArguments(train_file=[str(texts / "book.txt")], packing=64, block_size=0)


def test_the_other_task_is_refused(tokenizer):
    with pytest.raises(InputError, match="was prepared for mlm; this is causal"):
        LanguageModelDataArguments(prepared=[str(tokenizer.parent)])


def test_an_existing_directory_is_refused(texts, tokenizer, capsys):
    assert prepared(texts, "mlm", "first", tokenizer=tokenizer) == 2
    assert "first exists; remove it, or choose a new directory" in capsys.readouterr().err
