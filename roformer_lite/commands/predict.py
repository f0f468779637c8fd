"""`roformer-lite predict`: the predictions of a model of any task for the lines of a text, or for a
column of a table."""

import io
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from tqdm import tqdm
from transformers import set_seed

from ..answers import SavedModel, open_model
from ..data.data_files import (
    TABLE_FORMATS,
    file_format,
    header_of,
    lines_of,
    numbered_lines,
    read_table,
    value_of,
)
from ..data.tables import AnswerTable
from ..errors import InputError
from ..options.models import SEED
from ..output import complete_file
from .predict_options import ReadingArguments

# This many batches are read ahead, because lines of similar length share a batch.
_BATCHES_AT_ONCE = 32
# A pipe is read in pieces of at most this many bytes.
_PIECE_BYTES = 2**16

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


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
            raise InputError("standard input is closed; give --input_file")
        saved = open_model(directory, files.device, options, files.engine)
        if files.dtype == "bfloat16":
            saved.model.bfloat16()
        set_seed(options.pop("seed", SEED))
        columns = columns_to_answer(saved, files)
        if columns:
            _answer_table(saved, files, columns, options, output)
        else:
            if file_format(files.output_file or "") in (".csv", ".jsonl"):
                raise InputError(
                    f"--output_file {files.output_file} is a table, but the input is read line by "
                    "line; give the name of a text file, or a table as --input_file"
                )
            _answer_lines(saved, files, options, output)


def utf8_output() -> TextIO:
    """Standard output, in UTF-8 like all files, whatever the encoding of the terminal.

    Raises:
        InputError: if it is closed.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed; give --output_file")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return sys.stdout


def columns_to_answer(saved: SavedModel, files: ReadingArguments) -> list[str]:
    """The columns of a table that contain the inputs of the model; empty if every line of the input
    file is an input.

    By default, the columns are those of the training data if the table has them.
    """
    given = [files.text_column, files.text_pair_column]
    columns = [name for name in given if name is not None]
    # The beginning of a pipe cannot be read twice.
    is_file = files.input_file is not None and Path(files.input_file).is_file()
    if columns or not is_file or file_format(files.input_file) not in TABLE_FORMATS:
        return columns
    trained = saved.recipe.text_columns()
    try:
        header = header_of(files.input_file, files.column_names)
        for name in trained:
            value_of(header, name)
    except InputError:
        if files.prefix is not None or files.column_names is not None:
            raise
        if file_format(files.input_file) != ".tsv" or not saved.recipe.takes_pairs:
            logger.warning(
                "%s is read line by line; --text_column reads a column of it", files.input_file
            )
        return []
    logger.warning(
        "%s is read as a table; the input is column %s", files.input_file, " and ".join(trained)
    )
    return trained


def _answer_lines(
    saved: SavedModel, files: ReadingArguments, options: dict[str, Any], output: TextIO
) -> None:
    recipe = saved.recipe
    size = files.batch_size * _BATCHES_AT_ONCE
    pipe = _open_pipe(files.input_file)
    lines = _lines(files.input_file) if pipe is None else pipe.lines()
    with _progress(files.input_file, _lines) as bar:
        for chunk in _chunks(lines, size, pipe):
            inputs = [recipe.input_of_line(line) if line.strip() else "" for line in chunk]
            for answer in saved.answers(inputs, files.batch_size, options, bar.update):
                line = "" if answer is None else recipe.show(answer, options).line
                output.write(line + "\n")
            output.flush()


def _answer_table(
    saved: SavedModel,
    files: ReadingArguments,
    columns: list[str],
    options: dict[str, Any],
    output: TextIO,
) -> None:
    recipe = saved.recipe
    kind = file_format(files.output_file or "")
    if kind not in TABLE_FORMATS:
        kind = file_format(files.input_file)
    table = AnswerTable(output, kind, files.prefix or "")
    size = files.batch_size * _BATCHES_AT_ONCE
    read = partial(read_table, column_names=files.column_names)
    with _progress(files.input_file, read) as bar:
        for rows in _chunks(read(files.input_file), size):
            inputs = [recipe.input_of_columns(row, columns) for row in rows]
            answers = saved.answers(inputs, files.batch_size, options, bar.update)
            for row, answer in zip(rows, answers, strict=True):
                cells = dict.fromkeys(recipe.answer_columns(options))
                if answer is not None:
                    cells = recipe.show(answer, options).columns
                table.add(row, cells)
            output.flush()
    has_header = kind == ".jsonl" or bool(table.columns)
    if not has_header and Path(files.input_file).is_file():
        # The table has no rows.
        header = header_of(files.input_file, files.column_names)
        table.add_header(header, recipe.answer_columns(options))


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
        return (line.rstrip("\r\n") for _, line, _ in lines_of(self, self.name))

    def readline(self, limit: int) -> bytes:
        """The next line, or a part of at least `limit` bytes if it is longer; empty at the end."""
        while not self.has_line and len(self.arrived) < limit:
            piece = self.stream.read1(_PIECE_BYTES)
            if not piece:
                break
            self.arrived += piece
        line, end, self.arrived = self.arrived.partition(b"\n")
        return line + end


def _open_pipe(path: str | None) -> Pipe | None:
    """Standard input or a named pipe; None for a file."""
    if path is None:
        return Pipe(sys.stdin.buffer, "<stdin>")
    if Path(path).is_file() or path.endswith(".gz"):
        return None
    return Pipe(open(path, "rb"), path)


def _lines(path: str) -> Iterator[str]:
    return (line for _, line in numbered_lines(path))


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


def _progress(path: str | None, read: Callable[[str], Iterable[Any]]) -> tqdm:
    """A bar on standard error, if that is a terminal and the input is a file, which can be read
    twice."""
    total = None
    if path is not None and Path(path).is_file() and sys.stderr.isatty():
        total = sum(1 for _ in read(path))
    return tqdm(total=total, unit=" texts", delay=1, disable=total is None)
