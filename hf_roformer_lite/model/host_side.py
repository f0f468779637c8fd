"""What the host works out for a batch. Masks and labels are read from their device at once; index tensors are sent in
one copy for each layout, and one for the labels.

Reading a number from a device waits for all the work it was given before. Sending does not wait where the memory is
pinned. On a CPU there is nothing to read or to send, and both give back what they were given.

What is worked out in numpy becomes tensors by `torch.from_dlpack`, which shares the memory as `torch.from_numpy` does,
and without an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from transformers.utils.import_utils import is_tracing

from .torch_internals import is_transformed

T = TypeVar("T")
ALIGNMENT = 8  # bytes of the widest number


def on_host(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Whole numbers and booleans on the host, read in one copy; in traces, where nothing can be read, as they are."""
    away = [tensor for tensor in tensors if tensor is not None and tensor.device.type != "cpu"]
    if not away or is_tracing(away[0]):
        return list(tensors)
    read = torch.cat([tensor.flatten().long() for tensor in away]).cpu().split([tensor.numel() for tensor in away])
    found = {id(tensor): part.view(tensor.shape) for tensor, part in zip(away, read, strict=True)}
    return [found.get(id(tensor), tensor) for tensor in tensors]


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor on the host; in the same memory where there is one, so not to be written to."""
    if is_transformed():  # inside torch.func tensors have no memory to look into
        kind = np.bool_ if tensor.dtype == torch.bool else np.int64
        return np.array(tensor.tolist(), dtype=kind).reshape(tensor.shape)
    return tensor.numpy()


def move_together(value: T, device: torch.device | str | int) -> T:
    """`value` with every tensor in it on `device`: tensors, lists, dicts and dataclasses of them. Those on the host go
    in one copy; what is there already stays the same object, also `value` itself."""
    device = torch.device(device)
    if device.type in ("cpu", "meta"):
        return _replaced(value, lambda tensor: tensor.to(device), {})
    waiting: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            waiting[id(tensor)] = tensor
        return tensor

    _replaced(value, note, {})
    sent = dict(zip(waiting, _send(list(waiting.values()), device), strict=True))
    return _replaced(value, lambda tensor: sent[id(tensor)] if id(tensor) in sent else tensor.to(device), {})


class Movable:
    """A dataclass with tensors, for layers that may lie on another device."""

    def to(self: T, device: torch.device | str | int, non_blocking: bool = False) -> T:
        """The same on `device` (accelerate's hooks call this); itself if it is there."""
        return move_together(self, device)


def _send(tensors: list[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Tensors of the host as views of one buffer on `device`."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    places = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    buffer = torch.empty(sum(places), dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    for tensor, size, part in zip(tensors, sizes, buffer.split(places), strict=True):
        part[:size].copy_(tensor.contiguous().view(-1).view(torch.uint8))
    parts = buffer.to(device, non_blocking=True).split(places)
    return [
        part[:size].view(tensor.dtype).view(tensor.shape)
        for tensor, size, part in zip(tensors, sizes, parts, strict=True)
    ]


def _replaced(value: Any, change: Callable[[torch.Tensor], torch.Tensor], seen: dict[int, Any]) -> Any:
    """`value` with `change` of its tensors; what occurs twice is changed once, and what has no change is kept."""
    if id(value) in seen:
        return seen[id(value)]
    new = value
    if isinstance(value, torch.Tensor):
        new = change(value)
    elif isinstance(value, list):
        items = [_replaced(item, change, seen) for item in value]
        new = items if any(map(_differs, items, value)) else value
    elif isinstance(value, dict):
        items = {name: _replaced(item, change, seen) for name, item in value.items()}
        new = items if any(map(_differs, items.values(), value.values())) else value
    elif is_dataclass(value):
        old = {field.name: getattr(value, field.name) for field in fields(value)}
        items = {name: _replaced(item, change, seen) for name, item in old.items()}
        changed = {name: item for name, item in items.items() if item is not old[name]}
        new = replace(value, **changed) if changed else value
    seen[id(value)] = new
    return new


def _differs(new: Any, old: Any) -> bool:
    return new is not old


__all__ = ["Movable", "move_together", "numbers", "on_host"]
