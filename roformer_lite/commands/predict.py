"""`roformer-lite predict`: the answers of a model to lines, or to a column of a table, whatever its
task."""

import io
import logging
import os
import select
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO, TypeVar

from tqdm import tqdm
from transformers import set_seed

from ..answers import SavedModel, open_model
from ..command_options import SEED, ReadingArguments
from ..data.data_files import TABLE_FORMATS, file_format, lines_of, numbered_lines, read_table
from ..errors import InputError
from ..output import complete_file
from ..tables import AnswerTable, table_stream

# Read ahead, so that lines of similar length can share a batch.
_BATCHES_AT_ONCE = 32
# A pipe is read in chunks of this many bytes. If no line arrives for this many seconds, the lines
# that have been read are processed.
_AT_ONCE = 2**14
_PAUSE = 0.1

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


def main(files: ReadingArguments, options: dict[str, Any], directory: str) -> None:
    """Run `roformer-lite predict DIR`.

    Args:
        files: What to read and to write.
        options: Of those about answers, the ones that were given.
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
            _answer_lines(saved, files, options, output)


def utf8_output() -> TextIO:
    """Standard output, in UTF-8 as all files are, whatever the encoding of the terminal.

    Raises:
        InputError: when it is closed.
    """
    if sys.stdout is None:
        raise InputError("standard output is closed; give --output_file")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return sys.stdout


def columns_to_answer(saved: SavedModel, files: ReadingArguments) -> list[str]:
    """The columns of a table that hold what is to be answered; none where every line of the input
    is a text.

    Without options a table is read by the columns that the model was trained on, if it has them.
    """
    if files.text_column is not None:
        columns = [files.text_column]
        if files.text_pair_column is not None:
            columns.append(files.text_pair_column)
        return columns
    if files.input_file is None or file_format(files.input_file) not in TABLE_FORMATS:
        return []
    if not Path(files.input_file).is_file():  # The beginning of a pipe is read only once.
        return []
    trained = saved.recipe.text_columns()
    try:
        first = next(_rows(files), {})
    except InputError:
        first = {}
    if all(name in first for name in trained):
        logger.warning(
            "%s is read as a table, by the column %s", files.input_file, " and ".join(trained)
        )
        return trained
    if file_format(files.input_file) != ".tsv":
        logger.warning(
            "%s is read line by line; --text_column reads a column of it", files.input_file
        )
    return []


def _answer_lines(
    saved: SavedModel, files: ReadingArguments, options: dict[str, Any], output: TextIO
) -> None:
    recipe = saved.recipe
    size = files.batch_size * _BATCHES_AT_ONCE
    pipe = _pipe_of(files)
    with table_stream(output, files.output_file or "") as stream, _progress(files, _lines) as bar:
        for lines in _chunks(_lines(files, pipe), size, pipe):
            inputs = [recipe.input_of_line(line) if line.strip() else "" for line in lines]
            for answer in saved.answers(inputs, files.batch_size, options, bar.update):
                line = "" if answer is None else recipe.show(answer, options).line
                stream.write(line + "\n")
            stream.flush()


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
    new_columns = recipe.answer_columns(options)
    with table_stream(output, files.output_file or "") as stream, _progress(files, _rows) as bar:
        table = AnswerTable(stream, kind, new_columns, files.prefix or "")
        for rows in _chunks(_rows(files), files.batch_size * _BATCHES_AT_ONCE):
            inputs = [recipe.input_of_columns(row, columns) for row in rows]
            for row in rows:
                table.check(row)
            answers = saved.answers(inputs, files.batch_size, options, bar.update)
            for row, answer in zip(rows, answers, strict=True):
                cells = dict.fromkeys(new_columns)
                if answer is not None:
                    cells = recipe.show(answer, options).columns
                table.write(row, cells)
            stream.flush()


def _rows(files: ReadingArguments) -> Iterator[dict[str, Any]]:
    return read_table(files.input_file, files.column_names)


class Pipe:
    """What arrives through a pipe or from a terminal, and whether more of it is there.

    Args:
        number: Of the open file.
    """

    def __init__(self, number: int):
        self.number = number
        self.arrived = b""

    def readline(self, limit: int) -> bytes:
        """The next line, or as much of it as the limit allows; nothing at the end."""
        while b"\n" not in self.arrived and len(self.arrived) < limit:
            more = os.read(self.number, _AT_ONCE)
            if not more:
                break
            self.arrived += more
        end = min(self.arrived.find(b"\n") + 1 or limit, limit)
        line = self.arrived[:end]
        self.arrived = self.arrived[end:]
        return line

    def has_more(self) -> bool:
        """Whether another line is there, or something comes within a moment, be it the end."""
        if b"\n" in self.arrived:
            return True
        try:
            ready, _, _ = select.select([self.number], [], [], _PAUSE)
        except OSError:  # Windows can ask only sockets.
            return True
        return bool(ready)


def _pipe_of(files: ReadingArguments) -> Pipe | None:
    """Standard input, whatever it is, or a pipe with a name; None where a file is read."""
    if files.input_file is not None:
        is_read_whole = Path(files.input_file).is_file() or files.input_file.endswith(".gz")
        return None if is_read_whole else Pipe(os.open(files.input_file, os.O_RDONLY))
    try:
        return Pipe(sys.stdin.fileno())
    except OSError:  # Another program calls this one with an input of its own.
        return None


def _lines(files: ReadingArguments, pipe: Pipe | None = None) -> Iterator[str]:
    name = files.input_file or "<stdin>"
    if pipe is None and files.input_file is not None:
        return (line for _, line in numbered_lines(name))
    stream: Any = sys.stdin.buffer if pipe is None else pipe
    return (line.rstrip("\r\n") for _, line, _ in lines_of(stream, name))


def _chunks(items: Iterable[Item], size: int, pipe: Pipe | None = None) -> Iterator[list[Item]]:
    """Lists of up to `size` items; of a pipe, those that are there when nothing more comes."""
    chunk: list[Item] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size or (pipe is not None and not pipe.has_more()):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _progress(files: ReadingArguments, read: Any) -> Any:
    """A bar on standard error, where that is a terminal and the input a file, which can be read
    twice."""
    shown = (
        files.input_file is not None and Path(files.input_file).is_file() and sys.stderr.isatty()
    )
    return tqdm(
        total=sum(1 for _ in read(files)) if shown else None,
        unit=" texts",
        delay=1,
        disable=not shown,
    )
