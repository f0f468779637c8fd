"""`roformer-lite convert`: a checkpoint of another system becomes a model of this package, or the other way round."""

from dataclasses import dataclass, field

from hf_roformer_lite.conversion import CONVERTERS, convert_checkpoint, export_checkpoint

from ..errors import InputError
from ..model_name import check_directory
from .command_parser import CommandParser

SOURCES = tuple(CONVERTERS)
AUTO = "auto"  # the family that config.json names, or the one that has words for all that a model of ours is


def check_source(option: str, name: str | None) -> None:
    """Refuse the name of a system that no converter knows. None, an option that was not given, is right.

    Raises:
        InputError: naming those there are.
    """
    if name is not None and name not in (AUTO, *SOURCES):
        raise InputError(f"{option} {name}: there is no such system; choose {AUTO}, or one of {', '.join(SOURCES)}")


@dataclass
class ConvertArguments:
    """Options of `roformer-lite convert`."""

    source: str | None = field(
        default=None,
        metadata={
            "help": f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json names), or one "
            f"of {', '.join(SOURCES)}.",
            "aliases": ["--from"],
        },
    )
    target: str | None = field(
        default=None,
        metadata={
            "help": f"The family to convert a model of this package to: {AUTO} (one that has words for all that the "
            "model is), or one of those from bert on.",
            "aliases": ["--to"],
        },
    )

    def __post_init__(self):
        if (self.source is None) == (self.target is None):
            raise InputError("give exactly one of --from and --to")
        check_source("--from", self.source)
        check_source("--to", self.target)


def main(argv: list[str]) -> None:
    """Run `roformer-lite convert CHECKPOINT OUT`."""
    parser = CommandParser(
        "convert",
        "Convert a checkpoint of another system into a model of this package (--from), or a model of this package "
        "into a checkpoint of another system (--to). OUT must not exist yet.",
        [ConvertArguments],
        CHECKPOINT="a directory with config.json and weights",
        OUT="the directory to write",
    )
    options, paths = parser.parse(argv)
    check_directory(paths.checkpoint)
    if options.source is not None:
        model = convert_checkpoint(options.source, paths.checkpoint, paths.out)
        print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {paths.out}")
    else:
        family = export_checkpoint(options.target, paths.checkpoint, paths.out)
        print(f"A checkpoint of {family}: {paths.out}")
