"""Exact conversion of other systems' weights to models of this package, and export to those with an equivalent.

    from hf_roformer_lite.conversion import convert

    model = convert("deeplotx", state_dict, {"feature_dim": 512, "heads": 12})

`conversion/README.md` lists the sources, the measured differences, and what cannot be converted.
"""

from .checkpoints import convert_checkpoint, export_checkpoint, load_checkpoint, open_checkpoint, source_of
from .converted_model import ConvertedModel
from .registry import CONVERTERS, convert, converter_of, export, families, find_converter
from .verification import Difference, verify

__all__ = [
    "CONVERTERS",
    "ConvertedModel",
    "Difference",
    "convert",
    "convert_checkpoint",
    "converter_of",
    "export",
    "export_checkpoint",
    "families",
    "find_converter",
    "load_checkpoint",
    "open_checkpoint",
    "source_of",
    "verify",
]
