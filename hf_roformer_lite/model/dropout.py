"""Dropout that draws its random numbers, and keeps what the backward pass needs, at a quarter of the usual cost."""

from itertools import count
from typing import Any

import torch
from torch import nn

from .fast_linear import is_traced_or_transformed
from .operators import NAMESPACE

_calls = count()


class RoFormerLiteDropout(nn.Dropout):
    """Dropout that draws 16 random bits for each number on a CPU, four numbers at a time.

    `nn.Dropout` draws them one at a time there, which in small models takes as long as a matrix product. The
    probability is exact to 1 / 65536.
    """

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return states
        if states.device.type != "cpu" or self.p == 1:
            return super().forward(states)
        if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
            return states * draw_kept(states.detach(), self.p, _next_call()) * (1 / (1 - self.p))
        if is_traced_or_transformed(states):
            return super().forward(states)
        return _Masked.apply(states, _draw_kept(states, self.p), 1 / (1 - self.p))


@torch.compiler.assume_constant_result
def _next_call() -> int:
    """A number for each call of a graph, fixed when the graph is made."""
    return next(_calls)


def _draw_kept(states: torch.Tensor, p: float) -> torch.Tensor:
    """Which of the numbers of `states` dropout keeps, in their shape."""
    numbers = states.numel()
    words = torch.empty((numbers + 3) // 4, dtype=torch.int64, device=states.device).random_(-(2**63), None)
    return words.view(torch.int16)[:numbers].view(states.shape) >= round(p * 2**16) - 2**15


# Compiled code would draw its numbers one at a time, and again for the backward pass.
@torch.library.custom_op(f"{NAMESPACE}::draw_kept", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def draw_kept(states: torch.Tensor, p: float, call: int) -> torch.Tensor:
    """`_draw_kept`. Compilers take equal calls for one, so each has a number of its own."""
    return _draw_kept(states, p)


@draw_kept.register_fake
def _(states: torch.Tensor, p: float, call: int) -> torch.Tensor:
    return states.new_empty(states.shape, dtype=torch.bool)


class _Masked(torch.autograd.Function):
    """`states * kept * scale`, which keeps one byte for each number, and not the four of a factor in float32."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return (states * kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return (grad * kept).mul_(ctx.scale), None, None
