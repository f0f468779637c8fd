"""The options of `roformer-lite evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TRAINING_PACKAGES, InputError, check_file, check_number, require_packages
from ..options.common import TableArguments, given_options
from ..options.models import MODEL_HELP, DeviceArguments
from ..options.parser import CommandParser


@dataclass(frozen=True)
class EvaluateArguments(TableArguments, DeviceArguments):
    """Options of `roformer-lite evaluate`, except the model directory and `MeasuringArguments`.

    Args:
        test_file: Labelled data in the format of the training data, also .gz; several are read one
            after another.
        batch_size: Rows in a batch. Default: the size used in the evaluation after training, or
            64.
    """

    test_file: list[str] | None = None
    batch_size: int | None = None

    def __post_init__(self):
        if self.test_file is None:
            raise InputError("pass --test_file, the labelled data")
        for path in self.test_file:
            check_file("test_file", path)
        check_number("batch_size", self.batch_size, minimum=1)


@dataclass(frozen=True)
class MeasuringArguments:
    """The options of `train` that determine how labelled data are read and evaluated, for all tasks
    together, except lengths. None stands for the value in the model's training.

    Args:
        source_column: seq2seq: Column of the input text.
        target_column: seq2seq: Column of the output text.
        bleu_tokenizer: seq2seq: Tokenizer of sacrebleu: zh for Chinese targets, char for other
            languages without spaces.
        text_column: mlm, causal, classify: Column of the text in tables.
        line_by_line: mlm, causal: Every line of a .txt file is a document.
        mlm_probability: mlm: Fraction of the tokens to mask and predict.
        text_pair_column: classify: Column of a second text, for pairs.
        label_column: classify: Column of the label.
        label_separator: classify: Text between several labels of one row.
        token_column: tag: Column of the tokens in .jsonl files.
        tag_column: tag: Column of the tags in .jsonl files.
    """

    group = "reading and measuring (default for models of `train`: as in their training)"

    source_column: str | None = None
    target_column: str | None = None
    bleu_tokenizer: str | None = None
    text_column: str | None = None
    line_by_line: bool | None = None
    mlm_probability: float | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    token_column: str | None = None
    tag_column: str | None = None


def parse(
    words: Sequence[str], *others: Mapping[str, Any]
) -> tuple[EvaluateArguments, dict[str, Any], str]:
    """The own options of `roformer-lite evaluate`, the given options about reading and evaluating
    data, and the directory of the model. Python passes `others` instead of words."""
    parser = CommandParser(
        "evaluate",
        "Evaluate a trained model on labelled data: the metrics of its model card, scores by "
        "label, and the worst predictions.",
        [EvaluateArguments, MeasuringArguments],
        DIR=MODEL_HELP,
    )
    own, measuring, directory = parser.parse(words, *others)
    require_packages("evaluating", TRAINING_PACKAGES)
    return own, given_options(measuring), directory
