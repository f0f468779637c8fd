"""LM head and cross-entropy in one: the logits of a few rows at a time, never of all."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers.utils.generic import maybe_autocast

from .fast_linear import autocast_dtype, fast_linear, is_traced_or_transformed, is_unmodified
from .host_side import numbers

CPU_CHUNK_ROWS = 256  # with fewer the products are slower, with more nothing is faster
CHUNK_LOGITS = 2**26  # of other devices, where every chunk is a launch of kernels: 256 MiB in float32


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """How many rows of logits are computed at a time."""
    return CPU_CHUNK_ROWS if device.type == "cpu" else max(CPU_CHUNK_ROWS, CHUNK_LOGITS // vocabulary)


def linear_cross_entropy(
    states: torch.Tensor, head: nn.Module, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Sum over rows of the cross-entropy of `head(states)`, for `states` `(n, embedding_size)` and `labels` `(n,)`.

    The gradients are computed along with the loss, `chunk_rows` rows at a time: no matrix of `(n, vocab)` is ever
    held, and nothing is computed twice. A head that is more than a linear layer (an adapter, hooks, sharded or
    quantised weights) is called as the module it is.
    """
    if torch.is_grad_enabled() and is_unmodified(head) and not is_traced_or_transformed(states):
        dtype = autocast_dtype(states.device) or states.dtype
        return _LinearCrossEntropy.apply(states, head.weight, head.bias, labels, label_smoothing, dtype)
    logits = head(states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)


class _LinearCrossEntropy(torch.autograd.Function):
    """Products are computed in `dtype`, probabilities and sums in float32 at least."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        classes = numbers(labels) if labels.device.type == "cpu" and len(labels) else np.zeros(1)
        if not 0 <= classes.min() <= classes.max() < len(weight):
            raise IndexError("a label is out of bounds")  # as `F.cross_entropy` does
        exact = torch.promote_types(dtype, torch.float32)
        with maybe_autocast(states.device.type, enabled=False):
            total = torch.zeros((), dtype=exact, device=states.device)
            state_grads = torch.empty_like(states)
            weight_grad, bias_grad = (
                torch.zeros_like(tensor, dtype=exact) if needed else None
                for tensor, needed in zip((weight, bias), ctx.needs_input_grad[1:3], strict=True)
            )
            factor, summand = weight.to(dtype), None if bias is None else bias.to(dtype)
            on_label, on_all = 1 - label_smoothing, label_smoothing / len(weight)
            step = chunk_rows(len(weight), states.device)
            for start in range(0, len(states), step):
                rows = slice(start, start + step)
                chunk, label = states[rows].to(dtype), labels[rows, None]  # (c, embedding_size), (c, 1)
                log_probs = fast_linear(chunk, factor, summand).log_softmax(-1, dtype=exact)  # (c, vocab)
                total -= on_label * log_probs.gather(1, label).sum()
                if label_smoothing:
                    total -= on_all * log_probs.sum()
                logit_grads = log_probs.exp_().scatter_add_(1, label, log_probs.new_full(label.shape, -on_label))
                if label_smoothing:
                    logit_grads -= on_all
                if bias_grad is not None:
                    bias_grad += logit_grads.sum(0)
                logit_grads = logit_grads.to(dtype)
                state_grads[rows] = fast_linear(logit_grads, factor.t())
                if weight_grad is None:
                    continue
                if dtype == exact:
                    weight_grad.addmm_(logit_grads.t(), chunk)
                else:
                    weight_grad += logit_grads.t() @ chunk
        ctx.save_for_backward(state_grads, weight_grad, bias_grad, states, weight, bias, labels)
        ctx.label_smoothing = label_smoothing
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *grads, states, weight, bias, labels = ctx.saved_tensors
        factors = states, weight, bias
        if torch.is_grad_enabled():  # create_graph: these gradients need gradients of their own
            logits = F.linear(states, weight, bias)
            total = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=ctx.label_smoothing)
            needed = [factor for factor, need in zip(factors, ctx.needs_input_grad, strict=False) if need]
            found = iter(torch.autograd.grad(total, needed, grad, create_graph=True))
            return *(next(found) if need else None for need in ctx.needs_input_grad[:3]), None, None, None
        scaled = (
            None if saved is None else (saved * grad).to(factor.dtype)
            for saved, factor in zip(grads, factors, strict=True)
        )
        return *scaled, None, None, None
