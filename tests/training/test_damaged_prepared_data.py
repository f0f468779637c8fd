"""Prepared data that are not whole are refused, by words that say what is wrong with which file."""

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.training.corpus import shards
from roformer_lite.training.corpus.corpus import Corpus
from roformer_lite.training.corpus.shards import ShardWriter
from roformer_lite.training.language_model_arguments import MaskedLMDataArguments
from roformer_lite.training.splits import load_splits
from roformer_lite.training.tasks.language_model import MaskedLMTask


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A prepared directory, with 40 held-out rows."""
    folder = tmp_path_factory.mktemp("prepared")
    lines = "".join(f"line {n} says that {n} is a number\n" for n in range(400))
    (folder / "lines.txt").write_text(lines, "utf-8")
    options = ["--line_by_line", "--num_proc", "1", "--block_size", "16", "--vocab_size", "300"]
    files = ["--train_file", str(folder / "lines.txt"), "--output_dir", str(folder / "whole")]
    assert main(["prepare", "mlm", *files, *options]) == 0
    return folder / "whole"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: os.truncate(path, path.stat().st_size - 10), "is damaged"),
        (lambda path: Dataset.from_dict({"text": ["a"], "document": ["a"]}).to_parquet(path), "is not the file of 40"),
    ],
)
def test_held_out_rows_that_are_not_whole_are_refused(whole, tmp_path, damage, message):
    folder = shutil.copytree(whole, tmp_path / "copy")
    damage(folder / "validation.parquet")
    task = MaskedLMTask(MaskedLMDataArguments(prepared=[str(folder)]))
    with pytest.raises(InputError, match=f"validation.parquet {message}.*; copy it again or prepare the data again"):
        load_splits(task, task.args, tmp_path / "cache", seed=0)


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


def with_text_for_a_count(folder: Path) -> str:
    change(folder, tokens="many")
    return "prepared.json is damaged: tokens has a wrong value"


def with_a_count_below_one(folder: Path) -> str:
    change(folder, block_size=0)
    return "prepared.json is damaged: block_size has a wrong value"


def without_any_shard(folder: Path) -> str:
    change(folder, shards=[])
    return "prepared.json is damaged: shards has a wrong value"


def with_a_shard_elsewhere(folder: Path) -> str:
    (folder / "train-00000.parquet").rename(folder.parent / "train-00000.parquet")
    shard = json.loads((folder / "prepared.json").read_text("utf-8"))["shards"][0]
    change(folder, shards=[{**shard, "name": "../train-00000.parquet"}])
    return "prepared.json is damaged: name has a wrong value"


DAMAGES = [cut, without_shard, of_another_version, without_manifest, not_json, with_unknown_field]
DAMAGES += [with_text_for_a_count, with_a_count_below_one, without_any_shard, with_a_shard_elsewhere]


def change(folder: Path, **fields: object) -> None:
    content = json.loads((folder / "prepared.json").read_text("utf-8"))
    (folder / "prepared.json").write_text(json.dumps({**content, **fields}), "utf-8")


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_whole_is_refused(whole, tmp_path, damage):
    folder = shutil.copytree(whole, tmp_path / "copy")
    message = damage(folder)
    with pytest.raises(InputError, match=message):
        MaskedLMDataArguments(prepared=[str(folder)])


def test_a_changed_page_is_noticed(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "copy")
    shard = folder / "train-00000.parquet"
    content = bytearray(shard.read_bytes())
    content[200] ^= 1
    shard.write_bytes(content)
    corpus = Corpus.prepared([str(folder)])
    with pytest.raises(InputError, match="train-00000.parquet is damaged"):
        corpus.block(0)


def test_an_error_of_the_system_keeps_its_words(whole, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(errno.EMFILE, "Failed to open local file")

    corpus = Corpus.prepared([str(whole)])
    monkeypatch.setattr("roformer_lite.training.corpus.shards.pq.ParquetFile", fail)
    with pytest.raises(InputError, match="train-00000.parquet cannot be read: Too many open files"):
        corpus.block(0)


def test_few_shards_are_open_at_once(tmp_path, monkeypatch):
    """Blocks are those that were written, in whatever order they are read, though most shards are closed by then."""
    opened: list[pq.ParquetFile] = []

    class Noted(pq.ParquetFile):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            opened.append(self)

    monkeypatch.setattr(shards, "CHUNK_TOKENS", 3)
    monkeypatch.setattr(shards, "_OPEN_SHARDS", 2)
    monkeypatch.setattr(shards.pq, "ParquetFile", Noted)
    blocks = [np.full(3, number) for number in range(20)]
    writer = ShardWriter(tmp_path, shard_tokens=6)
    writer.write(blocks)
    prepared = shards.PreparedBlocks(tmp_path, SimpleNamespace(shards=writer.shards, tokens=writer.tokens))
    for number in [*range(20), *range(0, 20, 7), *reversed(range(20))]:
        assert prepared.read(number)[0].tolist() == blocks[number].tolist()
        assert sum(not file.closed for file in opened) <= 2
    assert len(writer.shards) == 10 and len(opened) > 20
