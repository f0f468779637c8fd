"""A saved model in the form of other runtimes."""

from .ctranslate2 import export_ctranslate2
from .formats import EXPORTED_ENGINES, FORMATS, GRAPH_FORMATS, QUANTIZATIONS, check_libraries, quantized_name
from .gguf import export_gguf
from .graphs import export_model

__all__ = [
    "EXPORTED_ENGINES",
    "FORMATS",
    "GRAPH_FORMATS",
    "QUANTIZATIONS",
    "check_libraries",
    "export_ctranslate2",
    "export_gguf",
    "export_model",
    "quantized_name",
]
