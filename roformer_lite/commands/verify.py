"""`roformer-lite verify`: whether a checkpoint and its conversion compute the same numbers."""

from dataclasses import dataclass

from ..errors import InputError, check_number
from .command_parser import CommandParser, option
from .convert import AUTO, SOURCES, check_source


@dataclass
class VerifyArguments:
    """Options of `roformer-lite verify`."""

    source: str = option(
        AUTO,
        f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json names), or one of "
        f"{', '.join(SOURCES)}.",
        "--from",
    )
    seed: int = option(0, "Seed of the random input.")

    def __post_init__(self):
        check_source("--from", self.source)
        check_number("seed", self.seed, at_least=0, at_most=2**32 - 1)


def main(argv: list[str]) -> None:
    """Run `roformer-lite verify CHECKPOINT`.

    Raises:
        InputError: when the outputs differ by more than the tolerance.
    """
    parser = CommandParser(
        "verify",
        "Run a checkpoint in its own system and after conversion, and print how far apart the outputs are.",
        [VerifyArguments],
        CHECKPOINT="a directory with config.json and weights",
    )
    options, paths = parser.parse(argv)
    from hf_roformer_lite.conversion import ConversionError, open_checkpoint, source_of, verify
    from hf_roformer_lite.conversion.checkpoints import naming

    from ..errors import check_directory

    check_directory(paths.checkpoint)
    try:
        state_dict, config = open_checkpoint(paths.checkpoint)
        source = source_of(paths.checkpoint, config) if options.source == AUTO else options.source
        with naming(paths.checkpoint):
            differences = verify(source, state_dict, config, options.seed)
    except ConversionError as error:
        raise InputError(str(error)) from error
    print("\n".join(map(str, differences)))
    if not all(difference.is_within for difference in differences):
        raise InputError(
            f"{paths.checkpoint}: the conversion differs from its source by more than the tolerance"
        )
