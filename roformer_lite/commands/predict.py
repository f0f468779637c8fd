"""`roformer-lite predict`: the predictions of a model of any task for the lines of a text, or for a
column of a table."""

import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm
from transformers import set_seed

from ..answers import SavedModel, open_model
from ..data.data_files import (
    Row,
    begins_with_mark,
    delimiter_of,
    file_format,
    lines_of,
    read_lines,
    read_table,
)
from ..data.tables import TableWriter, with_answer
from ..errors import InputError
from ..options.models import SEED
from ..output import complete_file
from ..recipes.base import Recipe, Shown
from .predict_options import ReadingArguments

# This many batches are read ahead, because lines of similar length share a batch.
_BATCHES_AT_ONCE = 32


def main(files: ReadingArguments, options: dict[str, Any], directory: str) -> None:
    """Run `roformer-lite predict DIR`.

    Args:
        files: The input and output.
        options: The given options about answers by name.
        directory: The model's directory, or its name on the Hub.
    """
    with ExitStack() as stack:
        if files.output_file is None:
            output: TextIO = sys.stdout
            if isinstance(output, io.TextIOWrapper):
                # All files are in UTF-8, whatever the encoding of the terminal.
                output.reconfigure(encoding="utf-8")
        else:
            output = stack.enter_context(complete_file(files.output_file, "--output_file"))
        rows = _rows_of_input(files)
        saved = _open(files, options, directory)
        columns = _text_columns(saved.recipe, files) if files.reads_table else []
        answered = _answered(saved, rows, columns, files, options)
        # The bar is only shown on a terminal.
        answered = tqdm(answered, unit=" texts", delay=1, disable=None)
        if files.reads_table:
            _write_table(answered, files, output)
        else:
            for _, shown in answered:
                output.write(f"{shown.line}\n")
        output.flush()


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
    columns = _text_columns(saved.recipe, files)
    if files.input_file is None:
        rows = _rows_of_values(inputs, columns, saved.recipe.takes_pairs)
    else:
        rows = _rows_of_input(files)
        columns = columns if files.reads_table else []
    return [
        with_answer(row, shown.columns, files.prefix)
        for row, shown in _answered(saved, rows, columns, files, options)
    ]


def _rows_of_values(inputs: Iterable[Any], columns: list[str], are_pairs: bool) -> Iterator[Row]:
    """Rows of a table from texts or rows."""
    for number, given in enumerate(inputs, start=1):
        if not isinstance(given, Mapping):
            parts = given if are_pairs and not isinstance(given, str) else [given]
            if len(parts) > len(columns):
                raise InputError(
                    f"row {number}: {len(parts)} texts, but this model reads {len(columns)}"
                )
            given = dict(zip(columns, parts, strict=False))
        yield {"columns": dict(given), "origin": f"row {number}"}


def _rows_of_input(files: ReadingArguments) -> Iterator[Row]:
    """The rows of a table, or the lines of a file or of standard input."""
    if files.reads_table:
        return read_table(files.input_file or "", files.column_names)
    if files.input_file is not None:
        lines = read_lines(files.input_file)
    else:
        lines = lines_of(sys.stdin.buffer, "<stdin>")
    return ({"columns": {"text": line.rstrip("\r\n")}, "origin": origin} for origin, line in lines)


def _open(files: ReadingArguments, options: dict[str, Any], directory: str) -> SavedModel:
    saved = open_model(directory, files.device, options)
    set_seed(options.pop("seed", SEED))
    return saved


def _text_columns(recipe: Recipe, files: ReadingArguments) -> list[str]:
    """The columns of a table that contain the inputs of the model: those of the training data by
    default."""
    given = [files.text_column, files.text_pair_column]
    return [name or trained for name, trained in zip(given, recipe.text_columns(), strict=False)]


def _answered(
    saved: SavedModel,
    rows: Iterable[Row],
    columns: list[str],
    files: ReadingArguments,
    options: dict[str, Any],
) -> Iterator[tuple[Row, Shown]]:
    """Rows with their predictions. Those for rows without text are empty.

    Args:
        saved: The model.
        rows: The rows. Without `columns`, each is a line of text.
        columns: The columns that contain the inputs.
        files: The options with the size of a batch.
        options: The options of the predictions.
    """
    recipe = saved.recipe
    empty = Shown(line="", columns=dict.fromkeys(recipe.answer_columns(options)))
    remaining = iter(rows)
    while chunk := list(islice(remaining, files.batch_size * _BATCHES_AT_ONCE)):
        if columns:
            inputs = [recipe.input_of_columns(row, columns) for row in chunk]
        else:
            inputs = [_input_of_line(recipe, row) for row in chunk]
        answers = saved.answers(inputs, files.batch_size, options)
        for row, answer in zip(chunk, answers, strict=True):
            yield row, empty if answer is None else recipe.show(answer, options)


def _input_of_line(recipe: Recipe, row: Row) -> Any:
    line = row["columns"]["text"]
    try:
        return recipe.input_of_line(line) if line.strip() else ""
    except InputError as error:
        raise InputError(f"{row['origin']}: {error}") from None


def _write_table(
    answered: Iterable[tuple[Row, Shown]], files: ReadingArguments, output: TextIO
) -> None:
    """Write a table. It has the format of the input, including the delimiter and the byte order
    mark, unless `--output_file` has another suffix."""
    path = files.input_file or ""
    kind = file_format(files.output_file or path)
    delimiter = ","
    # The beginning of a pipe cannot be read twice.
    if kind == file_format(path) != ".jsonl" and Path(path).is_file():
        if kind == ".csv":
            delimiter = delimiter_of(path, files.column_names)
        if begins_with_mark(path):
            output.write("\ufeff")
    table = TableWriter(output, kind, delimiter)
    row = None
    for row, shown in answered:
        table.write(with_answer(row, shown.columns, files.prefix), row["origin"])
    if row is None:
        raise InputError(f"{path}: the table has no rows")
