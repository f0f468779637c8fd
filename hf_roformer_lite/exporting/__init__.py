"""A saved model in the form of other runtimes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graphs import export_model

FORMATS = {"onnx": "onnx", "torch": "dynamo"}  # our names of the formats, and transformers'

__all__ = ["FORMATS", "export_model"]


def __getattr__(name: str) -> Any:
    """`export_model`, imported when it is first used: torch comes with it."""
    if name != "export_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .graphs import export_model

    return export_model
