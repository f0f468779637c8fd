"""The options of `roformer-lite convert`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ..errors import InputError, check_directory
from ..options.parser import CommandParser
from ..output import new_directory

# These are the names in `CONVERTERS` of `conversion/registry.py`, whose import takes seconds. "auto"
# stands for the family in config.json, or for one that supports all features of a model.
System = Literal[
    "deeplotx",
    "prenorm-encoder-layer",
    "prenorm-decoder-layer",
    "bert-like",
    "walkthrough",
    "scratch-seq2seq",
    "torch-encoder",
    "torch-decoder",
    "torch-transformer",
]
Family = Literal[
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
]
AUTO = "auto"
FAMILIES = get_args(Family)
SOURCES = (*get_args(System), *FAMILIES)
SOURCE_HELP = (
    f"The system that CHECKPOINT comes from: {AUTO} (the family that its config.json names), or "
    f"one of {', '.join(SOURCES)}."
)
CHECKPOINT_HELP = "a directory with config.json and weights"


@dataclass
class ConvertArguments:
    """Options of `roformer-lite convert`.

    Attributes:
        source: The system that the checkpoint comes from, or `auto`. None if neither direction was
            chosen.
        target: The family to convert a model of this package to, or `auto`.
    """

    source: System | Family | Literal["auto"] | None = field(
        default=None, metadata={"name": "from", "metavar": "SYSTEM", "help": SOURCE_HELP}
    )
    target: Family | Literal["auto"] | None = field(
        default=None,
        metadata={
            "name": "to",
            "metavar": "FAMILY",
            "help": (
                f"The family to convert a model of this package to: {AUTO} (one that supports all "
                f"features of the model), or one of {', '.join(FAMILIES)}."
            ),
        },
    )

    def __post_init__(self):
        if self.source is not None and self.target is not None:
            raise InputError("--from can't be combined with --to; give one of them")


def parse(argv: Sequence[str]) -> tuple[ConvertArguments, str, Path]:
    """The options of `roformer-lite convert`, the checkpoint, and the new directory."""
    parser = CommandParser(
        "convert",
        "Convert a checkpoint of another system into a model of this package (--from), or a model "
        "of this package into a checkpoint of another system (--to). Without either, a model of "
        "this package is converted to a family that supports it, and anything else becomes a model "
        "of this package. OUT must be new or empty.",
        [ConvertArguments],
        CHECKPOINT=CHECKPOINT_HELP,
        OUT="the directory to write",
    )
    options, checkpoint, out = parser.parse(argv)
    check_directory(checkpoint)
    return options, checkpoint, new_directory(out)
