"""The program `roformer-lite`, and its commands as functions."""

from .api import EvaluationResult, TrainingResult, evaluate, predict, train
from .errors import InputError

__all__ = ["EvaluationResult", "InputError", "TrainingResult", "evaluate", "predict", "train"]
