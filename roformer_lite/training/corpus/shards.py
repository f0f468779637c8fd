"""Shards of token ids: Parquet files whose row groups are written and read one at a time.

A row group holds about 130,000 tokens, so that neither side ever holds more than a few of them. Files are read, not
mapped into memory, because mapped pages count as memory of the process.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from ...errors import InputError
from .manifest import Manifest, Shard

CHUNK_TOKENS = 2**17
_ROWS_AT_A_TIME = 1000
_OPEN_SHARDS = 128  # of a directory; systems allow a process from 256 open files on
_SCHEMA = pa.schema([("input_ids", pa.list_(pa.int32())), ("length", pa.int32())])


class ShardWriter:
    """Writes blocks of token ids into shards.

    Args:
        folder: Where the shards go, a directory.
        shard_tokens: A shard is closed when it has this many tokens.
    """

    def __init__(self, folder: Path, shard_tokens: int):
        self.folder, self.shard_tokens = folder, shard_tokens
        self.shards: list[Shard] = []
        self.blocks, self.tokens = 0, 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._chunk: list[np.ndarray] = []
        self._chunk_tokens, self._shard_rows, self._shard_tokens = 0, [], 0
        self._file: pq.ParquetWriter | None = None

    def write(self, blocks: Iterable[np.ndarray]) -> None:
        """Add blocks in their order, and finish the last shard."""
        for block in blocks:
            self._chunk.append(block)
            self._chunk_tokens += len(block)
            if self._chunk_tokens >= CHUNK_TOKENS:
                self._write_chunk()
        if self._chunk:
            self._write_chunk()
        self._close()

    @property
    def digest(self) -> str:
        """A hash of all blocks so far."""
        return self._digest.hexdigest()

    def _write_chunk(self) -> None:
        lengths = np.array([len(block) for block in self._chunk], dtype=np.int32)
        ids = np.concatenate(self._chunk).astype(np.int32)
        self._digest.update(lengths.tobytes() + ids.tobytes())
        offsets = np.concatenate(([0], lengths.cumsum())).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
        if self._file is None:
            path = self.folder / f"train-{len(self.shards):05d}.parquet"
            # Dictionaries and zstd: 1.6 bytes a token of a vocabulary of 8,192, and read faster than any model learns.
            self._file = pq.ParquetWriter(
                path, _SCHEMA, compression="zstd", write_page_checksum=True, write_statistics=False
            )
        self._file.write_table(pa.Table.from_arrays([lists, pa.array(lengths)], schema=_SCHEMA))
        self._shard_rows.append(len(lengths))
        self._shard_tokens += len(ids)
        self.blocks, self.tokens = self.blocks + len(lengths), self.tokens + len(ids)
        self._chunk, self._chunk_tokens = [], 0
        if self._shard_tokens >= self.shard_tokens:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            path = self.folder / f"train-{len(self.shards):05d}.parquet"
            self.shards.append(Shard(path.name, path.stat().st_size, self._shard_tokens, self._shard_rows))
            self._file, self._shard_rows, self._shard_tokens = None, [], 0


class PreparedBlocks:
    """The blocks of a prepared directory, read a chunk at a time.

    Args:
        folder: The directory.
        manifest: What it says of itself.
    """

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder, self.shards, self.tokens = folder, manifest.shards, manifest.tokens
        self.rows = np.array([rows for shard in self.shards for rows in shard.rows])  # blocks of each chunk
        self._first_chunks = np.cumsum([0, *(len(shard.rows) for shard in self.shards)])
        self._files: dict[int, pq.ParquetFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}  # each process opens its own

    def lengths(self, chunk: int) -> np.ndarray:
        """Tokens of each block of a chunk."""
        return self._read(chunk, "length").to_numpy()

    def read(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """The token ids of a chunk, `(tokens,)`, and where its blocks begin and end there, `(blocks + 1,)`."""
        return ids_and_borders(self._read(chunk, "input_ids"))

    def _read(self, chunk: int, column: str) -> pa.ChunkedArray:
        number = int(np.searchsorted(self._first_chunks, chunk, side="right")) - 1
        path = self.folder / self.shards[number].name
        try:
            if number not in self._files:
                if len(self._files) == _OPEN_SHARDS:
                    self._files.pop(next(iter(self._files))).close()  # the one that was opened first
                self._files[number] = pq.ParquetFile(path, page_checksum_verification=True)
            group = chunk - int(self._first_chunks[number])
            return self._files[number].read_row_group(group, columns=[column], use_threads=False).column(0)
        except (OSError, pa.ArrowException, IndexError) as error:
            code = getattr(error, "errno", None)
            if code:  # of the system, such as too many open files; what pyarrow finds wrong in a file has none
                raise InputError(f"the shard {path} cannot be read: {os.strerror(code)}") from error
            raise InputError(f"the shard {path} is damaged ({error}); copy it again or prepare it again") from error


class StoredBlocks:
    """The encoded training data of a task, as `Blocks` of a corpus."""

    def __init__(self, dataset: Dataset):
        self._dataset = dataset.with_format("arrow", columns=["input_ids"])
        self._starts = np.array([*range(0, len(dataset), _ROWS_AT_A_TIME), len(dataset)])
        self.rows = np.diff(self._starts)
        self.tokens = sum(int(self.lengths(chunk).sum()) for chunk in range(len(self.rows)))

    def lengths(self, chunk: int) -> np.ndarray:
        return np.diff(self.read(chunk)[1])

    def read(self, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        start, end = self._starts[chunk : chunk + 2].tolist()
        return ids_and_borders(self._dataset[start:end]["input_ids"])


def ids_and_borders(lists: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Lists in one array, and where each begins and ends there."""
    array = lists.combine_chunks()
    lengths = array.value_lengths().to_numpy()
    return array.flatten().to_numpy(), np.concatenate(([0], lengths.cumsum()))
