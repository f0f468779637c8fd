"""The linear map of all layers: `nn.Linear`, by the faster of torch's two matrix libraries on a CPU."""

from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.flop_counter import flop_registry, register_flop_formula

# Below these a choice costs what it gains: multiplications of a product, and weights of one with few rows.
FEWEST_PRODUCTS = 10**8
FEWEST_WEIGHTS = 2**16
FEW_ROWS = 64
# With so many rows, as in generation, a product with no fewer outputs than inputs is fastest weight first.
FEW_AND_WIDE = range(2, 9)

HAS_ONEDNN = torch.backends.mkldnn.is_available()
if HAS_ONEDNN:
    _onednn_linear = torch.ops.mkldnn._linear_pointwise.default


def rows_that_return(rows: int) -> int:
    """`rows` rounded up by a sixteenth at most, so that batches of all sizes have few numbers of rows in common.

    oneDNN compiles every shape anew (1 to 5 ms) and keeps what it made (0.6 MiB), of 1,024 shapes at most.
    """
    step = 1 << max(rows.bit_length() - 5, 0)
    return -(-rows // step) * step


def rows_to_compute(tokens: int, weights: int, device: torch.device, dtype: torch.dtype) -> int:
    """How many rows to make of `tokens` for a model whose large products have `weights` weights: more than there are
    where `multiply` is the faster for it.
    """
    is_small = tokens <= FEW_ROWS or tokens * weights < FEWEST_PRODUCTS
    return tokens if is_small or not _has_libraries(device, dtype) else rows_that_return(tokens)


def multiply(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`states @ weight.T + bias`, `(N, in)` to `(N, out)`, without gradients, by what is fastest for the shape.

    Milliseconds on two cores of an AMD EPYC with AVX-512, as `F.linear` computes it by MKL and as it is done here:
    `(1024, 512)` by `(512, 2048)` 12.1 and 10.7 (oneDNN), `(8, 256)` by `(256, 8192)`, a weight that no cache holds,
    1.65 and 0.66 (weight first). Whole models gain a tenth at lengths that are full, greedy generation a quarter.
    """
    return _multiply(states, weight, bias) if _has_choice(states, weight) else F.linear(states, weight, bias)


def _multiply(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows, (outputs, inputs) = states.shape[0], weight.shape
    if rows in FEW_AND_WIDE and outputs >= inputs:
        turned = weight @ states.t()  # (out, N)
        # Turned back along with the bias: `contiguous` alone would take longer.
        return torch.add(turned.t(), 0 if bias is None else bias, out=turned.new_empty(rows, outputs))
    return _onednn_linear(states, weight, bias, "none", [], "")


def _operations(states: torch.Size, weight: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * states.numel() * weight[0]


# torch's own counter of operations knows all others. A bundle's copy of this file finds the entry made.
if HAS_ONEDNN and torch.ops.mkldnn._linear_pointwise not in flop_registry:
    register_flop_formula(torch.ops.mkldnn._linear_pointwise)(_operations)


def _has_choice(states: torch.Tensor, weight: torch.Tensor) -> bool:
    rows, weights = states.numel() // weight.shape[1], weight.numel()
    return (
        (
            weights >= FEWEST_WEIGHTS
            if rows <= FEW_ROWS
            else rows * weights >= FEWEST_PRODUCTS and rows == rows_that_return(rows)
        )
        and states.dtype == weight.dtype
        and _has_libraries(states.device, states.dtype)
    )


def _has_libraries(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cpu" and dtype == torch.float32 and HAS_ONEDNN and not torch.is_autocast_enabled("cpu")


def is_untouched(module: nn.Module, kind: type[nn.Module] | None = None) -> bool:
    """Whether a module is nothing but a linear map, or of class `kind`: no adapter, no hook, weights not sharded,
    quantised or elsewhere. Only then may its weight be read in place of calling it.
    """
    return (
        (type(module) in (RoFormerLiteLinear, nn.Linear) if kind is None else type(module) is kind)
        and type(module.weight) is nn.Parameter
        and not module.weight.is_meta
        and not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))
        and not (module._backward_hooks or module._backward_pre_hooks or _has_any_global_hook())
    )


def is_eager(states: torch.Tensor) -> bool:
    """Whether operations on `states` run as they are called: nothing traces, compiles or transforms them."""
    return (
        type(states) is torch.Tensor  # tracers put tensors of their own in its place
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type of products on `device` under autocast; None without."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`F.linear` by `multiply`, for tensors that `is_eager`."""
    if not _has_choice(states, weight):
        return F.linear(states, weight, bias)
    needs_grad = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (states, weight, bias)
    )
    flat = states.reshape(-1, states.shape[-1])  # (N, in)
    output = (_Multiply.apply if needs_grad else _multiply)(flat, weight, bias)
    return output.view(*states.shape[:-1], weight.shape[0])


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
    """`nn.Linear` that computes float32 on a CPU by `multiply`, with gradients. Everything else goes the way of
    `nn.Linear`: other types and devices, autocast, weights that are sharded or quantised, tracing."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if type(self.weight) is nn.Parameter and is_eager(input):
            return linear(input, self.weight, self.bias)
        return super().forward(input)
