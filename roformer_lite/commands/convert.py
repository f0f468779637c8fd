"""`roformer-lite convert`: a checkpoint of another system becomes a model of this package, or the
other way round."""

from ..command_parser import CommandParser
from ..errors import InputError

# The family that config.json names, or the one that has an equivalent of all that the model is.
AUTO = "auto"
# The names of `hf_roformer_lite.conversion.CONVERTERS`, without the seconds that it takes to import
# them.
SYSTEMS = (
    "deeplotx",
    "prenorm-encoder-layer",
    "prenorm-decoder-layer",
    "bert-like",
    "walkthrough",
    "scratch-seq2seq",
    "torch-encoder",
    "torch-decoder",
    "torch-transformer",
)
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
    "jina_embeddings_v3",
    "gte",
    "roformer",
    "roformer_v2",
    "llama",
    "qwen2",
    "eurobert",
    "ultrabert",
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


def main(argv: list[str]) -> None:
    """Run `roformer-lite convert CHECKPOINT OUT`."""
    parser = CommandParser(
        "convert",
        "Convert a checkpoint of another system into a model of this package (--from), or a model "
        "of this package into a checkpoint of another system (--to). Without either, a model of "
        "this package goes to the family that fits, and anything else becomes a model of this "
        "package. OUT must not exist yet.",
        CHECKPOINT="a directory with config.json and weights",
        OUT="the directory to write",
    )
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument(
        "--from",
        dest="source",
        metavar="SYSTEM",
        choices=(AUTO, *SOURCES),
        help=(
            f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json "
            f"names), or one of {', '.join(SOURCES)}. Default: {AUTO}, unless CHECKPOINT is a "
            "model of this package."
        ),
    )
    direction.add_argument(
        "--to",
        dest="target",
        metavar="FAMILY",
        choices=(AUTO, *FAMILIES),
        help=(
            f"The family to convert a model of this package to: {AUTO} (one that has an "
            f"equivalent of all that the model is), or one of {', '.join(FAMILIES)}. Default: "
            f"{AUTO}, for a model of this package."
        ),
    )
    (options,) = parser.parse(argv)
    from hf_roformer_lite.conversion import (
        ConversionError,
        convert_checkpoint,
        export_checkpoint,
        is_ours,
    )

    from ..errors import check_directory
    from ..output import new_directory

    check_directory(options.checkpoint)
    out = new_directory(options.out)
    try:
        if options.target is None and (
            options.source is not None or not is_ours(options.checkpoint)
        ):
            model = convert_checkpoint(options.source or AUTO, options.checkpoint, out)
            print(f"{type(model).__name__}, {model.num_parameters():,} parameters: {out}")
        else:
            family = export_checkpoint(options.target or AUTO, options.checkpoint, out)
            print(f"A checkpoint of {family}: {out}")
    except ConversionError as error:
        raise InputError(str(error)) from error
