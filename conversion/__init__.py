"""Exact conversion of other systems' weights to RoFormerLite models, and export to systems that
have an equivalent.

    from hf_roformer_lite.conversion import convert

    model = convert("deeplotx", state_dict, {"feature_dim": 512, "heads": 12})

`conversion/README.md` lists the sources, the measured differences, and what cannot be converted.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .checkpoint_files import ConversionError
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


def __getattr__(name: str) -> Any:
    """Import the converters when a name is used, because commands that only open a checkpoint do
    not need them."""
    if name in __all__:
        for module in ("checkpoint_files", "checkpoints", "registry", "verification"):
            found = vars(import_module(f".{module}", __name__))
            if name in found:
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
