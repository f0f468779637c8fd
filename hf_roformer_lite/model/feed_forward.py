"""The feed-forward of a layer, whose inner states are the widest of a model: as few of them as possible are held."""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN
from transformers.utils.generic import maybe_autocast

from .configuration_roformer_lite import RoFormerLiteConfig
from .dropout import RoFormerLiteDropout
from .fast_linear import (
    RoFormerLiteLinear,
    activated_linear,
    autocast_dtype,
    fast_linear,
    is_traced_or_transformed,
    is_unmodified,
)
from .torch_internals import has_hooks

# Inner states computed at a time where that costs nothing: 8 MiB in float32 on a CPU, 256 MiB on other devices,
# where every piece is a launch of kernels.
PIECE, PIECE_ELSEWHERE = 2**21, 2**26
# In training the activation of so many of them, 32 MiB in float32, is not kept: the backward pass computes it again,
# and a step takes a few per cent longer.
MIN_RECOMPUTED = 2**23
# More of them than this in one layer, 256 MiB, are not kept on a CPU: the backward pass computes the first map again.
# Elsewhere `chunk_size_feed_forward` alone decides, as long batches are usual there and the time counts.
MOST_KEPT = 2**26


class RoFormerLiteMLP(nn.Module):
    """Feed-forward: `down(drop(act(up(x))))`, or gated `down(drop(act(gate(x)) * up(x)))`.

    `(..., hidden)` to `(..., hidden)`. Where there are many tokens they go through it in pieces: of
    `config.chunk_size_feed_forward` tokens, or by default of what the limits above allow.
    """

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        has_bias = partial(config.has_bias, "mlp_bias")
        self.gate_proj = RoFormerLiteLinear(hidden, inner, bias=has_bias("gate")) if config.gated_mlp else None
        self.up_proj = RoFormerLiteLinear(hidden, inner, bias=has_bias("up"))
        self.down_proj = RoFormerLiteLinear(inner, hidden, bias=has_bias("down"))
        self.act_fn = ACT2FN[config.hidden_act]
        self.dropout = RoFormerLiteDropout(config.mlp_dropout)
        self.chunk_size = config.chunk_size_feed_forward

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if is_traced_or_transformed(hidden_states):
            return self.feed(hidden_states)
        rows = hidden_states.flatten(0, -2)
        needs_grad = torch.is_grad_enabled()
        size = self.chunk_size or self._size_of_piece(rows, needs_grad)
        if len(rows) <= size:
            return self.feed(hidden_states)
        feed = partial(checkpoint, self.feed, use_reentrant=False) if needs_grad else self.feed
        return torch.cat([feed(piece) for piece in rows.split(size)]).view(hidden_states.shape)

    def feed(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The feed-forward of one piece."""
        if torch.is_grad_enabled() and _is_recomputable(self, hidden_states):
            gate = None if self.gate_proj is None else self.gate_proj(hidden_states)
            return _activated_product(self, self.up_proj(hidden_states), gate)
        if self.gate_proj is None:
            inner = activated_linear(self.up_proj, self.act_fn, hidden_states)  # (..., intermediate)
        else:
            inner = activated_linear(self.gate_proj, self.act_fn, hidden_states) * self.up_proj(hidden_states)
        return self.down_proj(self.dropout(inner))

    def _size_of_piece(self, rows: torch.Tensor, needs_grad: bool) -> int:
        inner = self.up_proj.weight.shape[0]
        if needs_grad and (rows.device.type != "cpu" or len(rows) * inner <= MOST_KEPT):
            return len(rows)
        return _rows_of_piece(inner, rows.device)


def _rows_of_piece(inner: int, device: torch.device) -> int:
    """A power of two, so that what is left over is one of the numbers of rows that `fast_linear` compiles."""
    rows = max((PIECE if device.type == "cpu" else PIECE_ELSEWHERE) // inner, 1)
    return 1 << (rows.bit_length() - 1)


def _is_recomputable(mlp: RoFormerLiteMLP, hidden_states: torch.Tensor) -> bool:
    """Whether that gains much, the activation depends on its input alone, and the map behind it is only that."""
    if is_traced_or_transformed(hidden_states):
        return False
    if hidden_states.shape[:-1].numel() * mlp.up_proj.weight.shape[0] < MIN_RECOMPUTED:
        return False
    act_fn = mlp.act_fn
    is_plain = not has_hooks(act_fn) and "forward" not in vars(act_fn) and next(act_fn.parameters(), None) is None
    has_dropout = mlp.dropout.training and mlp.dropout.p > 0 or has_hooks(mlp.dropout)
    return is_plain and not has_dropout and is_unmodified(mlp.down_proj)


def _activated_product(mlp: RoFormerLiteMLP, up: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """`down(act(up))`, or `down(act(gate) * up)`, that keeps its inputs alone."""
    dtype = autocast_dtype(up.device) or up.dtype
    rows = up.flatten(0, -2), None if gate is None else gate.flatten(0, -2)  # each (N, intermediate)
    output = _ActivatedProduct.apply(*rows, mlp.down_proj.weight, mlp.down_proj.bias, mlp.act_fn, dtype)
    return output.view(*up.shape[:-1], output.shape[-1])


def _inner(act_fn: nn.Module, up: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    return act_fn(up) if gate is None else act_fn(gate) * up


def _pieces(states: torch.Tensor) -> list[slice]:
    size = _rows_of_piece(states.shape[1], states.device)
    return [slice(start, start + size) for start in range(0, max(len(states), 1), size)]


class _ActivatedProduct(torch.autograd.Function):
    """The activation is cheap beside the products, and its output as large as all else of the feed-forward together:
    the backward pass computes it again, a piece at a time. Products are computed in `dtype`."""

    @staticmethod
    def forward(
        ctx: Any,
        up: torch.Tensor,
        gate: torch.Tensor | None,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        act_fn: nn.Module,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.save_for_backward(up, gate, weight, bias)
        ctx.act_fn, ctx.dtype = act_fn, dtype
        with maybe_autocast(up.device.type, enabled=False):
            factor, summand = weight.to(dtype), None if bias is None else bias.to(dtype)
            outputs = [
                fast_linear(_inner(act_fn, up[rows], None if gate is None else gate[rows]).to(dtype), factor, summand)
                for rows in _pieces(up)
            ]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: these gradients need gradients of their own
            return *_differentiable_grads(ctx, grad), None, None
        *states, weight, bias = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = any(ctx.needs_input_grad[:2]), *ctx.needs_input_grad[2:4]
        given = [state for state in states if state is not None]
        state_grads = [torch.empty_like(state) for state in given] if needs_states else []
        exact = torch.promote_types(ctx.dtype, torch.float32)
        weight_grad = torch.zeros_like(weight, dtype=exact) if needs_weight else None
        with maybe_autocast(grad.device.type, enabled=False):
            factor = weight.to(ctx.dtype)
            for rows in _pieces(given[0]):
                with torch.enable_grad():
                    pieces = [None if state is None else state[rows].detach().requires_grad_() for state in states]
                    inner = _inner(ctx.act_fn, *pieces).to(ctx.dtype)  # (n, intermediate)
                if weight_grad is not None and ctx.dtype == exact:
                    weight_grad.addmm_(grad[rows].t(), inner.detach())
                elif weight_grad is not None:
                    weight_grad += grad[rows].t() @ inner.detach()
                if needs_states:
                    wanted = [piece for piece in pieces if piece is not None]
                    found = torch.autograd.grad(inner, wanted, fast_linear(grad[rows], factor.t()))
                    for whole, piece in zip(state_grads, found, strict=True):
                        whole[rows] = piece
        found = iter(state_grads)
        return (
            *(next(found) if needs_states and state is not None else None for state in states),
            None if weight_grad is None else weight_grad.to(weight.dtype),
            grad.sum(0).to(weight.dtype) if needs_bias else None,
            None,
            None,
        )


def _differentiable_grads(ctx: Any, grad: torch.Tensor) -> list[torch.Tensor | None]:
    factors = up, gate, weight, bias = ctx.saved_tensors
    inner = _inner(ctx.act_fn, up, gate).to(ctx.dtype)
    output = F.linear(inner, weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype))
    needed = [factor for factor, need in zip(factors, ctx.needs_input_grad, strict=False) if need]
    found = iter(torch.autograd.grad(output, needed, grad, create_graph=True))
    return [next(found) if need else None for need in ctx.needs_input_grad[:4]]
