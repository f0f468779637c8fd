"""The formats of other runtimes, and the libraries that they need."""

from typing import Literal

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
LIBRARIES = {
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "ctranslate2": ("ctranslate2",),
    "gguf": ("gguf",),
}
