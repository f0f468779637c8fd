"""The names of `errors` under their former module, until nothing imports it."""

from .errors import check_directory, check_model_name, is_hub_name

__all__ = ["check_directory", "check_model_name", "is_hub_name"]
