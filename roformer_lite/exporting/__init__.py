"""The names of `export` under their former module, until no document names it."""

from ..export.ctranslate2 import export_ctranslate2
from ..export.gguf import export_gguf
from ..export.graphs import export_model

__all__ = ["export_ctranslate2", "export_gguf", "export_model"]
