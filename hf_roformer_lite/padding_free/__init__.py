"""Layers that compute the real tokens of a batch only, for every model of transformers."""

from .switch import padding_free

__all__ = ["padding_free"]
