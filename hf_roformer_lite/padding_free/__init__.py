"""Makes the layers of transformers models compute only the real tokens of a batch."""

from .switch import padding_free

__all__ = ["padding_free"]
