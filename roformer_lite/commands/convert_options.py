"""The options of `roformer-lite convert`."""

from collections.abc import Sequence
from pathlib import Path

from ..options.parser import CommandParser
from ..output import new_directory

EXAMPLES_OF_FAMILIES = "bert, roberta, modernbert, llama or bart"
# This stands for the family in config.json, or for one that supports all features of a model.
AUTO = "auto"
SOURCE_HELP = (
    f"The family or system that CHECKPOINT comes from, such as {EXAMPLES_OF_FAMILIES}; {AUTO}: the "
    "family that its config.json names. An unknown name prints a list of all."
)
TARGET_HELP = (
    f"The family to convert a RoFormerLite model to, such as {EXAMPLES_OF_FAMILIES}; {AUTO}: one "
    "that supports all features of the model. An unknown name prints a list of all."
)


def parse(argv: Sequence[str]) -> tuple[str | None, str | None, str, Path]:
    """The family or system to convert from and the one to convert to, neither of which needs to be
    given, the checkpoint, and the new directory."""
    parser = CommandParser(
        "convert",
        f"Convert a checkpoint of a family such as {EXAMPLES_OF_FAMILIES}, or of another system, "
        "into a RoFormerLite model (--from), or a RoFormerLite model into a checkpoint of a family "
        "(--to). Without either option, a RoFormerLite model is converted to a family that "
        "supports it, and anything else becomes a RoFormerLite model. OUT must be new or empty.",
        CHECKPOINT="a directory with config.json and weights, or its name on the Hub",
        OUT="the directory to write",
    )
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument("--from", dest="source", metavar="SYSTEM", help=SOURCE_HELP)
    direction.add_argument("--to", dest="target", metavar="FAMILY", help=TARGET_HELP)
    options = parser.parse_args(argv)
    return options.source, options.target, options.checkpoint, new_directory(options.out)
