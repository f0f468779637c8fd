"""Weights of other systems, brought into this package exactly, and back where the other side can say them.

    from hf_roformer_lite.conversion import convert

    model = convert("deeplotx", state_dict, {"feature_dim": 512, "heads": 12})

`conversion/README.md` lists the sources, what was measured, and what cannot be carried over.
"""

from .checkpoints import convert_checkpoint, export_checkpoint, open_checkpoint
from .registry import CONVERTERS, convert, export, find_converter
from .verification import Difference, verify

__all__ = [
    "CONVERTERS",
    "Difference",
    "convert",
    "convert_checkpoint",
    "export",
    "export_checkpoint",
    "find_converter",
    "open_checkpoint",
    "verify",
]
