"""The options of `roformer-lite verify`."""

from collections.abc import Sequence

from ..errors import check_directory
from ..options.parser import CommandParser
from .convert_options import AUTO, CHECKPOINT_HELP, SOURCE_HELP


def parse(argv: Sequence[str]) -> tuple[str, str]:
    """The system of a checkpoint, or `auto`, and the checkpoint."""
    parser = CommandParser(
        "verify",
        "Run a checkpoint in its own system and after conversion, and print how far apart the "
        "outputs are.",
        CHECKPOINT=CHECKPOINT_HELP,
    )
    parser.add_argument("--from", dest="source", default=AUTO, metavar="SYSTEM", help=SOURCE_HELP)
    options = parser.parse_args(argv)
    check_directory(options.checkpoint)
    return options.source, options.checkpoint
