"""Weights, gradients and optimizer states divided among the processes (FSDP2): making, saving and continuing.

transformers divides a model that `from_pretrained(distributed_config=…)` loads, and its Trainer trains it, but writes
no optimizer state of it. What is missing is here.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig


def in_shards(model: PreTrainedModel, processes: int) -> PreTrainedModel:
    """The same model with its weights divided among all processes; with one process, as it is."""
    config, _, mesh = type(model).prepare_distribute_model(DistributedConfig(fsdp_size=processes))
    return type(model).maybe_distribute_model(model, config, mesh)


def in_one_piece(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in every process of a model in shards; a model that is whole is returned itself."""
    if not model.is_distributed_loading_by_transformers:
        return model
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    config = copy.deepcopy(model.config)
    del config.distributed_config
    whole = type(model)(config).to(dtype=model.dtype, device=model.device)
    whole.load_state_dict(weights)
    whole.generation_config = model.generation_config
    return whole.train(model.training)


class ShardedCheckpoints:
    """Put before `Trainer`, as in `class T(ShardedCheckpoints, Trainer)`, it saves and continues trainings of models
    in shards.

    Checkpoints are those of a model in one piece: weights and optimizer states are gathered, one tensor after the
    other, and the Trainer writes them. Any number of processes reads them, with shards or without; each process reads
    all, and keeps its part.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        model = kwargs.get("model", args[0] if args else None)
        arguments = kwargs.get("args", args[1] if len(args) > 1 else None)
        self.gathered: dict[int, dict[str, Any]] | None = None  # the states of the optimizer, to be written next
        if not getattr(model, "is_distributed_loading_by_transformers", False) or arguments is None:
            super().__init__(*args, **kwargs)
            return
        # transformers refuses to save anything else of such a model, as it cannot save the optimizer itself.
        wanted, arguments.save_only_model = arguments.save_only_model, True
        try:
            super().__init__(*args, **kwargs)
        finally:
            arguments.save_only_model = wanted
        model.register_load_state_dict_pre_hook(_divide_weights)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        if is_new and self.is_distributed_loading_by_transformers:
            optimizer.register_state_dict_post_hook(self._with_gathered_states)
            optimizer.register_load_state_dict_pre_hook(_divide_states)
        return optimizer

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the weights, and gather the states of the optimizer, which the Trainer saves after them."""
        super().save_model(*args, **kwargs)
        if self.is_distributed_loading_by_transformers and self.is_in_train and not self.args.save_only_model:
            states = self.optimizer.state_dict()["state"]
            whole = {
                number: {name: _whole(value, self.args.should_save) for name, value in state.items()}
                for number, state in states.items()
            }
            self.gathered = whole if self.args.should_save else None

    def _with_gathered_states(self, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        if self.gathered is None:
            return state_dict
        states, self.gathered = self.gathered, None
        return {**state_dict, "state": states}

    def gather_weights(self) -> PreTrainedModel:
        """Put the whole model in the place of its shards, to measure and save it as any other; returns it."""
        self.model = self.model_wrapped = in_one_piece(self.model)
        self.is_distributed_loading_by_transformers = False
        return self.model


def _whole(value: Any, is_kept: bool) -> Any:
    """A shard as the whole tensor on the CPU, where it `is_kept`; all processes must ask for it."""
    if not isinstance(value, DTensor):
        return value
    whole = value.full_tensor()
    return whole.cpu() if is_kept else None


def _part(whole: Any, like: Any) -> Any:
    """The part of a `whole` tensor that this process has of `like`, a tensor in shards."""
    if not isinstance(like, DTensor) or isinstance(whole, DTensor) or whole.shape != like.shape:
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _divide_weights(model: nn.Module, state_dict: dict[str, Any], *_: Any) -> None:
    """What is loaded into a model in shards is divided like its weights."""
    own = model.state_dict()
    state_dict.update({name: _part(value, own.get(name)) for name, value in state_dict.items()})


def _divide_states(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """What is loaded into the optimizer of a model in shards is divided like its weights."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = {
        number: {
            name: _part(value, weights[number]) if isinstance(value, torch.Tensor) else value
            for name, value in state.items()
        }
        for number, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}
