"""`roformer-lite verify`: whether a checkpoint and its conversion compute the same numbers."""

from ..command_parser import CommandParser
from ..errors import InputError, check_number
from .convert import AUTO, SOURCES


def main(argv: list[str]) -> None:
    """Run `roformer-lite verify CHECKPOINT`.

    Raises:
        InputError: when the outputs differ by more than the tolerance.
    """
    parser = CommandParser(
        "verify",
        "Run a checkpoint in its own system and after conversion, and print how far apart the "
        "outputs are.",
        CHECKPOINT="a directory with config.json and weights",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SYSTEM",
        choices=(AUTO, *SOURCES),
        default=AUTO,
        help=(
            f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json "
            f"names), or one of {', '.join(SOURCES)}."
        ),
    )
    parser.add_argument("--seed", type=int, default=0, help="Seed of the random input.")
    (options,) = parser.parse(argv)
    check_number("seed", options.seed, at_least=0, at_most=2**32 - 1)
    from hf_roformer_lite.conversion import ConversionError, open_checkpoint, source_of, verify
    from hf_roformer_lite.conversion.checkpoints import naming

    from ..errors import check_directory

    check_directory(options.checkpoint)
    try:
        state_dict, config = open_checkpoint(options.checkpoint)
        source = source_of(options.checkpoint, config) if options.source == AUTO else options.source
        with naming(options.checkpoint):
            differences = verify(source, state_dict, config, options.seed)
    except ConversionError as error:
        raise InputError(str(error)) from error
    print("\n".join(map(str, differences)))
    if not all(difference.is_within for difference in differences):
        raise InputError(
            f"{options.checkpoint}: the conversion differs from its source by more than the tolerance"
        )
