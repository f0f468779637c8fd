"""Weights, gradients and optimizer states divided among the processes (FSDP2): making, saving and continuing.

transformers divides a model that `from_pretrained(distributed_config=…)` loads, and its Trainer trains it, but writes
no optimizer state of it. What is missing is here.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig
from transformers.distributed.checkpoint import load_optimizer_distributed, save_optimizer_distributed
from transformers.trainer import SCHEDULER_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from ..errors import InputError
from .sharded_files import check_nothing_but_data

OPTIMIZER_SHARDS = "optimizer_shards"


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

    A checkpoint has the weights in one file, as always, and the optimizer states in `optimizer_shards`, a directory
    of torch.distributed.checkpoint to which each process writes its part. Both are read by any number of processes.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        model = kwargs.get("model", args[0] if args else None)
        arguments = kwargs.get("args", args[1] if len(args) > 1 else None)
        if not getattr(model, "is_distributed_loading_by_transformers", False) or arguments is None:
            super().__init__(*args, **kwargs)
            return
        # transformers refuses to save anything else of such a model, as it cannot save the optimizer itself.
        wanted, arguments.save_only_model = arguments.save_only_model, True
        try:
            super().__init__(*args, **kwargs)
        finally:
            arguments.save_only_model = wanted

    @property
    def saves_shards(self) -> bool:
        """Whether checkpoints are for any number of processes; also those of a single one, where that is asked for."""
        return self.is_distributed_loading_by_transformers or getattr(self.args, "shard_weights", False)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self.saves_shards:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        save_optimizer_distributed(self.model, _bare(self.optimizer), str(Path(output_dir) / OPTIMIZER_SHARDS))
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        folder = None if checkpoint is None else Path(checkpoint) / OPTIMIZER_SHARDS
        if not self.saves_shards or folder is None or not folder.is_dir():
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        try:
            check_nothing_but_data(folder)
        except ValueError as error:
            raise InputError(f"{folder} is damaged, or not what torch saves ({error})") from error
        load_optimizer_distributed(self.model, _bare(self.optimizer), str(folder))
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        if self.is_distributed_loading_by_transformers:
            _load_whole_weights(self.model, Path(resume_from_checkpoint))
        else:  # the trainers of sentence-transformers take no model
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def gather_weights(self) -> PreTrainedModel:
        """Put the whole model in the place of its shards, to measure and save it as any other; returns it."""
        self.model = self.model_wrapped = in_one_piece(self.model)
        self.is_distributed_loading_by_transformers = False
        return self.model

    def _load_best_model(self) -> None:
        if self.is_distributed_loading_by_transformers:
            _load_whole_weights(self.model, Path(self.state.best_model_checkpoint))
        else:
            super()._load_best_model()


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    return getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it


def _load_whole_weights(model: PreTrainedModel, checkpoint: Path) -> None:
    """Every process reads the file and keeps its part. Tied weights are in it under one name only."""
    path = checkpoint / SAFE_WEIGHTS_NAME
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read ({error})") from error
    found = set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))
    missing = [name for name in found.missing_keys if name not in model.all_tied_weights_keys]
    if missing:
        raise InputError(f"{path} lacks {len(missing)} weights of the model, such as {missing[0]}")
