"""Tables of answers: a row of the input followed by the answer's columns, as .csv, .tsv or
.jsonl."""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from .data.data_files import TABLE_FORMATS, Row, columns_of, file_format
from .errors import InputError


def check_table_name(option: str, path: str) -> None:
    """Refuse a file that is no table by its name.

    Raises:
        InputError: naming the option and the suffixes of tables.
    """
    if file_format(path) not in TABLE_FORMATS:
        raise InputError(
            f"{option} {path}: a table needs a name that ends in {', '.join(TABLE_FORMATS)} "
            "(or .gz)"
        )


@contextmanager
def table_stream(stream: TextIO, path: str) -> Iterator[TextIO]:
    """Where to write a table: `stream`, which was opened for `path`, or what compresses into it for
    a path in .gz."""
    if Path(path).suffix.lower() != ".gz":
        yield stream
        return
    packed: Any = gzip.GzipFile(fileobj=stream.buffer, mode="wb", filename="", mtime=0)
    with io.TextIOWrapper(packed, encoding="utf-8") as compressed:
        yield compressed


class TableWriter:
    """Writes rows of the same columns, in .csv and .tsv files below a header.

    Lists and objects are JSON in .csv and .tsv files, and None is an empty field.

    Args:
        stream: Where to write.
        kind: `.csv`, `.tsv` or `.jsonl`.
    """

    def __init__(self, stream: TextIO, kind: str):
        self.stream = stream
        self.kind = kind
        self._has_header = False

    def write(self, columns: dict[str, Any]) -> None:
        """Write a row; no field of a .tsv file may have a tab or line break."""
        if self.kind == ".jsonl":
            self.stream.write(json.dumps(columns, ensure_ascii=False) + "\n")
            return
        if not self._has_header:
            self._write_cells(list(columns))
            self._has_header = True
        self._write_cells([_cell(value) for value in columns.values()])

    def _write_cells(self, cells: list[str]) -> None:
        if self.kind == ".tsv":
            self.stream.write("\t".join(cells) + "\n")
            return
        # The writer would leave a carriage return bare, and readers would end the line there.
        has_return = any("\r" in cell for cell in cells)
        quoting = csv.QUOTE_ALL if has_return else csv.QUOTE_MINIMAL
        csv.writer(self.stream, lineterminator="\n", quoting=quoting).writerow(cells)


class AnswerTable:
    """Writes the rows of a table with their answers in new columns after them.

    A .tsv file has no way to write a tab or a line break. In answers they become spaces; rows with
    one are refused.

    Args:
        stream: Where to write.
        kind: `.csv`, `.tsv` or `.jsonl`.
        answer_columns: Names of the columns of every answer.
        prefix: Stands before these names.
    """

    def __init__(self, stream: TextIO, kind: str, answer_columns: Sequence[str], prefix: str = ""):
        self.writer = TableWriter(stream, kind)
        self.kind = kind
        self.prefix = prefix
        self.new = [prefix + name for name in answer_columns]
        self._first: list[str] = []  # The columns of the first row.

    def check(self, row: Row) -> None:
        """Refuse a row that cannot be written, before it is answered.

        Raises:
            InputError: when the row has a column of the answer's name, other columns than the first
                row, or a tab or line break that a .tsv file cannot hold.
        """
        columns = columns_of(row)
        taken = [name for name in self.new if name in columns]
        if taken:
            raise InputError(
                f"{row['origin']}: the table has a column {taken[0]!r} already; put a prefix before the names of "
                "the answer's columns, for example --prefix predicted_"
            )
        if self.kind == ".jsonl":
            return
        self._first = self._first or list(columns)
        if list(columns) != self._first:
            raise InputError(
                f"{row['origin']}: the columns are {', '.join(columns)}, those of the first row "
                f"{', '.join(self._first)}; write a .jsonl file, where rows may differ"
            )
        for name, value in columns.items():
            if self.kind == ".tsv" and _is_broken(_cell(value)):
                raise InputError(
                    f"{row['origin']}: column {name!r} holds a tab or a line break, which a .tsv file cannot; write "
                    "a .csv or .jsonl file"
                )

    def write(self, row: Row, answer: dict[str, Any]) -> None:
        """Write a row that was checked, with its answer."""
        columns = columns_of(row)
        for name, value in answer.items():
            if self.kind == ".tsv" and _is_broken(_cell(value)):
                value = " ".join(_cell(value).split())
            columns[self.prefix + name] = value
        self.writer.write(columns)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _is_broken(cell: str) -> bool:
    return any(character in cell for character in "\t\r\n")
