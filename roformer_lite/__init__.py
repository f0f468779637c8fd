"""The program `roformer-lite`, and its commands as functions."""

from importlib import import_module

# These packages have the names of functions. Importing a package binds its name here, so this
# happens before the functions are bound.
for _package in ("evaluate", "train"):
    import_module(f".{_package}", __name__)

from .api import EvaluationResult, TrainingResult, evaluate, predict, train  # noqa: E402
from .errors import InputError  # noqa: E402

__all__ = ["EvaluationResult", "InputError", "TrainingResult", "evaluate", "predict", "train"]
