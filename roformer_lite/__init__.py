"""The program `roformer-lite`, and its commands as functions."""

from .api import evaluate, predict, train
from .errors import InputError

__all__ = ["InputError", "evaluate", "predict", "train"]
