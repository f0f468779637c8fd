"""`roformer-lite verify`: whether a checkpoint and its conversion compute the same numbers."""

from dataclasses import dataclass, field
from itertools import islice

from ..errors import InputError, check_file, check_number
from .command_parser import CommandParser
from .convert import AUTO, SOURCES, check_source

# Run where no text is given: several lengths, scripts and punctuation marks.
LINES = (
    "The quick brown fox jumps over the lazy dog.",
    "Padding costs nothing.",
    "今天天气非常好，我们去公园散步吧。",
    "In 1843 Ada Lovelace wrote what many call the first computer program, for a machine that was never built.",
    "1,234.5 € – naïve café",
)
_MAX_LINES = 64  # of a file


@dataclass
class VerifyArguments:
    """Options of `roformer-lite verify`."""

    source: str = field(
        default=AUTO,
        metadata={
            "help": f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json names), or one "
            f"of {', '.join(SOURCES)}.",
            "aliases": ["--from"],
        },
    )
    text: str | None = field(
        default=None, metadata={"help": f"A file; its first {_MAX_LINES} lines are run. Default: a few built in."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of the random input."})

    def __post_init__(self):
        check_source("--from", self.source)
        check_number("seed", self.seed, at_least=0, at_most=2**32 - 1)
        if self.text is not None:
            check_file("text", self.text)


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
    from hf_roformer_lite.conversion import ConversionError, find_converter, open_checkpoint, source_of, verify
    from hf_roformer_lite.conversion.checkpoints import load_tokenizer

    from ..model_name import check_directory

    check_directory(paths.checkpoint)
    lines = LINES if options.text is None else _first_lines(options.text)
    try:
        state_dict, config = open_checkpoint(paths.checkpoint)
        source = source_of(paths.checkpoint, config) if options.source == AUTO else options.source
        tokenizer = load_tokenizer(paths.checkpoint, find_converter(source))
        if tokenizer is None:
            print(f"{paths.checkpoint} has no tokenizer: only random input is run")
        differences = verify(source, state_dict, config, tokenizer, lines, options.seed)
    except ConversionError as error:
        raise InputError(str(error)) from error
    print("\n".join(map(str, differences)))
    if not all(difference.is_within for difference in differences):
        raise InputError(f"{paths.checkpoint}: the conversion differs from its source by more than the tolerance")


def _first_lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return list(islice(filter(str.strip, map(str.rstrip, file)), _MAX_LINES))
    except (OSError, ValueError) as error:
        raise InputError(f"--text {path}: cannot be read: {error}") from error
