"""The names of `predict.predictor` under their former module, until nothing imports it."""

from ..predict.predictor import Predictor

__all__ = ["Predictor"]
