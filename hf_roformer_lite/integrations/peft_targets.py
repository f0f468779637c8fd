"""Default targets of PEFT's adapters, so that `LoraConfig()` and its siblings need no
`target_modules` for RoFormerLite models.

For each method, PEFT keeps one table of default targets by model type in `peft.utils.constants`.
The linear layers here are named as in Llama (`q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`,
`up_proj`, `down_proj`), so the entry of a table for Llama holds for them too. Layers with
`layer_style="parallel_heads"` have no such projections, and PEFT says so; pass
`target_modules="all-linear"`.
"""

from importlib.util import find_spec

from ..model.hub import AUTO_CLASSES

# The norms are the only targets that are not named as in Llama.
NORMS = ["self_attn_norm", "cross_attn_norm", "mlp_norm"]
ENDINGS_OF_TABLES = ("_TARGET_MODULES_MAPPING", "_FEEDFORWARD_MODULES_MAPPING")


def register_peft_targets() -> None:
    """Add the RoFormerLite model types to every table of target modules that contains Llama, if
    PEFT is installed."""
    if find_spec("peft") is None:
        return
    from peft.utils import constants

    for name, table in vars(constants).items():
        if not name.endswith(ENDINGS_OF_TABLES) or "llama" not in table:
            continue
        targets = NORMS if "LNTUNING" in name else table["llama"]
        for model_type in AUTO_CLASSES:
            table.setdefault(model_type, targets)
