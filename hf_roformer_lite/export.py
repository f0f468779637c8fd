"""The former home of `export_model`."""

import warnings

from .exporting import export_model

warnings.warn(
    "hf_roformer_lite.export is deprecated; use `from hf_roformer_lite.exporting import export_model`",
    DeprecationWarning,
    stacklevel=2,
)

__all__ = ["export_model"]
