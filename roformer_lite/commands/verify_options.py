"""The options of `roformer-lite verify`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..errors import check_directory, check_number
from ..options.common import MAX_SEED
from ..options.parser import CommandParser
from .convert_options import AUTO, CHECKPOINT_HELP, SOURCE_HELP


@dataclass
class VerifyArguments:
    """Options of `roformer-lite verify`.

    Args:
        seed: Seed of the random input.
    """

    source: str = field(
        default=AUTO, metadata={"name": "from", "metavar": "SYSTEM", "help": SOURCE_HELP}
    )
    seed: int = 0

    def __post_init__(self):
        check_number("seed", self.seed, minimum=0, maximum=MAX_SEED)


def parse(argv: Sequence[str]) -> tuple[VerifyArguments, str]:
    """The options of `roformer-lite verify`, and the checkpoint."""
    parser = CommandParser(
        "verify",
        "Run a checkpoint in its own system and after conversion, and print how far apart the "
        "outputs are.",
        [VerifyArguments],
        CHECKPOINT=CHECKPOINT_HELP,
    )
    options, checkpoint = parser.parse(argv)
    check_directory(checkpoint)
    return options, checkpoint
