"""Whether a checkpoint is whole, before a training continues from it.

torch ends the process at an optimizer's states of another shape, and trains on with whatever numbers it reads.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from transformers import Trainer, TrainerState
from transformers.trainer_pt_utils import safe_globals

from ..errors import InputError
from ..saved_model import naming
from .muon import MuonWithAdamW


def check_checkpoint(trainer: Trainer, checkpoint: str) -> int:
    """Refuse to continue from a damaged checkpoint.

    Args:
        trainer: Before its training.
        checkpoint: The directory.

    Returns:
        The step that the training continues after.

    Raises:
        InputError: naming the file, what is wrong with it, and what can be done.
    """
    try:
        step = _check_state(Path(checkpoint))
        _check_weights(trainer, Path(checkpoint))
        if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
            _check_optimizer(trainer, Path(checkpoint) / "optimizer.pt")
    except InputError as error:
        raise InputError(
            f"{error}; the checkpoint is damaged: remove it, and the training continues from the one before"
        ) from error
    return step


def _check_state(folder: Path) -> int:
    path = folder / "trainer_state.json"
    with naming(path):
        step = TrainerState.load_from_json(str(path)).global_step
    if folder.name != f"checkpoint-{step}":
        raise InputError(f"{path}: global_step={step} is not that of the folder")
    for path in sorted([*folder.glob("scheduler.pt"), *folder.glob("rng_state*.pth")]):
        with naming(path), safe_globals():
            torch.load(path, map_location="cpu", weights_only=True)
    return step


def _check_weights(trainer: Trainer, folder: Path) -> None:
    path, own = folder / "model.safetensors", trainer.model.state_dict()
    if not path.is_file() or (folder / "modules.json").is_file():  # sentence-transformers has other names
        return
    with naming(path), safe_open(path, "pt") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    unfit = [name for name, shape in shapes.items() if name not in own or list(own[name].shape) != shape]
    if unfit:
        raise InputError(f"{path}: {', '.join(unfit[:3])} of another model")


def _check_optimizer(trainer: Trainer, path: Path) -> None:
    """Groups and learning rates of all optimizers; the states of Adam and the like, which every weight has, in its own
    shape. Those of others may be of other shapes, as Adafactor's are, or none, as SGD's without momentum."""
    if not path.is_file():
        return
    with naming(path):
        saved = torch.load(path, map_location="cpu", weights_only=True)
        groups, states = saved["param_groups"], saved["state"]
        sizes = [len(group["params"]) for group in groups]
        rates = [group.get("initial_lr") for group in groups]  # a schedule by a metric notes none
    own = trainer.create_optimizer()
    parameters = [parameter for group in own.param_groups for parameter in group["params"]]
    fits = sizes == [len(group["params"]) for group in own.param_groups]
    if not fits or states.keys() - set(range(len(parameters))):
        raise InputError(f"{path}: its groups are those of another model")
    for group, rate in zip(own.param_groups, rates, strict=True):
        if rate is not None and rate != group["lr"]:
            raise InputError(f"{path}: initial_lr={rate} is not the learning rate of this training, {group['lr']}")
    if not isinstance(own, (torch.optim.Adam, MuonWithAdamW)):  # AdamW is a kind of Adam
        return
    if not states:
        raise InputError(f"{path}: it has no states")
    for number, state in states.items():
        tensors = [value for value in state.values() if isinstance(value, torch.Tensor) and value.ndim]
        if any(tensor.shape != parameters[number].shape for tensor in tensors):
            raise InputError(f"{path}: the state {number} is of a tensor of another shape")
