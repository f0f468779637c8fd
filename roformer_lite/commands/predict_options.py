"""The options of `roformer-lite predict`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..data.data_files import OTHER_TABLES, TABLE_FORMATS, file_format
from ..errors import InputError, check_file, check_number
from ..options.common import MAX_SEED, TableArguments, given_options, refuse_ignored
from ..options.models import MODEL_HELP, DeviceArguments
from ..options.parser import CommandParser


@dataclass(frozen=True)
class ReadingArguments(TableArguments, DeviceArguments):
    """The input and output of `roformer-lite predict`, in addition to the model directory.

    Args:
        input_file: UTF-8 text, also .gz. Default: standard input.
        output_file: File for the predictions. A table is written to a .csv, .tsv or .jsonl file.
            Default: standard output.
        text_column: Column of the texts if the input is a table (.csv, .tsv, .jsonl); the output is
            a table as well. Without a table, every line is a text. Default: the column of the
            training data.
        text_pair_column: Column of the second text, for rerankers and classifiers of pairs.
            Default: the column of the training data.
        prefix: Prefix for the names of the columns that are added to a table.
        batch_size: Texts in a batch.
    """

    group = "reading and writing"

    input_file: str | None = None
    output_file: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    prefix: str = ""
    batch_size: int = 32

    def __post_init__(self):
        check_number("batch_size", self.batch_size, minimum=1)
        if self.input_file is not None:
            check_file("input_file", self.input_file, may_be_pipe=True)
        if self.output_file is not None:
            source = os.path.realpath(self.input_file or "<stdin>")
            is_input = os.path.realpath(self.output_file) == source
            if is_input or self.output_file.endswith(".gz"):
                raise InputError(
                    f"--output_file {self.output_file} is the input or a .gz file; pass another "
                    "name, and compress the file later"
                )

    @property
    def reads_table(self) -> bool:
        """Whether the input is a table. Otherwise, every line of it is a text."""
        return file_format(self.input_file or "") in (*TABLE_FORMATS, *OTHER_TABLES)

    def check_tables(self) -> None:
        """Reject options of tables for input that is read line by line.

        Raises:
            InputError: with the option and the remedy.
        """
        if self.reads_table:
            target = self.output_file
            if target is not None and file_format(target) not in TABLE_FORMATS:
                raise InputError(
                    f"--output_file {target}: a table needs a name that ends in "
                    f"{', '.join(TABLE_FORMATS)}"
                )
            return
        refuse_ignored(
            self,
            ("text_column", "text_pair_column", "prefix", "column_names"),
            given="lines of text",
            why="which are no table; --input_file must be a .csv, .tsv or .jsonl file",
        )
        if file_format(self.output_file or "") in (".csv", ".jsonl"):
            raise InputError(
                f"--output_file {self.output_file} is a table, but the input is read line by line; "
                "pass the name of a text file, or a table as --input_file"
            )


@dataclass(frozen=True)
class AnsweringArguments:
    """Options of the predictions. Each applies to some tasks, and is an error with other models.

    Args:
        top_k: classify: return this many labels, the most probable first. Default: one label.
        threshold: classify: write `-` instead of a label with a lower probability, or leave it out
            if a text may have several labels. Default: the threshold that the training chose; if it
            chose none, 0.5 for texts with several labels, and no threshold for texts with one.
            With --top_k, there is no default for texts with several labels.
        beams: seq2seq, causal: number of beams; 1 always chooses the most probable token. Default:
            as saved with the model; causal models sample.
        max_new_tokens: seq2seq, causal: maximum number of generated tokens. Default: causal 50,
            otherwise as saved with the model.
        seed: causal: seed of the sampling. Default: 42
    """

    group = "answers"

    top_k: int | None = None
    threshold: float | None = None
    beams: int | None = None
    max_new_tokens: int | None = None
    seed: int | None = None

    def __post_init__(self):
        for name in ("top_k", "max_new_tokens", "beams"):
            check_number(name, getattr(self, name), minimum=1)
        check_number("threshold", self.threshold, minimum=0, maximum=1)
        check_number("seed", self.seed, minimum=0, maximum=MAX_SEED)
        if self.beams is not None:
            given = f"--beams {self.beams}"
            refuse_ignored(self, ["seed"], given, why="which does not sample")


def parse(
    words: Sequence[str], *others: Mapping[str, Any], has_rows: bool = False
) -> tuple[ReadingArguments, dict[str, Any], str]:
    """The options of `roformer-lite predict`.

    Args:
        words: The words of the command line.
        has_rows: Whether the input is a table in Python instead of a file.
        *others: Options that Python passes instead of words.

    Returns:
        The options about input and output, the given options of the predictions, and the directory
        of the model.
    """
    parser = CommandParser(
        "predict",
        "Read lines, or a column of a table, and write one prediction for each: a label "
        "and its probability, a number, tags, text, a vector or a score, depending on the model.",
        [ReadingArguments, AnsweringArguments],
        DIR=MODEL_HELP,
    )
    files, answering, directory = parser.parse(words, *others)
    if not has_rows:
        files.check_tables()
    options = given_options(answering)
    if files.text_pair_column is not None:
        options["text_pair_column"] = files.text_pair_column
    target = files.output_file
    if target is not None and os.path.isfile(target):
        if Path(os.path.realpath(directory)) in Path(os.path.realpath(target)).parents:
            raise InputError(
                f"--output_file {target} is a file of the model {directory}, which would be "
                "overwritten; pass another name"
            )
    return files, options, directory
