"""`roformer-lite convert`: a checkpoint of another system becomes a model of this package, or the
other way round."""

from dataclasses import dataclass

from ..errors import InputError
from .command_parser import CommandParser, option

# the family that config.json names, or the one that has an equivalent of all that a model of ours
# is
AUTO = "auto"
# `hf_roformer_lite.conversion.CONVERTERS` by their names, without the seconds that it takes to
# import it.
SYSTEMS = (
    "deeplotx",
    "prenorm-encoder-layer",
    "prenorm-decoder-layer",
    "bert-like",
    "walkthrough",
    "scratch-seq2seq",
)
SYSTEMS += ("torch-encoder", "torch-decoder", "torch-transformer")
FAMILIES = (
    "bert",
    "ernie",
    "electra",
    "distilbert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "albert",
    "nomic_bert",
)
FAMILIES += (
    "jina_embeddings_v3",
    "gte",
    "roformer",
    "roformer_v2",
    "llama",
    "qwen2",
    "eurobert",
    "ultrabert",
)
FAMILIES += (
    "gpt_neox",
    "modernbert",
    "modernbert-decoder",
    "neobert",
    "esm",
    "bart",
    "mbart",
    "marian",
)
SOURCES = (*SYSTEMS, *FAMILIES)


def check_source(option: str, name: str | None, known: tuple[str, ...] = SOURCES) -> None:
    """Refuse the name of a system that no converter knows. None, an option that was not given, is
    right.

    Raises:
        InputError: naming those there are.
    """
    if name is not None and name not in (AUTO, *known):
        raise InputError(
            f"{option} {name}: there is no such system; choose {AUTO}, or one of {', '.join(known)}"
        )


@dataclass
class ConvertArguments:
    """Options of `roformer-lite convert`."""

    source: str | None = option(
        None,
        f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json names), or one of "
        f"{', '.join(SOURCES)}. Default: {AUTO}, unless CHECKPOINT is a model of this package.",
        "--from",
    )
    target: str | None = option(
        None,
        f"The family to convert a model of this package to: {AUTO} (one that has an equivalent of all that the model "
        f"is), or one of {', '.join(FAMILIES)}. Default: {AUTO}, for a model of this package.",
        "--to",
    )

    def __post_init__(self):
        if self.source is not None and self.target is not None:
            raise InputError(
                "--from can't be combined with --to: CHECKPOINT is converted in one direction; give one"
            )
        check_source("--from", self.source)
        check_source("--to", self.target, FAMILIES)


def main(argv: list[str]) -> None:
    """Run `roformer-lite convert CHECKPOINT OUT`."""
    parser = CommandParser(
        "convert",
        "Convert a checkpoint of another system into a model of this package (--from), or a model of this package "
        "into a checkpoint of another system (--to). Without either, a model of this package goes to the family that "
        "fits, and anything else becomes a model of this package. OUT must not exist yet.",
        [ConvertArguments],
        CHECKPOINT="a directory with config.json and weights",
        OUT="the directory to write",
    )
    options, paths = parser.parse(argv)
    from hf_roformer_lite.conversion import (
        ConversionError,
        convert_checkpoint,
        export_checkpoint,
        is_ours,
    )

    from ..errors import check_directory
    from ..output import new_directory

    check_directory(paths.checkpoint)
    out = new_directory(paths.out)
    try:
        if options.target is None and (options.source is not None or not is_ours(paths.checkpoint)):
            model = convert_checkpoint(options.source or AUTO, paths.checkpoint, out)
            print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {out}")
        else:
            family = export_checkpoint(options.target or AUTO, paths.checkpoint, out)
            print(f"A checkpoint of {family}: {out}")
    except ConversionError as error:
        raise InputError(str(error)) from error
