"""The formats of other runtimes, and the libraries that they need."""

import shlex
from pathlib import Path
from typing import Literal

from ..errors import InputError, require_packages

# The libraries that can run a model in `predict` and on the page.
Engine = Literal["torch", "onnx"]
# The formats that transformers exports, with its names for them.
GRAPH_FORMATS = {"onnx": "onnx", "torch": "dynamo"}
Format = Literal["onnx", "torch", "ctranslate2", "gguf"]
# These formats are written to a folder of the same name, next to the tokenizer.
FOLDER_FORMATS = ("onnx", "ctranslate2")
# The types in which a format can store weights, in addition to float32.
QUANTIZATIONS = {
    "onnx": ("int8",),
    "ctranslate2": ("int8", "int8_float32", "float16", "bfloat16"),
    "gguf": ("f16", "bf16", "q8_0"),
}
# The libraries that are needed for writing and running a format.
_LIBRARIES = {
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "ctranslate2": ("ctranslate2",),
    "gguf": ("gguf",),
}


def check_quantization(format: Format, quantization: str | None) -> None:
    """Reject a type of weights that the format does not have. None stands for float32.

    Raises:
        InputError: with the option and the possible values.
    """
    kinds = QUANTIZATIONS.get(format, ())
    if quantization is not None and quantization not in kinds:
        raise InputError(
            f"--quantization {quantization}: --format {format} has no such type; choose one of "
            f"{', '.join(kinds) or 'the other formats'}"
        )


def check_libraries(format: Format) -> None:
    """Reject a format whose libraries are not installed.

    Raises:
        InputError: with the command that installs them.
    """
    require_packages(f"--format {format}", _LIBRARIES.get(format, ()))


def check_engine(engine: Engine, directory: str, device: str | None) -> None:
    """Reject an engine that cannot run the model in `directory`, before anything is loaded.

    Raises:
        InputError: with the option and the remedy.
    """
    folder = Path(directory)
    has_graphs = (folder / "onnx").is_dir()
    has_weights = any([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if engine == "torch":
        if has_graphs and not has_weights:
            raise InputError(f"{directory} was exported for onnx: pass --engine onnx")
        return
    if not has_graphs:
        command = shlex.join(["roformer-lite", "export", directory, f"{folder}-onnx"])
        raise InputError(
            f"--engine onnx: {directory} has no folder onnx; `{command}` writes a directory with one"
        )
    if device not in (None, "cpu"):
        raise InputError(f"--device {device} is for --engine torch; onnx computes on the CPU")
    check_libraries("onnx")
