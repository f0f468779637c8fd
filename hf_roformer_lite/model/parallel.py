"""How transformers distributes a model among processes."""

from typing import Any

# Modules whose weights FSDP2 gathers for their forward pass and frees afterwards.
FSDP_PLAN: dict[Any, str] = {
    "embeddings.word_embeddings": "free_full_weight",
    "layers.*": "free_full_weight",
}


class TensorParallelPlan:
    """How the matrices of a stack are cut among processes, as the value of `base_model_tp_plan`.

    The plan depends on fields of the configuration, so it is computed when it is read. A property
    would not do, because transformers 5.19 replaces the plan of a configuration by a dictionary.
    """

    def __get__(self, config: Any, owner: type | None = None) -> Any:
        if config is None:
            return self
        plan = {"embeddings.word_embeddings": "embedding_rowwise"}
        if config.layer_style == "parallel_heads":
            # The heads of these layers are slices of stacked weights, which no rule can cut.
            return plan
        attentions = ["self_attn"]
        if config.add_cross_attention:
            attentions.append("cross_attn")
        for attention in attentions:
            for matrix in ("q", "k", "v"):
                plan[f"layers.*.{attention}.{matrix}_proj"] = "colwise"
            plan[f"layers.*.{attention}.o_proj"] = "rowwise"
        if config.layer_style == "standard":
            *inner_matrices, last_matrix = config.mlp_matrices()
            for matrix in inner_matrices:
                plan[f"layers.*.mlp.{matrix}_proj"] = "colwise"
            plan[f"layers.*.mlp.{last_matrix}_proj"] = "rowwise"
        return plan


class DistributedLoading:
    """Makes `from_pretrained` with a `DistributedConfig` correct for models with tied weights."""

    @classmethod
    def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh: Any) -> Any:
        """Called by `from_pretrained` between making the model and loading its weights.

        FSDP2 keeps a flat copy of every weight whose rows do not divide by the number of processes.
        A weight that is tied only afterwards, or that is in two groups, would have two such copies,
        and one of them would never be updated. Weights are therefore tied first, and tied ones stay
        in the group of the root. `generate` of an encoder–decoder calls the encoder directly, so it
        has to gather the weights of the root itself.

        Raises:
            ValueError: for `pp_size`, because transformers splits only models whose parts are named
                as in Llama.
        """
        # A type checker cannot know that the next base class, PreTrainedModel, has the method.
        distribute = super().maybe_distribute_model  # type: ignore[misc]
        if distributed_config is None:
            return distribute(model, distributed_config, mesh)
        if distributed_config.pp_size > 1:
            raise ValueError(
                f"DistributedConfig(pp_size={distributed_config.pp_size}): transformers cannot "
                "split this model into pipeline stages; leave pp_size at 1."
            )
        # Transformers 5.19 has no replicas of shards.
        num_replicas = getattr(distributed_config, "dp_replicate_size", 1)
        if num_replicas * distributed_config.fsdp_size == 1:
            return distribute(model, distributed_config, mesh)
        if distributed_config.tp_size == 1:
            # Tensor parallelism, on the other hand, has to cut tied weights one by one.
            model.tie_weights()
        for target, source in model.all_tied_weights_keys.items():
            for weight in (target, source):
                module = weight.rpartition(".")[0]
                model.fsdp_plan.pop(module, None)
        model = distribute(model, distributed_config, mesh)
        if model.can_generate():
            # Some builds of torch have no distributed package.
            from torch.distributed.fsdp import register_fsdp_forward_method

            register_fsdp_forward_method(model, "generate")
        return model
