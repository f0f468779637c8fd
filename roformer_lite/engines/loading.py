"""The names of `predict.engines` under their former module, until nothing imports it."""

from ..predict.engines import Engine, load_engine

__all__ = ["Engine", "load_engine"]
