"""The linear map of all layers: `nn.Linear`, by the faster of torch's two matrix libraries on a CPU."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.utils.import_utils import is_tracing

FEWEST_PRODUCTS = 10**8  # multiplications below which the way there costs what it gains (a millisecond's work)


def multiply(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`states @ weight.T + bias`, `(N, in)` to `(N, out)`, without gradients."""
    if _is_faster_by_onednn(states, weight):
        return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return F.linear(states, weight, bias)


def _is_faster_by_onednn(states: torch.Tensor, weight: torch.Tensor) -> bool:
    return (
        states.numel() * weight.shape[0] >= FEWEST_PRODUCTS
        and states.device.type == "cpu"
        and states.dtype == weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )


def is_untouched(module: nn.Module) -> bool:
    """Whether a linear map is still what this package made it: no adapter, no hook, weights not sharded or quantised.

    Only then may its weight be read in place of calling it.
    """
    return (
        type(module) is RoFormerLiteLinear
        and type(module.weight) is nn.Parameter
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
    )


def is_eager(states: torch.Tensor) -> bool:
    """Whether operations on `states` run as they are called: nothing traces, compiles or transforms them."""
    return not is_tracing(states) and not torch._C._are_functorch_transforms_active()


class _Multiply(torch.autograd.Function):
    """`multiply` with gradients."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return multiply(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _Multiply.apply(grad, weight.t(), None) if needs_states else None,
            grad.t() @ states if needs_weight else None,  # of this shape MKL's is the faster
            grad.sum(0) if needs_bias else None,
        )


class RoFormerLiteLinear(nn.Linear):
    """`nn.Linear` whose large float32 products on a CPU are oneDNN's.

    `nn.Linear` takes MKL's. For `(1024, 512)` by `(512, 2048)` on two cores of an AMD EPYC with AVX-512 these need
    12.7 ms and oneDNN's 10.9 ms; models of size mini and small gain a tenth. Everything else goes the way of
    `nn.Linear`: small products, other types and devices, autocast, weights that are sharded or quantised, tracing.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if (
            not _is_faster_by_onednn(input, self.weight)
            or type(self.weight) is not nn.Parameter
            or torch.is_autocast_enabled("cpu")
            or not is_eager(input)
        ):
            return super().forward(input)
        needs_grad = torch.is_grad_enabled() and any(
            tensor is not None and tensor.requires_grad for tensor in (input, self.weight, self.bias)
        )
        states = input.flatten(0, -2)  # (N, in)
        output = (_Multiply.apply if needs_grad else multiply)(states, self.weight, self.bias)
        return output.view(*input.shape[:-1], self.out_features)
