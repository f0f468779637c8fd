"""The program `roformer-lite`, and its commands as functions."""

from .api import evaluate, predict, train
from .errors import InputError
from .results import EvaluationResult, TrainingResult

__all__ = ["EvaluationResult", "InputError", "TrainingResult", "evaluate", "predict", "train"]
