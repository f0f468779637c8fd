"""Models in shards: which modules are cut or gathered, and loading by `from_pretrained(distributed_config=…)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.distributed import DistributedConfig

    from .configuration_roformer_lite import RoFormerLiteConfig


class ComputedPlan:
    """A sharding plan that is computed when it is read, and may be assigned over, as older versions of transformers
    do."""

    def __init__(self, compute: Callable[[Any], dict[str, Any]]):
        self.compute = compute

    def __get__(self, config: Any, owner: type | None = None) -> Any:
        return self if config is None else self.compute(config)


def tensor_parallel_plan(config: RoFormerLiteConfig) -> dict[str, str]:
    """How each module of a stack is cut among processes; only standard layers are."""
    plan = {"embeddings.word_embeddings": "embedding_rowwise"}
    if config.layer_style != "standard":
        return plan
    for attention in ["self_attn", "cross_attn"] if config.add_cross_attention else ["self_attn"]:
        plan |= {f"layers.*.{attention}.{name}_proj": "colwise" for name in "qkv"}
        plan[f"layers.*.{attention}.o_proj"] = "rowwise"
    plan |= {f"layers.*.mlp.{name}_proj": "colwise" for name in (["gate", "up"] if config.gated_mlp else ["up"])}
    return plan | {"layers.*.mlp.down_proj": "rowwise"}


def fsdp_plan(config: RoFormerLiteConfig) -> dict[str, str]:
    """What FSDP2 shards together."""
    plan = {"embeddings.word_embeddings": "free_full_weight", "layers.*": "free_full_weight"}
    return plan | ({"final_norm": "keep_full_weight"} if config.final_norm else {})


def pipeline_plan(config: RoFormerLiteConfig) -> dict[str, tuple[list[str], list[str]]]:
    """The parts of a stack in their order, with what each takes and returns.

    `layout` is not sent from stage to stage: each makes it by `lay_out` from ids or mask. Between stages go the hidden
    states of the real tokens `(N, hidden)`, or `(B, L, hidden)` by `layout.tokens.restore` and `gather`.
    """
    plan = {
        "embeddings": (["tokens", "input_ids"], ["hidden_states"]),
        "layers": (["hidden_states", "layout"], ["hidden_states"]),
    }
    return plan | ({"final_norm": (["hidden_states"], ["hidden_states"])} if config.final_norm else {})


class ShardedLoadingMixin:
    """Keeps tied weights one weight under FSDP2, and lets `generate` gather what it needs."""

    @classmethod
    def maybe_distribute_model(
        cls, model: PreTrainedModel, distributed_config: DistributedConfig | None, mesh: Any
    ) -> PreTrainedModel:
        """Called by `from_pretrained` between making the model and loading its weights.

        FSDP2 keeps a flat copy of every weight whose rows do not divide by the number of processes. Weights that are
        tied only afterwards, or that lie in two groups, then have two such copies, of which one is never updated.
        Hence they are tied before and stay in the root's group. `generate` of an encoder–decoder calls the encoder
        directly, so it has to gather the root's group itself.

        Raises:
            ValueError: for `pp_size`, as transformers cuts models whose parts have the names of Llama.
        """
        if distributed_config is not None and distributed_config.pp_size not in (None, 1):
            raise ValueError(
                f"DistributedConfig(pp_size={distributed_config.pp_size}): transformers cannot cut these models; use "
                "torch.distributed.pipelining with the parts that base_model_pp_plan names"
            )
        if distributed_config is None or distributed_config.fsdp_size in (None, 1):
            return super().maybe_distribute_model(model, distributed_config, mesh)
        if distributed_config.tp_size in (None, 1):  # tensor parallelism wants to cut tied weights one by one
            model.tie_weights()
        for name in {name for pair in model.all_tied_weights_keys.items() for name in pair}:
            model.fsdp_plan.pop(name.rpartition(".")[0], None)
        model = super().maybe_distribute_model(model, distributed_config, mesh)
        if model.can_generate():
            from torch.distributed.fsdp import register_fsdp_forward_method  # not in every build of torch

            register_fsdp_forward_method(model, "generate")
        return model


__all__ = ["ComputedPlan", "ShardedLoadingMixin", "fsdp_plan", "pipeline_plan", "tensor_parallel_plan"]
