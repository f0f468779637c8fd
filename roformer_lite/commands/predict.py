"""`roformer-lite predict`: the answers of a model to lines, or to a column of a table, whatever its
task."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
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
        output = sys.stdout
        if files.output_file is not None:
            output = stack.enter_context(complete_file(files.output_file, "--output_file"))
        saved = open_model(directory, files.device, options, files.engine)
        if files.dtype == "bfloat16":
            saved.model.bfloat16()
        set_seed(options.pop("seed", SEED))
        columns = columns_to_answer(saved, files)
        if columns:
            _answer_table(saved, files, columns, options, output)
        else:
            _answer_lines(saved, files, options, output)


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
    interactive = not files.input_file and sys.stdin.isatty()
    size = 1 if interactive else files.batch_size * _BATCHES_AT_ONCE
    with table_stream(output, files.output_file or "") as stream, _progress(files, _lines) as bar:
        for lines in _chunks(_lines(files), size):
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


def _lines(files: ReadingArguments) -> Iterator[str]:
    if files.input_file:
        return (line for _, line in numbered_lines(files.input_file))
    return (line for _, line, _ in lines_of(sys.stdin.buffer, "<stdin>"))


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    items = iter(items)
    while chunk := list(islice(items, size)):
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
