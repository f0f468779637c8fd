"""The options of `roformer-lite convert`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import InputError, check_directory
from ..options.parser import CommandParser
from ..output import new_directory

# This stands for the family in config.json, or for one that supports all features of a model.
AUTO = "auto"
SOURCE_HELP = (
    f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json names), or its "
    "name. An unknown name is answered with a list of all systems."
)
CHECKPOINT_HELP = "a directory with config.json and weights"


@dataclass
class ConvertArguments:
    """Options of `roformer-lite convert`.

    Attributes:
        source: The system that the checkpoint comes from, or `auto`. None if neither direction was
            chosen.
        target: The family to convert a model of this package to, or `auto`.
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
                f"The family to convert a model of this package to: {AUTO} (one that supports all "
                "features of the model), or its name. An unknown name is answered with a list of "
                "all families."
            ),
        },
    )

    def __post_init__(self):
        if self.source is not None and self.target is not None:
            raise InputError("--from can't be combined with --to; give one of them")


def parse(argv: Sequence[str]) -> tuple[ConvertArguments, str, Path]:
    """The options of `roformer-lite convert`, the checkpoint, and the new directory."""
    parser = CommandParser(
        "convert",
        "Convert a checkpoint of another system into a model of this package (--from), or a model "
        "of this package into a checkpoint of another system (--to). Without either, a model of "
        "this package is converted to a family that supports it, and anything else becomes a model "
        "of this package. OUT must be new or empty.",
        [ConvertArguments],
        CHECKPOINT=CHECKPOINT_HELP,
        OUT="the directory to write",
    )
    options, checkpoint, out = parser.parse(argv)
    check_directory(checkpoint)
    return options, checkpoint, new_directory(out)
