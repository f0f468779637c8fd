"""The names of `errors` under their former module, until nothing imports it."""

from ..errors import TRAINING_PACKAGES, require_packages

__all__ = ["TRAINING_PACKAGES", "require_packages"]
