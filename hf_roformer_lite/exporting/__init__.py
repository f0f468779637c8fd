"""A saved model in the form of other runtimes."""

import re
from importlib.metadata import requires
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    from .graphs import export_model

FORMATS = {"onnx": "onnx", "torch": "dynamo"}  # our names of the formats, and transformers'
_LIBRARIES = {"onnx": ("onnx", "onnxscript")}  # that writing a format needs, of the extra `export`

__all__ = ["FORMATS", "check_libraries", "export_model"]


def check_libraries(format: str) -> None:
    """Refuse a format whose libraries are not installed.

    Raises:
        InputError: naming them, in the versions that this package needs.
    """
    versions = {re.split(r"[^\w-]", line)[0]: line.partition(";")[0] for line in requires("hf_roformer_lite") or ()}
    missing = [versions.get(name, name) for name in _LIBRARIES.get(format, ()) if find_spec(name) is None]
    if missing:
        raise InputError(f'{format} needs {", ".join(missing)}; install with pip install "hf_roformer_lite[export]"')


def __getattr__(name: str) -> Any:
    """`export_model`, imported when it is first used: torch comes with it."""
    if name != "export_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .graphs import export_model

    return export_model
