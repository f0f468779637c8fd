"""`roformer-lite predict`: the predictions of a model of any task for the lines of a text, or for a
column of a table."""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO, TypeVar

from tqdm import tqdm
from transformers import set_seed

from ..answers import SavedModel, open_model
from ..data.data_files import (
    Row,
    begins_with_mark,
    delimiter_of,
    file_format,
    header_of,
    lines_of,
    numbered_lines,
    read_lines,
    read_table,
    row_of,
)
from ..data.tables import TableWriter, with_answer
from ..errors import InputError
from ..options.models import SEED
from ..output import complete_file
from ..recipes.base import Recipe
from ..recipes.loaded_model import Input
from .predict_options import ReadingArguments

# This many batches are read ahead, because lines of similar length share a batch.
_BATCHES_AT_ONCE = 32
# A pipe is read in pieces of at most this many bytes.
_PIECE_BYTES = 2**16

Item = TypeVar("Item")


def main(files: ReadingArguments, options: dict[str, Any], directory: str) -> None:
    """Run `roformer-lite predict DIR`.

    Args:
        files: The input and output.
        options: The given options about answers by name.
        directory: The model's directory, or its name on the Hub.
    """
    with ExitStack() as stack:
        if files.output_file is None:
            output = utf8_output()
        else:
            output = stack.enter_context(complete_file(files.output_file, "--output_file"))
        if files.input_file is None and sys.stdin is None:
            raise InputError("standard input is closed; pass --input_file")
        saved = _open(files, options, directory)
        if files.reads_table:
            _answer_table(saved, files, files.input_file or "", options, output)
        else:
            _answer_lines(saved, files, options, output)


def predictions(
    files: ReadingArguments,
    options: dict[str, Any],
    directory: str,
    inputs: Iterable[Any] = (),
) -> list[dict[str, Any]]:
    """The table that `main` would write.

    Args:
        files, options, directory: As for `main`, without an output file.
        inputs: Texts, pairs of texts, lists of words or rows of a table by column, if there is no
            input file.

    Raises:
        InputError: also for a row without the column of the texts, and with a column of the answer.
    """
    saved = _open(files, options, directory)
    recipe = saved.recipe
    columns = _columns_to_answer(recipe, files)
    if files.input_file is None:
        rows = _rows_of(inputs, columns, recipe.takes_pairs)
    elif files.reads_table:
        rows = read_table(files.input_file, files.column_names, files.delimiter)
    else:
        rows = read_lines(files.input_file)
        columns = []
    return [
        with_answer(row, cells, files.prefix or "")
        for chunk in _chunks(rows, files.batch_size * _BATCHES_AT_ONCE)
        for row, cells in _answered(saved, chunk, columns, files.batch_size, options)
    ]


def _rows_of(inputs: Iterable[Any], columns: list[str], are_pairs: bool) -> Iterator[Row]:
    """Rows of a table from texts or rows."""
    for number, given in enumerate(inputs, start=1):
        if not isinstance(given, Mapping):
            parts = given if are_pairs and not isinstance(given, str) else [given]
            given = dict(zip(columns, parts, strict=False))
        yield row_of(dict(given), f"row {number}")


def _open(files: ReadingArguments, options: dict[str, Any], directory: str) -> SavedModel:
    saved = open_model(directory, files.device, options, files.engine)
    if files.dtype == "bfloat16":
        saved.model.bfloat16()
    set_seed(options.pop("seed", SEED))
    return saved


def utf8_output() -> TextIO:
    """Standard output, in UTF-8 like all files, whatever the encoding of the terminal.

    Raises:
        InputError: if it is closed.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed; pass --output_file")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return sys.stdout


def _columns_to_answer(recipe: Recipe, files: ReadingArguments) -> list[str]:
    """The columns of a table that contain the inputs of the model: those of the training data by
    default."""
    given = [files.text_column, files.text_pair_column]
    return [name or trained for name, trained in zip(given, recipe.text_columns(), strict=False)]


def _answer_lines(
    saved: SavedModel, files: ReadingArguments, options: dict[str, Any], output: TextIO
) -> None:
    recipe = saved.recipe
    size = files.batch_size * _BATCHES_AT_ONCE
    lines, pipe = _open_lines(files.input_file)
    with _progress(files.input_file) as bar:
        for chunk in _chunks(lines, size, pipe):
            inputs = [_input_of_line(recipe, line) for line in chunk]
            for answer in saved.answers(inputs, files.batch_size, options, bar.update):
                line = "" if answer is None else recipe.show(answer, options).line
                output.write(line + "\n")
            output.flush()


def _answer_table(
    saved: SavedModel,
    files: ReadingArguments,
    path: str,
    options: dict[str, Any],
    output: TextIO,
) -> None:
    table = _table_of_answers(files, path, output)
    prefix = files.prefix or ""
    columns = _columns_to_answer(saved.recipe, files)
    rows = read_table(path, files.column_names, files.delimiter)
    with _progress(path) as bar:
        for chunk in _chunks(rows, files.batch_size * _BATCHES_AT_ONCE):
            found = _answered(saved, chunk, columns, files.batch_size, options, bar.update)
            for row, cells in found:
                table.write(with_answer(row, cells, prefix), row["origin"])
            output.flush()
    has_header = table.kind == ".jsonl" or bool(table.columns)
    if not has_header and Path(path).is_file():
        # The table has no rows.
        header = header_of(path, files.column_names, files.delimiter)
        cells = dict.fromkeys(saved.recipe.answer_columns(options))
        table.begin(with_answer(header, cells, prefix))


def _answered(
    saved: SavedModel,
    rows: list[Row],
    columns: list[str],
    batch_size: int,
    options: dict[str, Any],
    report: Callable[[int], Any] | None = None,
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Rows of a table with the columns of their answers.

    Args:
        saved: The model.
        rows: The rows. Without `columns`, each is a line of text.
        columns: The columns that contain the inputs.
        batch_size: Rows in a batch.
        options: The options of the predictions.
        report: As for `SavedModel.answers`.
    """
    recipe = saved.recipe
    if columns:
        inputs = [recipe.input_of_columns(row, columns) for row in rows]
    else:
        inputs = [_input_of_line(recipe, row["text"]) for row in rows]
    answers = saved.answers(inputs, batch_size, options, report)
    for row, answer in zip(rows, answers, strict=True):
        cells: dict[str, Any] = dict.fromkeys(recipe.answer_columns(options))
        if answer is not None:
            cells = recipe.show(answer, options).columns
        yield row, cells


def _input_of_line(recipe: Recipe, line: str) -> Input:
    return recipe.input_of_line(line) if line.strip() else ""


def _table_of_answers(files: ReadingArguments, path: str, output: TextIO) -> TableWriter:
    """The table to write. It has the format of the input, including the delimiter and the byte
    order mark, unless `--output_file` has another suffix."""
    kind = file_format(files.output_file or path)
    delimiter = None
    if kind == file_format(path) != ".jsonl":
        delimiter = files.delimiter
        # The beginning of a pipe cannot be read twice.
        if Path(path).is_file():
            delimiter = delimiter or delimiter_of(path, files.column_names)
            if begins_with_mark(path):
                output.write("\ufeff")
    return TableWriter(output, kind, delimiter)


class Pipe:
    """The lines of a pipe or a terminal, which may arrive one at a time.

    Args:
        stream: The buffered bytes of the input.
        name: The name of the input in error messages.
    """

    def __init__(self, stream: io.BufferedReader, name: str):
        self.stream = stream
        self.name = name
        self.arrived = b""

    @property
    def has_line(self) -> bool:
        """Whether the next line can be read without waiting."""
        return b"\n" in self.arrived

    def lines(self) -> Iterator[str]:
        """The lines without line ends."""
        return (line.rstrip("\r\n") for _, line in lines_of(self, self.name))

    def readline(self, limit: int) -> bytes:
        """The next line, or a part of at least `limit` bytes if it is longer; empty at the end."""
        while not self.has_line and len(self.arrived) < limit:
            piece = self.stream.read1(_PIECE_BYTES)
            if not piece:
                break
            self.arrived += piece
        line, end, self.arrived = self.arrived.partition(b"\n")
        return line + end


def _open_lines(path: str | None) -> tuple[Iterator[str], Pipe | None]:
    """The lines of a file, of a named pipe or of standard input, and the pipe if it is one."""
    if path is not None and (Path(path).is_file() or path.endswith(".gz")):
        return (line for _, line in numbered_lines(path)), None
    # The type of standard input does not say that it is buffered.
    stream: Any = sys.stdin.buffer if path is None else open(path, "rb")
    pipe = Pipe(stream, path or "<stdin>")
    return pipe.lines(), pipe


def _chunks(items: Iterable[Item], size: int, pipe: Pipe | None = None) -> Iterator[list[Item]]:
    """Lists of up to `size` items, or of the lines of a pipe that have arrived."""
    chunk: list[Item] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size or (pipe is not None and not pipe.has_line):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _progress(path: str | None) -> tqdm:
    """The number of answers on standard error, if that is a terminal and the input is a file."""
    is_shown = path is not None and Path(path).is_file() and sys.stderr.isatty()
    return tqdm(unit=" texts", delay=1, disable=not is_shown)
