"""The names that modules had in version 0.1.0: adapters of PEFT and pickled models hold them.

Each is imported from its new place, with a DeprecationWarning.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_PACKAGE = __name__.rpartition(".")[0]
_MOVED_TO_MODEL = (
    "attention attention_plan attention_rows configuration_roformer_lite configuration_roformer_lite_seq2seq "
    "embeddings layers losses modeling_roformer_lite parallel_heads ragged remote_code rope rope_parameters sharding "
    "tokenization_jieba tokenization_roformer_lite tokenization_unigram walkthrough_layer"
).split()
FORMER_MODULES = {f"{_PACKAGE}.{name}": f"{_PACKAGE}.model.{name}" for name in _MOVED_TO_MODEL} | {
    f"{_PACKAGE}.export": f"{_PACKAGE}.exporting",
    f"{_PACKAGE}.heads_roformer_lite": f"{_PACKAGE}.model.task_heads",
    f"{_PACKAGE}.linear": f"{_PACKAGE}.model.fast_linear",
    f"{_PACKAGE}.linear_cross_entropy": f"{_PACKAGE}.model.fused_cross_entropy",
    f"{_PACKAGE}.lm_heads_roformer_lite": f"{_PACKAGE}.model.lm_heads",
    f"{_PACKAGE}.seq2seq_roformer_lite": f"{_PACKAGE}.model.encoder_decoder",
}

# The files of these modules in a bundle.
FORMER_FILES = {f"{name.rpartition('.')[2]}.py" for name, today in FORMER_MODULES.items() if ".model." in today}


class _FormerNames(MetaPathFinder, Loader):
    """Finds a module by its former name, and is its loader: the module itself is that of the new name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in FORMER_MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = FORMER_MODULES[module.__name__]
        warnings.warn(f"{module.__name__} is now {name}", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(name)  # which the import statement then returns


def know_former_modules() -> None:
    """Let imports by a former name find the module."""
    sys.meta_path.append(_FormerNames())
