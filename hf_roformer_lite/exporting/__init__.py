"""A saved model in the form of other runtimes."""

from .graphs import export_model

__all__ = ["export_model"]
