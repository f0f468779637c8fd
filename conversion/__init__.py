"""Exact conversion of other systems' weights to models of this package, and export to systems that
have an equivalent.

    from hf_roformer_lite.conversion import convert

    model = convert("deeplotx", state_dict, {"feature_dim": 512, "heads": 12})

`conversion/README.md` lists the sources, the measured differences, and what cannot be converted.
"""

from .checkpoints import (
    ConvertedModel,
    convert_checkpoint,
    export_checkpoint,
    is_ours,
    load_checkpoint,
    open_checkpoint,
    sentence_pooling,
    source_of,
)
from .registry import CONVERTERS, convert, export, families, find_converter
from .verification import Difference, verify
from .weight_map import ConversionError

__all__ = [
    "CONVERTERS",
    "ConversionError",
    "ConvertedModel",
    "Difference",
    "convert",
    "convert_checkpoint",
    "export",
    "export_checkpoint",
    "families",
    "find_converter",
    "is_ours",
    "load_checkpoint",
    "open_checkpoint",
    "sentence_pooling",
    "source_of",
    "verify",
]
