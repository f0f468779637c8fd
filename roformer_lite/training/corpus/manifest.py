"""What a prepared directory says of itself. Nothing here imports more than the standard library."""

import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin

from ...errors import InputError

MANIFEST_FILE = "prepared.json"  # a directory without it is not prepared data
TOKENIZER_FOLDER = "tokenizer"
_FORMAT = 1
_SHARD_NAME = re.compile(r"train-[0-9]+\.parquet")


def held_out_file(split: str) -> str:
    """The file with the rows of a split that is measured, as text."""
    return f"{split}.parquet"


@dataclass(frozen=True)
class Shard:
    """A Parquet file of blocks, whose row groups are the chunks that are read at a time."""

    name: str
    bytes: int
    tokens: int
    rows: list[int]  # blocks of each row group


@dataclass(frozen=True)
class Manifest:
    """The contents of `prepared.json`."""

    task: str  # mlm or causal
    block_size: int
    tokenizer: str  # its fingerprint
    digest: str  # of all token ids, by which a continued training knows the data again
    documents: int
    text_bytes: int  # of the documents, in UTF-8
    blocks: int
    tokens: int
    shards: list[Shard]
    held_out: dict[str, int]  # rows of validation and test, which are there as text
    options: dict  # of the command
    version: str  # of this package
    format: int = _FORMAT

    def write(self, folder: Path) -> None:
        (folder / MANIFEST_FILE).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a prepared directory, whose shards are all there in their full length.

    Raises:
        InputError: when it is no prepared directory, of another version, or a shard is missing or cut.
    """
    given, path = f"--prepared {folder}", Path(folder) / MANIFEST_FILE
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(
            f"{given}: there is no {MANIFEST_FILE} that can be read ({error.strerror}); give a directory that "
            "`roformer-lite prepare` has finished"
        ) from error
    except ValueError as error:
        raise InputError(f"{given}: {path} is damaged ({error}); prepare the data again") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise InputError(f"{given} was prepared by another version of this package; prepare the data again")
    try:
        shards = [Shard(**shard) for shard in content.pop("shards")]
        manifest = Manifest(shards=shards, **content)
    except (TypeError, KeyError, AttributeError) as error:
        known = ", ".join(field.name for field in fields(Manifest))
        raise InputError(f"{given}: {path} is damaged; it should have {known}. Prepare the data again") from error
    wrong = [*_wrong_fields(manifest), *(name for shard in shards for name in _wrong_fields(shard))]
    if not wrong and any(not _SHARD_NAME.fullmatch(shard.name) for shard in shards):  # nor one elsewhere
        wrong = ["name"]
    if wrong:
        raise InputError(f"{given}: {path} is damaged: {wrong[0]} has a wrong value; prepare the data again")
    for shard in manifest.shards:
        _check_shard(Path(folder) / shard.name, shard, given)
    return manifest


def _wrong_fields(made: Manifest | Shard) -> list[str]:
    return [field.name for field in fields(made) if not _fits(getattr(made, field.name), field.type)]


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON is of a kind such as `dict[str, int]`. A number counts something, at least one; a
    list is not empty."""
    kind, inner = get_origin(kind) or kind, get_args(kind)
    if type(value) is not kind:  # a bool is no int
        return False
    if kind is int:
        return value > 0
    parts = value.values() if kind is dict else value
    return not inner or ((kind is dict or len(value) > 0) and all(_fits(part, inner[-1]) for part in parts))


def _check_shard(path: Path, shard: Shard, given: str) -> None:
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise InputError(f"{given}: the shard {path} is missing; copy it again or prepare the data again") from error
    if size != shard.bytes:
        raise InputError(
            f"{given}: the shard {path} has {size:,} bytes and should have {shard.bytes:,}; copy it again or prepare "
            "the data again"
        )
