"""Models of transformers that compute in float64 throughout, for a comparison in float64.

Their classes compute rotary positions and root-mean-square norms in float32 whatever the dtype of the model: against
them no conversion could be closer than that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn


def make_exact(reference: nn.Module, dtype: torch.dtype) -> nn.Module:
    """`reference`, in `dtype`, with the norms and rotations of its classes replaced where that is float64."""
    if dtype == torch.float64:
        for module in reference.modules():
            if hasattr(module, "variance_epsilon"):
                module.forward = partial(_rms_norm, module)
            elif "RotaryEmbedding" in type(module).__name__:
                module.forward = partial(_cos_and_sin, module)
    return reference


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """While it lasts, `tensor.float()` is `tensor.double()` where `dtype` is float64: so they rotate in float32."""
    if dtype != torch.float64:
        yield
        return
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def _rms_norm(module: nn.Module, hidden_states: torch.Tensor) -> torch.Tensor:
    return nn.functional.rms_norm(hidden_states, module.weight.shape, module.weight, module.variance_epsilon)


def _cos_and_sin(
    module: nn.Module, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    prefix = "" if layer_type is None else f"{layer_type}_"
    inv_freq = getattr(module, f"{prefix}inv_freq").double()
    parameters = _rope_parameters(module.config, layer_type)
    if parameters.get("rope_type", "default") == "default":  # the stored ones have been rounded
        exponents = torch.arange(len(inv_freq), dtype=torch.float64) / len(inv_freq)
        inv_freq = parameters["rope_theta"] ** -exponents
    angles = position_ids[..., None].double() * inv_freq
    angles, scaling = torch.cat((angles, angles), -1), getattr(module, f"{prefix}attention_scaling")
    return angles.cos() * scaling, angles.sin() * scaling


def _rope_parameters(config: Any, layer_type: str | None) -> dict[str, Any]:
    parameters = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    return parameters if layer_type is None else parameters[layer_type]
