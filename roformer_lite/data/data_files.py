"""Reading text files as rows. Every error message about the data names the file and the line.

A row is a dictionary with the `columns` of the file by name and the `origin`, the place it came
from, written as `file:line`. All files are UTF-8, plain or compressed (`.gz`). One line at a time
is held in memory, and lines that are too long for one text raise an error.
"""

import csv
import gzip
import json
import math
import re
import reprlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError, did_you_mean

Row = dict[str, Any]

TABLE_FORMATS = (".tsv", ".csv", ".jsonl")
# Tables in other formats, which are never read as lines of text.
OTHER_TABLES = ".json .ndjson .jsonlines .parquet .xls .xlsx .ods .tab .psv .conll .conllu".split()
# These delimiters of a .csv file are recognised. If several are equally likely, the first one is
# chosen.
DELIMITERS = ",;\t|"
# The column names of a table may contain line breaks, but do not span more lines than this.
MAX_HEADER_LINES = 20
# JSON can escape surrogates, but no encoding can write them.
_SURROGATE = re.compile("[\ud800-\udfff]")
# This is the largest number of float32.
MAX_NUMBER = (2 - 2**-23) * 2.0**127
# The limit also holds for a field of a .csv file. The tokens and tensors of a line need a hundred
# times as much memory as its text.
MAX_LINE_BYTES = 2**24
_CONVERSION = (
    "save it as UTF-8 (in Excel, as CSV UTF-8), or convert it, for example with `iconv -f "
    "WINDOWS-1252 -t UTF-8`, or from UTF-16 or GB18030"
)
_IN_QUOTES = re.compile(r'"[^"]*"')


def file_format(path: str | Path) -> str:
    """The suffix that determines how `path` is read, in lower case and without `.gz`; `.tsv` for
    `train.TSV.gz`."""
    path = Path(str(path).lower())
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def read_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """The origin `file:line` of each line of a file, and the line without its end. The first line
    has no byte order mark.

    Raises:
        InputError: if the file cannot be opened or decompressed, is empty, or has a line that is
            not UTF-8, or longer than 16 MiB.
    """
    for origin, line in _read(path):
        yield origin, line.rstrip("\r\n")


def _read(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file like `lines_of`."""
    number = 0
    try:
        with _opened(path) as stream:
            for line in lines_of(stream, str(path)):
                number += 1
                yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be decompressed after line {number}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if number == 0:
        raise InputError(f"{path}: the file is empty")


def _opened(path: str | Path) -> BinaryIO:
    open_file: Any = gzip.open if Path(path).suffix.lower() == ".gz" else open
    return open_file(path, "rb")


def begins_with_mark(path: str | Path) -> bool:
    """Whether a file begins with a byte order mark, from which Excel recognises UTF-8."""
    with _opened(path) as stream:
        return stream.read(3) == "\ufeff".encode()


def lines_of(stream: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    """Yield the origin `name:line` of each line, and the line with its end.

    Args:
        stream: Bytes of UTF-8.
        name: The name of the stream in messages.
    """
    for number in count(1):
        raw = stream.readline(MAX_LINE_BYTES)
        if not raw:
            return
        origin = f"{name}:{number}"
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            raise InputError(
                f"{origin}: the line is longer than {MAX_LINE_BYTES:,} bytes, too long for "
                "one text; divide it into lines"
            )
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{origin}: {error}; {_CONVERSION}") from error
        if number == 1:
            # Some programs write more than one byte order mark.
            text = text.lstrip("\ufeff")
            if b"\0" in raw[:2]:
                raise InputError(f"{origin}: begins with {raw[:2]!r}; {_CONVERSION}")
        yield origin, text


def read_table(path: str | Path, column_names: Sequence[str] | None = None) -> Iterator[Row]:
    """Rows of a .tsv, .csv or .jsonl file.

    Args:
        path: A .csv file follows RFC 4180 (fields in double quotes may hold delimiters and line
            breaks), with the delimiter that `delimiter_of` recognises. In a .tsv file every
            character except tab and line end is text, even quotes. A .jsonl file has one object on
            each line.
        column_names: Names of the columns of a .tsv or .csv file *without* a header line. Default:
            the first line names them.

    Raises:
        InputError: for any other format, for a line whose columns do not match the header, and for
            a line of a .jsonl file that is not a JSON object.
    """
    kind = file_format(path)
    if kind not in TABLE_FORMATS:
        raise InputError(
            f"{path}: unknown table format {kind or '(no suffix)'!r}; pass a .csv or .tsv file "
            "whose first line names the columns, or a .jsonl file with an object on each line, "
            "also compressed as .gz (in Excel, save the table as CSV UTF-8; `paste source.txt "
            "target.txt > both.tsv` joins two files by lines)"
        )
    if kind == ".jsonl":
        return _read_objects(path)
    return _read_delimited(path, column_names)


def delimiter_of(path: str | Path, column_names: Sequence[str] | None) -> str:
    """The delimiter of a .csv file: the character among comma, semicolon, tab and vertical bar
    that occurs most often in the header, outside double quotes; with `column_names`, it is the one
    that divides the first line into as many columns. A pipe is taken to have commas.

    Raises:
        InputError: if several characters divide the first line into as many columns as are named.
    """
    # A pipe cannot be read twice.
    if not Path(path).is_file():
        return DELIMITERS[0]
    header = ""
    for _, line in islice(_read(path), MAX_HEADER_LINES):
        header += line
        # A line break between double quotes does not end the header.
        if header.strip() and header.count('"') % 2 == 0:
            break
    text = _IN_QUOTES.sub("", header)
    if column_names is None:
        return max(DELIMITERS, key=text.count)
    num_delimiters = len(column_names) - 1
    fitting = [delimiter for delimiter in DELIMITERS if text.count(delimiter) == num_delimiters]
    if num_delimiters and len(fitting) > 1:
        raise InputError(
            f"{path}: {' and '.join(map(repr, fitting))} each divide the first line into "
            f"{len(column_names)} columns; write the names into the first line of the file instead "
            "of using --column_names"
        )
    return (fitting or DELIMITERS)[0]


def _read_objects(path: str | Path) -> Iterator[Row]:
    for origin, line in read_lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{origin}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise InputError(f"{origin}: a JSON object is needed, as {{...}}, not {line[:40]!r}")
        if "\\u" in line and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
            raise InputError(
                f"{origin}: an escape such as \\ud800 is only part of a character, which is not "
                "valid text"
            )
        yield {"columns": value, "origin": origin}


def _read_delimited(path: str | Path, column_names: Sequence[str] | None) -> Iterator[Row]:
    columns = list(column_names or ())
    for origin, values in _records(path, column_names):
        if not values and len(columns) != 1:
            continue
        if not columns:
            if len(set(values)) < len(values):
                raise InputError(
                    f"{origin}: the header names a column twice: {values}; if this file has no "
                    "header line, pass --column_names"
                )
            columns = values
            continue
        # An empty line is a row in a table with one column.
        values = values or [""]
        if len(values) != len(columns):
            raise InputError(
                f"{origin}: {len(values)} columns, but there should be {len(columns)}: "
                f"{listed(columns)}"
            )
        yield {"columns": dict(zip(columns, values, strict=True)), "origin": origin}


def _records(
    path: str | Path, column_names: Sequence[str] | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the origin of the first line of each record, and its fields. An empty line has none."""
    # Quotes have no meaning in a .tsv file.
    if file_format(path) == ".tsv":
        for origin, line in read_lines(path):
            yield origin, line.split("\t") if line else []
        return
    # The default limit is 128 KiB.
    csv.field_size_limit(MAX_LINE_BYTES)
    delimiter = delimiter_of(path, column_names)
    # A line end within quotes belongs to the field.
    lines = (line for _, line in _read(path))
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    first_line = 1
    try:
        for values in records:
            yield f"{path}:{first_line}", values
            first_line = records.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}:{first_line}: {error}; a field with a double quote or a line break must stand "
            "in double quotes, and a double quote in it is doubled"
        ) from error


def read_tagged(path: str | Path) -> Iterator[Row]:
    """Rows `{"tokens", "tags", "origin"}` from a column file: one token per line, and a blank line
    after each sentence.

    The token is in the first column and the tag in the last. Columns are separated by tabs, or by
    spaces if a line has no tab. All other characters, even other white space, belong to a column.
    The `-DOCSTART-` of CoNLL-2003 is skipped.

    Raises:
        InputError: for a line without a token or a tag, and for a line with another number of
            columns than the first line.
    """
    width = 0
    for sentence in _sentences(path):
        row: Row = {"tokens": [], "tags": []}
        for origin, fields in sentence:
            if fields[0] == "-DOCSTART-":
                continue
            width = width or len(fields)
            if len(fields) < 2 or len(fields) != width:
                raise InputError(
                    f"{origin}: the number of columns is {len(fields)}, and {width} in the first "
                    "line; every line needs as many columns as the first, and at least two: the "
                    "token in the first and the tag in the last, separated by a tab or spaces "
                    "(remove comments)"
                )
            for name, field in (("token", fields[0]), ("tag", fields[-1])):
                if not field.strip():
                    raise InputError(f"{origin}: the {name} is empty")
            row.setdefault("origin", origin)
            row["tokens"].append(fields[0])
            row["tags"].append(fields[-1])
        if row["tokens"]:
            yield row


def _sentences(path: str | Path) -> Iterator[list[tuple[str, list[str]]]]:
    """The lines between blank lines, as origin and columns."""
    lines = ((origin, fields_of(line)) for origin, line in read_lines(path))
    for has_fields, sentence in groupby(lines, key=lambda line: any(line[1])):
        if has_fields:
            yield list(sentence)


def fields_of(line: str) -> list[str]:
    """The columns of a line, which tabs separate, or spaces if there is no tab.

    `str.split` would also split at no-break spaces, as in `10 000`, and at other white space inside
    tokens.
    """
    if "\t" in line:
        return line.split("\t")
    return [field for field in line.split(" ") if field]


def value_of(row: Row, column: str, option: str = "") -> Any:
    """The value of `column`, which may be a path into nested objects, such as `translation.en`. An
    error names the `option` that chooses the column.

    Raises:
        InputError: if the row has no such column; it lists the existing ones.
    """
    columns = row["columns"]
    if column in columns:
        return columns[column]
    value: Any = columns
    for part in column.split("."):
        if not isinstance(value, dict) or part not in value:
            remedy = f"name the right one with --{option}, or " if option else ""
            raise InputError(
                f"{row['origin']}: no column {column!r}; the columns are: {listed(columns)}; "
                f"{remedy}pass --column_names if the file has no header line"
                f"{did_you_mean(column, columns)}"
            )
        value = value[part]
    return value


def listed(columns: Iterable[str]) -> str:
    """The names of columns for a message, in which invisible characters are escaped."""
    return ", ".join(name if name.isprintable() else repr(name) for name in columns)


def number_of(row: Row, column: str, option: str = "") -> float:
    """The value of `column` as a number; `option` as for `value_of`.

    Raises:
        InputError: if it is not a number that float32, and therefore a model, can represent.
    """
    value = value_of(row, column, option)
    try:
        # Python would read 2020_1 as the number 20201.
        number = math.nan if "_" in str(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    # The comparison is also false for NaN.
    if abs(number) <= MAX_NUMBER:
        return number
    raise InputError(f"{row['origin']}: column {column!r} must be a number, not {value!r}")


def text_of(row: Row, column: str, option: str = "") -> str:
    """The value of `column`, which must be text, without surrounding spaces; `option` as for
    `value_of`. The null of JSON is an empty text."""
    value = value_of(row, column, option)
    if value is None:
        return ""
    if not isinstance(value, str):
        shown = reprlib.repr(value)
        raise InputError(f"{row['origin']}: column {column!r} must be text, not {shown}")
    return value.strip()
