"""Loading a model in shards, by `from_pretrained(distributed_config=…)`: what transformers' FSDP2 needs to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.distributed import DistributedConfig


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
        """
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


__all__ = ["ShardedLoadingMixin"]
