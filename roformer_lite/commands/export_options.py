"""The options of `roformer-lite export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, require_packages
from ..options.formats import GRAPH_FORMATS, LIBRARIES, QUANTIZATIONS, Format
from ..options.parser import CommandParser
from ..output import new_directory


@dataclass(frozen=True)
class ExportArguments:
    """Options of `roformer-lite export`.

    Args:
        format: Format to write.
        quantization: How to store the weights, for formats with a choice (onnx: int8; ctranslate2:
            int8, int8_float32, float16, bfloat16; gguf: f16, bf16, q8_0).
        padded: onnx, torch: write graphs that compute padding, for runtimes that allow only fixed
            shapes.
    """

    format: Format = "onnx"
    quantization: str | None = None
    padded: bool = False

    def __post_init__(self):
        if self.padded and self.format not in GRAPH_FORMATS:
            raise InputError(f"--padded is for --format onnx and torch, not for {self.format}")
        kinds = QUANTIZATIONS.get(self.format, ())
        if self.quantization is not None and self.quantization not in kinds:
            raise InputError(
                f"--quantization {self.quantization}: --format {self.format} has no such type; "
                f"choose one of {', '.join(kinds) or 'the other formats'}"
            )


def parse(argv: Sequence[str]) -> tuple[ExportArguments, str, Path]:
    """The options of `roformer-lite export`, the model's directory and the new one."""
    parser = CommandParser(
        "export",
        "Write a saved model and its tokenizer in the format of another runtime. OUT must be new "
        "or empty.",
        [ExportArguments],
        DIR="the model's directory",
        OUT="the directory to write",
    )
    options, directory, out = parser.parse(argv)
    require_packages(f"--format {options.format}", LIBRARIES.get(options.format, ()))
    return options, directory, new_directory(out)
