"""A saved model in the form of other runtimes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .ctranslate2 import export_ctranslate2
    from .gguf import export_gguf
    from .graphs import export_model

GRAPH_FORMATS = {"onnx": "onnx", "torch": "dynamo", "openvino": "openvino"}  # and transformers' names of them
FORMATS = (*GRAPH_FORMATS, "ctranslate2", "gguf")
QUANTIZATIONS = {  # how the weights can be stored, besides float32
    "ctranslate2": ("int8", "int8_float32", "float16", "bfloat16"),
    "gguf": ("f16", "bf16", "q8_0"),
}

__all__ = ["FORMATS", "GRAPH_FORMATS", "QUANTIZATIONS", "export_ctranslate2", "export_gguf", "export_model"]


def __getattr__(name: str) -> Any:
    """The exporters, imported when they are first used: torch comes with them."""
    if name == "export_model":
        from .graphs import export_model

        return export_model
    if name == "export_ctranslate2":
        from .ctranslate2 import export_ctranslate2

        return export_ctranslate2
    if name == "export_gguf":
        from .gguf import export_gguf

        return export_gguf
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
