"""Default targets of PEFT's adapters: `LoraConfig()` and its siblings know this package's models by
themselves.

PEFT keeps one table of default targets a method, by model type, in `peft.utils.constants`. The
linear layers here are named as Llama's (`q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`,
`up_proj`, `down_proj`), so what a table has for Llama holds here too. Layers with
`layer_style="parallel_heads"` have no such projections, and PEFT says so; give it
`target_modules="all-linear"`.
"""

from importlib.util import find_spec

from ..model.configuration_roformer_lite import AUTO_CLASSES

NORMS = ["self_attn_norm", "cross_attn_norm", "mlp_norm"]  # the only targets not named as Llama's


def register_peft_targets() -> None:
    """Add this package's model types to every table of target modules that knows Llama, if PEFT is
    installed."""
    if find_spec("peft") is None:
        return
    from peft.utils import constants

    for name, table in vars(constants).items():
        if (
            name.endswith(("_TARGET_MODULES_MAPPING", "_FEEDFORWARD_MODULES_MAPPING"))
            and "llama" in table
        ):
            for model_type in AUTO_CLASSES:
                table.setdefault(model_type, NORMS if "LNTUNING" in name else table["llama"])
