"""The formats of other runtimes, how weights can be stored in them, and the libraries that they need."""

import re
from importlib.metadata import requires
from importlib.util import find_spec

from ..errors import InputError

GRAPH_FORMATS = {"onnx": "onnx", "torch": "dynamo", "openvino": "openvino"}  # and transformers' names of them
FORMATS = (*GRAPH_FORMATS, "ctranslate2", "gguf")
EXPORTED_ENGINES = ("onnx", "openvino", "ctranslate2")  # formats that `predict` runs, each from a folder of its name
QUANTIZATIONS = {  # how the weights can be stored, besides float32
    "onnx": ("int8",),
    "ctranslate2": ("int8", "int8_float32", "float16", "bfloat16"),
    "gguf": ("f16", "bf16", "q8_0"),
}
_LIBRARIES = {  # that writing and running a format needs, and the extra that brings them
    "onnx": ("export", ("onnx", "onnxruntime", "onnxscript")),
    "openvino": ("openvino", ("openvino",)),
    "ctranslate2": ("ctranslate2", ("ctranslate2",)),
    "gguf": ("gguf", ("gguf",)),
}


def quantized_name(graph: str) -> str:
    """The file of an ONNX graph in int8, as transformers.js calls it."""
    return f"{graph}_quantized.onnx"


def check_libraries(format: str) -> None:
    """Refuse a format whose libraries are not installed.

    Raises:
        InputError: naming them, in the versions that this package needs.
    """
    versions = {re.split(r"[^\w-]", line)[0]: line.partition(";")[0] for line in requires("hf_roformer_lite") or ()}
    extra, names = _LIBRARIES.get(format, ("", ()))
    missing = [versions.get(name, name) for name in names if find_spec(name) is None]
    if missing:
        raise InputError(f'{format} needs {", ".join(missing)}; install with pip install "hf_roformer_lite[{extra}]"')
