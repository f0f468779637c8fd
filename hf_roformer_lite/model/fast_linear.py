"""The linear map of all layers: `nn.Linear`, by the faster of torch's two matrix libraries on a CPU.

torch multiplies float32 matrices by MKL on a CPU and carries oneDNN beside it. oneDNN is faster for large products,
but compiles every new shape and keeps what it compiled. With few rows, as in generation, MKL is fastest when the
weight is the left factor. `python -m benchmarks kernels` measures each choice on the machine at hand.
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers.activations import GELUActivation

from .torch_internals import has_hooks, has_onednn_bfloat16, is_transformed, onednn_linear, pack_weight, version_of

# Smaller products gain less than the choice costs.
MIN_MULTIPLICATIONS = 10**8  # of a product with many rows
MIN_WEIGHTS = 2**16  # of a product with few rows
MAX_FEW_ROWS = 64
MIN_PACKED_ROWS = 4  # that share weights which are packed
WEIGHT_FIRST_ROWS = range(2, 9)  # the weight is the left factor if it has no fewer outputs than inputs


def round_up_rows(rows: int) -> int:
    """`rows` rounded up by a sixteenth at most, to one of sixteen numbers between two powers of two.

    oneDNN then compiles and keeps (up to 1,024 shapes) few shapes for batches of all sizes.
    """
    step = 1 << max(rows.bit_length() - 5, 0)
    return -(-rows // step) * step


def choose_num_rows(tokens: int, weights: int, device: torch.device, dtype: torch.dtype) -> int:
    """How many rows to compute for `tokens` tokens in a model whose largest matrix has `weights` weights: more than
    there are tokens where that allows the faster library.
    """
    is_small = tokens <= MAX_FEW_ROWS or tokens * weights < MIN_MULTIPLICATIONS
    return tokens if is_small or not _has_two_libraries(device, dtype) else round_up_rows(tokens)


class RoFormerLiteLinear(nn.Linear):
    """`nn.Linear` by `fast_linear`. Weights that are sharded or quantised, and everything traced or transformed, go
    the way of `nn.Linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if type(self.weight) is nn.Parameter and not is_traced_or_transformed(input):
            return fast_linear(input, self.weight, self.bias)
        return super().forward(input)


def fast_linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear`, by the fastest library for float32 on a CPU: `(..., in)` to `(..., out)`, with gradients.

    Not for tensors that are traced or transformed (`is_traced_or_transformed`).
    """
    if not _has_choice(states, weight):
        return F.linear(states, weight, bias)
    rows = states.reshape(-1, states.shape[-1])  # (N, in)
    factors = (states, weight, bias)
    needs_grad = torch.is_grad_enabled() and any(factor is not None and factor.requires_grad for factor in factors)
    output = (_FastLinear.apply if needs_grad else _product)(rows, weight, bias)  # (N, out)
    return output.view(*states.shape[:-1], weight.shape[0])


def activated_linear(linear: nn.Module, act_fn: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """`act_fn(linear(states))`; GELU without gradients in one pass with a product that oneDNN computes."""
    is_one_pass = (
        type(act_fn) is GELUActivation
        and not torch.is_grad_enabled()
        and not is_traced_or_transformed(states)
        and is_unmodified(linear)
        and not has_hooks(act_fn)
        and "forward" not in vars(act_fn)
        and _is_onednn_product(states, linear.weight)
    )
    if not is_one_pass:
        return act_fn(linear(states))
    output = onednn_linear(states.reshape(-1, states.shape[-1]), linear.weight, linear.bias, "gelu", [], "none")
    return output.view(*states.shape[:-1], linear.weight.shape[0])


def _is_onednn_product(states: torch.Tensor, weight: torch.Tensor) -> bool:
    if states.numel() <= MAX_FEW_ROWS * weight.shape[1]:
        return False
    if states.dtype == weight.dtype == torch.bfloat16:  # which torch multiplies by oneDNN wherever it can
        is_enabled = states.device.type == "cpu" and torch.backends.mkldnn.enabled
        return is_enabled and not torch.is_autocast_enabled("cpu") and has_onednn_bfloat16()
    return _has_choice(states, weight)


class _FastLinear(torch.autograd.Function):
    """`_product` with gradients."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return _product(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states, weight = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            fast_linear(grad, weight.t()) if needs_states else None,
            grad.t() @ states if needs_weight else None,  # MKL is the faster for this shape
            grad.sum(0) if needs_bias else None,
        )


def _product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    rows, (outputs, inputs) = states.shape[0], weight.shape
    if rows in WEIGHT_FIRST_ROWS and outputs >= inputs:
        transposed = weight @ states.t()  # (out, N)
        # Adding the bias makes the result contiguous; a transposing copy of its own would take longer.
        return torch.add(transposed.t(), 0 if bias is None else bias, out=transposed.new_empty(rows, outputs))
    return onednn_linear(states, weight, bias, "none", [], "")


class PackedProduct:
    """`(rows, in)` by the weights of linear maps side by side, `(rows, out)`, without gradients, for many calls.

    Where `rows` share the weights and the processor has a library for it, the weights are kept as that library reads
    them. That is a copy of them, as is what several maps make together.

    Args:
        maps: Linear maps that read the same states; all of them `is_unmodified`.
        rows: How many rows most calls will have.
        activation: `gelu` is computed with the product where it costs nothing (see `has_activation`), or `none`.
    """

    def __init__(self, maps: list[nn.Linear], rows: int, activation: str = "none"):
        self.maps, self.versions = maps, _versions(maps)
        weights = [module.weight.detach() for module in maps]
        self.weight = weights[0] if len(maps) == 1 else torch.cat(weights)  # (out, in)
        self.bias = None
        if any(module.bias is not None for module in maps):
            biases = [
                module.weight.new_zeros(len(module.weight)) if module.bias is None else module.bias.detach()
                for module in maps
            ]
            self.bias = biases[0] if len(maps) == 1 else torch.cat(biases)
        self.is_packed = _gains_by_packing(self.weight, rows)
        if self.is_packed:
            self.weight = pack_weight(self.weight, rows)
        self.has_activation = self.is_packed and activation != "none"
        self.activation = activation if self.has_activation else "none"

    def is_current(self) -> bool:
        """Whether the weights of the maps still are those that this was made of. What is written past torch's count
        of changes, through `weight.data`, is not seen."""
        return self.versions == _versions(self.maps)

    def __call__(self, states: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """The product, and `residual` `(rows, out)` added to it."""
        if not self.is_packed:
            output = F.linear(states, self.weight, self.bias)
            return output if residual is None else output.add_(residual)
        if residual is None:
            return onednn_linear(states, self.weight, self.bias, self.activation, [], "none")
        return onednn_linear.binary(states, residual, self.weight, self.bias, "add")


def _versions(maps: list[nn.Linear]) -> list[tuple[int, int]]:
    tensors = [tensor for module in maps for tensor in (module.weight, module.bias) if tensor is not None]
    return [(tensor.data_ptr(), version_of(tensor)) for tensor in tensors]


def _gains_by_packing(weight: torch.Tensor, rows: int) -> bool:
    if pack_weight is None or weight.device.type != "cpu" or not torch.backends.mkldnn.enabled:
        return False
    if weight.dtype == torch.bfloat16:
        return has_onednn_bfloat16()
    return weight.dtype == torch.float32 and rows >= MIN_PACKED_ROWS


def _has_choice(states: torch.Tensor, weight: torch.Tensor) -> bool:
    if states.dtype != weight.dtype or not _has_two_libraries(states.device, states.dtype):
        return False
    rows, weights = states.numel() // weight.shape[1], weight.numel()
    if rows <= MAX_FEW_ROWS:
        return weights >= MIN_WEIGHTS
    return rows * weights >= MIN_MULTIPLICATIONS and rows == round_up_rows(rows)


def _has_two_libraries(device: torch.device, dtype: torch.dtype) -> bool:
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and onednn_linear is not None
        and torch.backends.mkldnn.enabled  # a user may have switched it off
        and not torch.is_autocast_enabled("cpu")
    )


def _count_operations(states: torch.Size, *args: Any, out_shape: torch.Size, **kwargs: Any) -> int:
    return 2 * states.numel() * out_shape[-1]


# torch's FlopCounterMode knows the other products. A second copy of this file, in a bundle, finds the entry made.
if onednn_linear is not None and onednn_linear not in flop_registry:
    register_flop_formula(onednn_linear)(_count_operations)


def is_unmodified(module: nn.Module, kind: type[nn.Module] | None = None) -> bool:
    """Whether a module is a linear map (or of class `kind`) and nothing else: no adapter, no hook, weights not
    sharded, quantised or on another device. Only then may its weight be read in place of calling it.
    """
    return (
        (type(module) in (RoFormerLiteLinear, nn.Linear) if kind is None else type(module) is kind)
        and type(module.weight) is nn.Parameter
        and not module.weight.is_meta
        and "forward" not in vars(module)
        and not has_hooks(module)
    )


def is_traced_or_transformed(states: torch.Tensor) -> bool:
    """Whether operations on `states` are recorded, compiled or transformed, and not simply executed."""
    return (
        type(states) is not torch.Tensor  # tracers put tensors of their own in its place
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or is_transformed()
    )


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype of products on `device` under autocast; None without."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return None
