"""The options of `roformer-lite demo`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import TRAINING_PACKAGES, check_number, require_packages
from ..options.common import MAX_SEED
from ..options.parser import CommandParser
from ..output import check_output_dir, check_place


@dataclass
class DemoArguments:
    """Options of `roformer-lite demo`.

    Args:
        output_dir: Directory of the finished model.
        seed: Seed of the data and of the training.
        overwrite_output_dir: Replace an earlier model there.
    """

    output_dir: str = "roformer-lite-demo"
    seed: int = 1
    overwrite_output_dir: bool = False

    def __post_init__(self):
        check_place("output_dir", self.output_dir)
        check_output_dir(Path(self.output_dir), self.overwrite_output_dir)
        check_number("seed", self.seed, minimum=0, maximum=MAX_SEED)


def parse(argv: Sequence[str]) -> tuple[DemoArguments, Sequence[str]]:
    """The options of `roformer-lite demo`, and the command line, which the card shows."""
    parser = CommandParser(
        "demo",
        "Generate data (dates, written out in English and Chinese, and their standard form), train "
        "a tokenizer and a model from scratch, evaluate the model on unseen dates, save it, load "
        "it again and predict.",
        [DemoArguments],
    )
    (options,) = parser.parse(argv)
    require_packages("training", TRAINING_PACKAGES)
    return options, argv
