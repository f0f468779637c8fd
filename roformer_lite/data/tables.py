"""Writes tables as .csv, .tsv or .jsonl files, for example the rows of an input file together with
the answers to them."""

import csv
import json
import re
from dataclasses import dataclass, field
from typing import Any, TextIO

from ..errors import InputError
from .data_files import DELIMITERS, Row

# A .tsv file has no quotation marks, so its fields cannot contain these characters.
_BREAK = re.compile(r"\t|\r\n|\r|\n")
# The csv module does not quote a carriage return, at which readers would end the line, and readers
# might recognise another delimiter in a header without quotation marks.
_QUOTED = re.compile(f"[\r{DELIMITERS}]")


@dataclass
class TableWriter:
    """Writes rows that all have the same columns.

    Files in .csv and .tsv format begin with a header. In them, lists and objects are written as
    JSON, and None as an empty field. In a .tsv file, tabs and line breaks become spaces.

    Args:
        stream: The file, opened for writing text.
        kind: `.csv`, `.tsv` or `.jsonl`.
        delimiter: The character between the columns of a .csv file.
    """

    stream: TextIO
    kind: str
    delimiter: str = ","
    columns: list[str] = field(default_factory=list, init=False)

    def write(self, row: dict[str, Any], origin: str = "") -> None:
        """Write a row, and before the first one the header, if the format has one.

        Args:
            row: The values by column.
            origin: The origin of the row, for error messages.

        Raises:
            InputError: if the columns differ from those of the first row. A .jsonl file takes any
                row.
        """
        if self.kind == ".jsonl":
            self.stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            return
        if not self.columns:
            self.columns = list(row)
            self._write_cells(self.columns)
        if list(row) != self.columns:
            raise InputError(
                f"{origin}: the columns are {', '.join(row)}, but those of the first row are "
                f"{', '.join(self.columns)}; write a .jsonl file, in which rows may differ"
            )
        self._write_cells(list(map(_cell, row.values())))

    def _write_cells(self, cells: list[str]) -> None:
        """Write a line. All its cells are quoted if one of them must be."""
        if self.kind == ".tsv":
            # Quotation marks have no meaning in such a file.
            self.stream.write("\t".join(_BREAK.sub(" ", cell) for cell in cells) + "\n")
            return
        is_quoted = any(map(_QUOTED.search, cells))
        writer = csv.writer(
            self.stream,
            delimiter=self.delimiter,
            lineterminator="\n",
            quoting=csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL,
        )
        writer.writerow(cells)


def with_answer(row: Row, answer: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The columns of a row of a table, followed by those of its answer.

    Raises:
        InputError: if the row already has a column of the answer.
    """
    columns = dict(row["columns"])
    for name, value in answer.items():
        name = prefix + name
        if name in columns:
            raise InputError(
                f"{row['origin']}: the table already has a column {name!r}; put a prefix before "
                "the names of the new columns, for example --prefix predicted_"
            )
        columns[name] = value
    return columns


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
