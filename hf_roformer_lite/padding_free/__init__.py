"""Makes the layers of stock models compute only the real tokens of a batch."""

from .switch import padding_free
from .trial import PaddingFreeError

__all__ = ["PaddingFreeError", "padding_free"]
