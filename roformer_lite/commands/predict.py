"""`roformer-lite predict`: the answers of a model to lines, or to a column of a table, whatever its
task."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO, TypeVar

from transformers.hf_argparser import HfArg

from ..command_parser import CommandParser
from ..data.data_files import TABLE_FORMATS, file_format, lines_of, numbered_lines, read_table
from ..errors import (
    LARGEST_BATCH,
    MOST_BEAMS,
    InputError,
    check_file,
    check_model_name,
    check_number,
)
from ..export.formats import Engine, check_engine
from ..output import complete_file
from ..tables import AnswerTable, check_table_name, table_stream

if TYPE_CHECKING:
    from ..answers import SavedModel

_BATCHES_AT_ONCE = 32  # read ahead, so that lines of similar length can share a batch
SEED = 42
_COLDEST = 1e-3  # logits divided by less are infinite in float16
_SAMPLING = ("temperature", "top_p", "top_k", "seed")

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


@dataclass
class ReadingArguments:
    """What `roformer-lite predict` reads and writes, besides the model directory."""

    _argument_group_name: ClassVar[str] = "reading and writing"

    input_file: str | None = HfArg(
        default=None, help="UTF-8 text, also .gz. Default: standard input."
    )
    output_file: str | None = HfArg(
        default=None,
        help=(
            "Where to write; a table goes to a .csv, .tsv or .jsonl file, also .gz. Default: "
            "standard output."
        ),
    )
    text_column: str | None = HfArg(
        default=None,
        help=(
            "Column to answer: the input file is a table (.csv, .tsv, .jsonl), and so is what "
            "is written. Default: every line of the input is a text."
        ),
    )
    text_pair_column: str | None = HfArg(
        default=None, help="Column of the second text, for classifiers of pairs."
    )
    column_names: list[str] | None = HfArg(
        default=None, help="Names of the columns of .tsv and .csv files that have no header line."
    )
    prefix: str | None = HfArg(
        default=None, help="Text before the names of the columns that are added to a table."
    )
    batch_size: int = HfArg(default=32, help="Texts in a batch.")
    device: str | None = HfArg(
        default=None, help="cpu, cuda, cuda:1 … Default: cuda if there is one."
    )
    dtype: Literal["float32", "bfloat16"] = HfArg(
        default="float32",
        help="bfloat16 is faster on some processors; probabilities change in the third decimal.",
    )
    engine: Engine = HfArg(
        default="torch",
        help="The library that computes. onnx reads what `roformer-lite export` wrote.",
    )

    def __post_init__(self):
        check_number("batch_size", self.batch_size, at_least=1, at_most=LARGEST_BATCH)
        if self.dtype != "float32" and self.engine != "torch":
            raise InputError(
                f"--dtype {self.dtype} is for --engine torch; graphs compute as they were exported"
            )
        if self.input_file is not None:
            check_file("input_file", self.input_file, may_be_pipe=True)
        if self.text_column is None:
            for name in ("text_pair_column", "column_names", "prefix"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"--{name} is for tables, not for lines; name the column to answer with --text_column"
                    )
        elif self.input_file is None:
            raise InputError(
                f"--text_column {self.text_column} needs --input_file, the table that has it"
            )
        else:
            check_table_name("--input_file", self.input_file)
            if self.output_file is not None:
                check_table_name("--output_file", self.output_file)


@dataclass
class AnsweringArguments:
    """How a model answers. Each option is for some tasks, and refused by models of the others."""

    _argument_group_name: ClassVar[str] = "answers"

    top_k: int | None = HfArg(
        default=None,
        help=(
            "classify: this many labels, the most probable first. causal: sample among this "
            "many of the most probable tokens. Default: one label; all tokens."
        ),
    )
    threshold: float | None = HfArg(
        default=None,
        help=(
            "classify: a label less probable than this is not given. Default: with one label "
            "for each text none, with several 0.5."
        ),
    )
    none_label: str | None = HfArg(
        default=None, help="classify: what stands for a label below the threshold. Default: -"
    )
    beams: int | None = HfArg(
        default=None, help="seq2seq, causal: beams of the search. Default: as saved with the model."
    )
    max_new_tokens: int | None = HfArg(
        default=None,
        help=(
            "seq2seq, causal: largest number of generated tokens. Default: causal 50, "
            "otherwise as saved with the model."
        ),
    )
    greedy: bool = HfArg(
        default=False, help="causal: the most probable token each time, no sampling."
    )
    temperature: float | None = HfArg(
        default=None, help="causal: below 1 the probable tokens become more probable. Default: 0.8"
    )
    top_p: float | None = HfArg(
        default=None,
        help=(
            "causal: sample among the most probable tokens that have this probability. "
            "Default: 0.95"
        ),
    )
    repetition_penalty: float | None = HfArg(
        default=None,
        help="causal: above 1, tokens that stand in the text already become less probable.",
    )
    seed: int | None = HfArg(
        default=None, help=f"causal: the same seed gives the same text again. Default: {SEED}"
    )

    def __post_init__(self):
        for name in ("top_k", "max_new_tokens"):
            check_number(name, getattr(self, name), at_least=1)
        check_number("beams", self.beams, at_least=1, at_most=MOST_BEAMS)
        check_number("threshold", self.threshold, at_least=0, at_most=1)
        check_number("temperature", self.temperature, at_least=_COLDEST)
        check_number(
            "repetition_penalty", self.repetition_penalty, at_least=_COLDEST, at_most=1 / _COLDEST
        )
        check_number("top_p", self.top_p, above=0, at_most=1)
        check_number("seed", self.seed, at_least=0, at_most=2**32 - 1)
        if self.greedy and self.beams is not None:
            raise InputError("--greedy can't be combined with --beams; give one of them")
        searching = "--greedy" if self.greedy else "--beams" if self.beams is not None else ""
        sampling = [name for name in _SAMPLING if getattr(self, name) is not None]
        if searching and sampling:
            raise InputError(
                f"--{sampling[0]} can't be combined with {searching}, which draws nothing at random"
            )

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by their names."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if value is not None and value is not False
        }


def main(argv: list[str]) -> None:
    """Run `roformer-lite predict DIR`."""
    parser = CommandParser(
        "predict",
        "Read lines, or a column of a table, and write one answer for each: generated text, label and probability, or "
        "tagged tokens, depending on the task of the model.",
        [ReadingArguments, AnsweringArguments],
        DIR="the model's directory, or its name on the Hub",
    )
    files, answering, paths = parser.parse(argv)
    options = answering.given
    if files.text_pair_column is not None:
        options["text_pair_column"] = files.text_pair_column
    with ExitStack() as stack:
        output = sys.stdout
        if files.output_file:  # opened before the model is loaded, which takes seconds
            output = stack.enter_context(complete_file(files.output_file, "--output_file"))
        check_model_name(paths.dir)
        check_engine(files.engine, paths.dir, files.device)

        from transformers import set_seed
        from transformers.utils.logging import disable_progress_bar

        from ..answers import open_model

        disable_progress_bar()  # Loading the weights would show one.
        saved = open_model(paths.dir, files.device, options, files.engine)
        if files.dtype == "bfloat16":
            saved.model.bfloat16()
        set_seed(options.pop("seed", SEED))
        columns = columns_to_answer(saved, files)
        if columns:
            _answer_table(saved, files, columns, options, output)
        else:
            _answer_lines(saved, files, options, output)


def columns_to_answer(saved: "SavedModel", files: ReadingArguments) -> list[str]:
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
    saved: "SavedModel", files: ReadingArguments, options: dict[str, Any], output: TextIO
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
    saved: "SavedModel",
    files: ReadingArguments,
    columns: list[str],
    options: dict[str, Any],
    output: TextIO,
) -> None:
    recipe = saved.recipe
    kind = file_format(files.output_file or files.input_file)
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
    from tqdm import tqdm

    return tqdm(
        total=sum(1 for _ in read(files)) if shown else None,
        unit=" texts",
        delay=1,
        disable=not shown,
    )
