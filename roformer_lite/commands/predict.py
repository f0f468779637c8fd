"""`roformer-lite predict`: the answers of a model to lines, or to a column of a table, whatever its
task."""

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TextIO, TypeVar

from ..data.data_files import file_format, lines_of, numbered_lines, read_table
from ..errors import (
    LARGEST_BATCH,
    MOST_BEAMS,
    InputError,
    check_file,
    check_model_name,
    check_number,
)
from ..output import complete_file
from ..predict.engines import FASTEST, check_engine
from ..predict.tables import AnswerTable, check_table_name, table_stream
from .command_parser import CommandParser

if TYPE_CHECKING:
    from ..predict.predictor import Predictor

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

    input_file: str | None = field(
        default=None, metadata={"help": "UTF-8 text, also .gz. Default: standard input."}
    )
    output_file: str | None = field(
        default=None,
        metadata={
            "help": (
                "Where to write; a table goes to a .csv, .tsv or .jsonl file, also .gz. Default: "
                "standard output."
            )
        },
    )
    text_column: str | None = field(
        default=None,
        metadata={
            "help": (
                "Column to answer: the input file is a table (.csv, .tsv, .jsonl), and so is what "
                "is written. Default: every line of the input is a text."
            )
        },
    )
    text_pair_column: str | None = field(
        default=None, metadata={"help": "Column of the second text, for classifiers of pairs."}
    )
    column_names: list[str] | None = field(
        default=None,
        metadata={"help": "Names of the columns of .tsv and .csv files that have no header line."},
    )
    prefix: str | None = field(
        default=None,
        metadata={"help": "Text before the names of the columns that are added to a table."},
    )
    batch_size: int = field(default=32, metadata={"help": "Texts in a batch."})
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, cuda:1 … Default: cuda if there is one."}
    )
    dtype: Literal["float32", "bfloat16"] = field(
        default="float32",
        metadata={
            "help": (
                "bfloat16 is faster on some processors; probabilities change in the third decimal."
            )
        },
    )
    engine: Literal["torch", "onnx", "openvino", "ctranslate2", "auto"] = field(
        default="torch",
        metadata={
            "help": (
                "What computes. All but torch read what `roformer-lite export` wrote. auto: of "
                "torch and the folders onnx, openvino and ctranslate2 in DIR, the fastest that "
                "answers 32 of the first texts as torch does."
            )
        },
    )

    def __post_init__(self):
        check_number("batch_size", self.batch_size, at_least=1, at_most=LARGEST_BATCH)
        if self.dtype != "float32" and self.engine != "torch":
            raise InputError(
                f"--dtype {self.dtype} is for --engine torch; others compute as they were exported"
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

    top_k: int | None = field(
        default=None,
        metadata={
            "help": (
                "classify: this many labels, the most probable first. causal: sample among this "
                "many of the most probable tokens. Default: one label; all tokens."
            )
        },
    )
    threshold: float | None = field(
        default=None,
        metadata={
            "help": (
                "classify: a label less probable than this is not given. Default: with one label "
                "for each text none, with several 0.5."
            )
        },
    )
    none_label: str | None = field(
        default=None,
        metadata={"help": "classify: what stands for a label below the threshold. Default: -"},
    )
    beams: int | None = field(
        default=None,
        metadata={
            "help": "seq2seq, causal: beams of the search. Default: as saved with the model."
        },
    )
    max_new_tokens: int | None = field(
        default=None,
        metadata={
            "help": (
                "seq2seq, causal: largest number of generated tokens. Default: causal 50, "
                "otherwise as saved with the model."
            )
        },
    )
    greedy: bool = field(
        default=False,
        metadata={"help": "causal: the most probable token each time, no sampling."},
    )
    temperature: float | None = field(
        default=None,
        metadata={"help": "causal: below 1 the probable tokens become more probable. Default: 0.8"},
    )
    top_p: float | None = field(
        default=None,
        metadata={
            "help": (
                "causal: sample among the most probable tokens that have this probability. "
                "Default: 0.95"
            )
        },
    )
    repetition_penalty: float | None = field(
        default=None,
        metadata={
            "help": "causal: above 1, tokens that stand in the text already become less probable."
        },
    )
    seed: int | None = field(
        default=None,
        metadata={"help": f"causal: the same seed gives the same text again. Default: {SEED}"},
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
        check_engine("torch" if files.engine == FASTEST else files.engine, paths.dir, files.device)

        from transformers import set_seed
        from transformers.utils.logging import disable_progress_bar

        from ..predict.predictor import Predictor

        disable_progress_bar()  # of loading the weights
        logging.getLogger("roformer_lite.predict").setLevel(logging.INFO)  # which engine is taken
        predictor = Predictor.load(paths.dir, files.device, options, files.engine)
        if files.dtype == "bfloat16":
            predictor.saved.model.bfloat16()
        set_seed(options.pop("seed", SEED))
        answer = _answer_lines if files.text_column is None else _answer_table
        answer(predictor, files, options, output)


def _answer_lines(
    predictor: "Predictor", files: ReadingArguments, options: dict[str, Any], output: TextIO
) -> None:
    if files.input_file and file_format(files.input_file) in (".csv", ".jsonl"):
        logger.warning(
            "%s is read line by line; --text_column reads a column of it", files.input_file
        )
    interactive = not files.input_file and sys.stdin.isatty()
    chunks = _chunks(_lines(files), 1 if interactive else files.batch_size * _BATCHES_AT_ONCE)
    with table_stream(output, files.output_file or "") as stream, _progress(files, _lines) as bar:
        for chunk in chunks:
            for answer in predictor.answer(chunk, files.batch_size, options, bar.update):
                stream.write(answer.line + "\n")
            stream.flush()


def _answer_table(
    predictor: "Predictor", files: ReadingArguments, options: dict[str, Any], output: TextIO
) -> None:
    kind = file_format(files.output_file or files.input_file)
    columns = predictor.answers.columns(options)
    with table_stream(output, files.output_file or "") as stream, _progress(files, _rows) as bar:
        table = AnswerTable(stream, kind, columns, files.prefix or "")
        for rows in _chunks(_rows(files), files.batch_size * _BATCHES_AT_ONCE):
            inputs = [
                predictor.answers.input_of(row, files.text_column, files.text_pair_column)
                for row in rows
            ]
            for row in rows:
                table.check(row)
            answers = predictor.answer(inputs, files.batch_size, options, bar.update)
            for row, answer in zip(rows, answers, strict=True):
                table.write(row, answer.columns)
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
