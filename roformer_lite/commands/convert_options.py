"""The options of `roformer-lite convert`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError, check_directory
from ..options.parser import CommandParser
from ..output import new_directory

EXAMPLES_OF_FAMILIES = "bert, roberta, modernbert, llama or bart"
# This stands for the family in config.json, or for one that supports all features of a model.
AUTO = "auto"
SOURCE_HELP = (
    f"The family or system that CHECKPOINT comes from, such as {EXAMPLES_OF_FAMILIES}; {AUTO}: the "
    "family that its config.json names. An unknown name prints a list of all."
)
CHECKPOINT_HELP = "a directory with config.json and weights"


@dataclass
class ConvertArguments:
    """Options of `roformer-lite convert`.

    Attributes:
        source: The system that the checkpoint comes from, or `auto`. None if neither direction was
            chosen.
        target: The family to convert a RoFormerLite model to, or `auto`.
    """

    source: str | None = field(
        default=None, metadata={"name": "from", "metavar": "SYSTEM", "help": SOURCE_HELP}
    )
    target: str | None = field(
        default=None,
        metadata={
            "name": "to",
            "metavar": "FAMILY",
            "help": (
                "The family to convert a RoFormerLite model to, such as "
                f"{EXAMPLES_OF_FAMILIES}; {AUTO}: one that supports all features of the model. An "
                "unknown name prints a list of all."
            ),
        },
    )

    def __post_init__(self):
        if self.source is not None and self.target is not None:
            raise InputError("--from can't be combined with --to; pass only one of them")


def parse(argv: Sequence[str]) -> tuple[ConvertArguments, str, Path]:
    """The options of `roformer-lite convert`, the checkpoint, and the new directory."""
    parser = CommandParser(
        "convert",
        f"Convert a checkpoint of a family such as {EXAMPLES_OF_FAMILIES}, or of another system, "
        "into a RoFormerLite model (--from), or a RoFormerLite model into a checkpoint of a family "
        "(--to). Without either option, a RoFormerLite model is converted to a family that supports "
        "it, and anything else becomes a RoFormerLite model. OUT must be new or empty.",
        [ConvertArguments],
        CHECKPOINT=CHECKPOINT_HELP,
        OUT="the directory to write",
    )
    options, checkpoint, out = parser.parse(argv)
    check_directory(checkpoint)
    return options, checkpoint, new_directory(out)
