"""Default targets of PEFT's adapters: `LoraConfig()` and its siblings know this package's models by themselves.

PEFT keeps one table of default targets a method, by model type, in `peft.utils.constants`. The linear layers here are
named as Llama's (`q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`, `down_proj`), so what a table has for
Llama holds here too. Layers with `layer_style="parallel_heads"` have no such projections, and PEFT says so; give it
`target_modules="all-linear"`. PEFT is not imported for this: the entries are made when somebody imports it.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .configuration_roformer_lite import RoFormerLiteConfig
from .configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig

TABLES_MODULE = "peft.utils.constants"
LIKE = "llama"
NORMS = ["self_attn_norm", "cross_attn_norm", "mlp_norm"]  # the only targets not named as Llama's


def add_targets(tables: ModuleType) -> None:
    """Add this package's model types to every table of target modules in `tables` that knows Llama."""
    for name, table in vars(tables).items():
        if name.endswith(("_TARGET_MODULES_MAPPING", "_FEEDFORWARD_MODULES_MAPPING")) and LIKE in table:
            targets = NORMS if "LNTUNING" in name else table[LIKE]
            for config in (RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig):
                table.setdefault(config.model_type, targets)


class _WhenImported(MetaPathFinder):
    """Waits for PEFT's tables to be imported, by whatever finder finds them, and fills them right after."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if fullname != TABLES_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_fill(module: ModuleType) -> None:
                execute(module)
                add_targets(module)

            spec.loader.exec_module = execute_and_fill  # type: ignore[method-assign]
        return spec


def register_peft_targets() -> None:
    """Fill PEFT's tables now if they are imported already, else as soon as they are."""
    if TABLES_MODULE in sys.modules:
        add_targets(sys.modules[TABLES_MODULE])
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())
