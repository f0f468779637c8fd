"""The names of `output` under their former module, until nothing imports it."""

from .output import *  # noqa: F403
