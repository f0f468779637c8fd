"""`roformer-lite convert` and `roformer-lite verify`."""

from dataclasses import dataclass, field

from transformers import HfArgumentParser

from hf_roformer_lite.errors import InputError
from hf_roformer_lite.training.data_files import numbered_lines

from .checkpoints import convert_checkpoint, export_checkpoint, load_tokenizer, open_checkpoint
from .registry import CONVERTERS, find_converter
from .verification import verify

# Real text for `verify` where none is given: several lengths, scripts and marks.
LINES = (
    "The quick brown fox jumps over the lazy dog.",
    "Padding costs nothing.",
    "今天天气非常好，我们去公园散步吧。",
    "In 1843 Ada Lovelace wrote what many call the first computer program, for a machine that was never built.",
    "1,234.5 € – naïve café",
)
_MOST_LINES = 64  # of a file, that are run


@dataclass
class ConvertArguments:
    """Options of `roformer-lite convert`."""

    source: str | None = field(
        default=None, metadata={"help": f"What SOURCE is: {', '.join(CONVERTERS)}.", "aliases": ["--from"]}
    )
    target: str | None = field(
        default=None, metadata={"help": "What OUT shall be, for the way back: roformer.", "aliases": ["--to"]}
    )


@dataclass
class VerifyArguments:
    """Options of `roformer-lite verify`."""

    source: str = field(metadata={"help": f"What SOURCE is: {', '.join(CONVERTERS)}.", "aliases": ["--from"]})
    text: str | None = field(default=None, metadata={"help": "File of lines to run; default: a few built in."})
    seed: int = field(default=0, metadata={"help": "Seed of the random input."})


def convert_main(argv: list[str]) -> None:
    """Run `roformer-lite convert`."""
    parser = HfArgumentParser(
        [ConvertArguments],
        prog="roformer-lite convert",
        description="Bring a checkpoint of another system into this package (--from), or one of this package to "
        "another (--to). OUT must not exist yet.",
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", metavar="SOURCE", help="a directory with config.json and weights")
    parser.add_argument("out", metavar="OUT", help="the directory to write")
    options, paths = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    if (options.source is None) == (options.target is None):
        raise InputError("give exactly one of --from and --to")
    if options.source is not None:
        model = convert_checkpoint(options.source, paths.checkpoint, paths.out)
        print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {paths.out}")
    else:
        export_checkpoint(options.target, paths.checkpoint, paths.out)
        print(f"A checkpoint of {options.target}: {paths.out}")


def verify_main(argv: list[str]) -> None:
    """Run `roformer-lite verify`; an `InputError` when the two sides differ by more than the tolerance."""
    parser = HfArgumentParser(
        [VerifyArguments],
        prog="roformer-lite verify",
        description="Run a checkpoint in its own system and converted, and print how far apart their outputs are.",
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", metavar="SOURCE", help="a directory with config.json and weights")
    options, paths = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    state_dict, config = open_checkpoint(paths.checkpoint)
    lines = LINES if options.text is None else [line for _, line in numbered_lines(options.text) if line.strip()]
    tokenizer = load_tokenizer(paths.checkpoint, find_converter(options.source).tokenizer_class)
    if tokenizer is None:
        print(f"{paths.checkpoint} has no tokenizer: random input alone")
    differences = verify(options.source, state_dict, config, tokenizer, lines[:_MOST_LINES], options.seed)
    print("\n".join(map(str, differences)))
    if not all(difference.is_within for difference in differences):
        raise InputError(f"{paths.checkpoint}: the conversion differs from its source by more than the tolerance")
