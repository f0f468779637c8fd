"""The formats of other runtimes: their names, and the libraries they need."""

from pathlib import Path
from typing import Literal

from ..errors import InputError, require_packages

Engine = Literal["torch", "onnx"]  # The libraries by which `predict` and the page compute.
# The graphs that transformers exports, and its names of them.
GRAPH_FORMATS = {"onnx": "onnx", "torch": "dynamo"}
FORMATS = (*GRAPH_FORMATS, "ctranslate2", "gguf")
# These are written into a folder of their name, below the tokenizer.
FOLDER_FORMATS = ("onnx", "ctranslate2")
# The types in which a format can store weights, apart from float32.
QUANTIZATIONS = {
    "onnx": ("int8",),
    "ctranslate2": ("int8", "int8_float32", "float16", "bfloat16"),
    "gguf": ("f16", "bf16", "q8_0"),
}
_WEIGHTS = ("*.safetensors", "*.bin")
# The libraries that writing and running a format needs, and the extra that brings each.
_LIBRARIES = {
    "onnx": dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "export"),
    "ctranslate2": {"ctranslate2": "ctranslate2"},
    "gguf": {"gguf": "gguf"},
}


def check_format(format: str, quantization: str | None = None) -> None:
    """Refuse a format that there is not, or that cannot store weights as `quantization` says (None:
    as float32).

    Raises:
        InputError: naming the option and what there is.
    """
    if format not in FORMATS:
        raise InputError(f"--format {format} is unknown; choose one of {', '.join(FORMATS)}")
    kinds = QUANTIZATIONS.get(format, ())
    if quantization is not None and quantization not in kinds:
        choice = f"{', '.join(QUANTIZATIONS)} have some"
        if kinds:
            choice = f"choose one of {', '.join(kinds)}"
        raise InputError(
            f"--quantization {quantization}: --format {format} has no such type; {choice}"
        )


def check_libraries(format: str) -> None:
    """Refuse a format whose libraries are not installed.

    Raises:
        InputError: naming them, and the extra that brings them.
    """
    require_packages(f"--format {format}", _LIBRARIES.get(format, {}))


def check_engine(engine: Engine, directory: str, device: str | None = None) -> None:
    """Refuse an engine that cannot read `directory` here, before anything is loaded.

    Raises:
        InputError: naming the option and what would be right.
    """
    has_graphs = (Path(directory) / "onnx").is_dir()
    if engine == "torch":
        has_weights = any(next(Path(directory).glob(name), None) for name in _WEIGHTS)
        if has_graphs and not has_weights:
            raise InputError(f"{directory} was exported for onnx: give --engine onnx")
        return
    if not has_graphs:
        raise InputError(
            f"--engine onnx: {directory} has no folder onnx; `roformer-lite export DIR OUT` writes "
            "it"
        )
    if device not in (None, "cpu"):
        raise InputError(f"--device {device} is for --engine torch; onnx computes on the CPU here")
    check_libraries("onnx")
