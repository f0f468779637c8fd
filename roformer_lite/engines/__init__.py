"""The names of `predict.engines` under their former module, until nothing imports it."""

from ..predict.engines import ENGINES, check_engine, check_engine_name

__all__ = ["ENGINES", "check_engine", "check_engine_name"]
