"""Losses.

Every loss is a sum over the labelled items divided by the number of these items, either in this
batch or in all batches of an optimizer step: Trainer counts the latter and passes it as
`num_items_in_batch`. Accumulating the gradients of small batches therefore equals one large batch.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers.utils.import_utils import is_tracing

from ..padding_free.layers import MAP_HOOKS
from .packing import check_shape

IGNORE_INDEX = -100  # The label that losses ignore.
# The number of rows of logits that are computed at a time on a CPU. Fewer rows make the matrix
# products slower, and more rows do not make them faster.
CHUNK_ROWS = 256
# The number of logits that are computed at a time on other devices, where every chunk launches
# kernels: 256 MiB in float32.
CHUNK_LOGITS = 2**26


def check_classes(labels: torch.Tensor) -> None:
    """Reject labels of classes that are not integers.

    Raises:
        ValueError: for boolean or floating-point labels.
    """
    if labels.dtype == torch.bool or labels.is_floating_point():
        raise ValueError(
            f"labels of classes must be integers, not {labels.dtype}. For several "
            "labels or numbers, set config.problem_type to "
            '"multi_label_classification" or "regression".'
        )


def ignore_classes(labels: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """The classes `labels`, with -100 where `where` is true. Small integers, such as uint8, could
    not hold this number.

    Raises:
        ValueError: for labels that are not integers.
    """
    check_classes(labels)
    return labels.long().masked_fill(where.to(labels.device), IGNORE_INDEX)


def flat_classes(labels: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """The classes `(...)` of `states` `(..., width)` as a vector of integers on the same device.

    Raises:
        ValueError: for labels of another shape, even if their number is right, and for labels that
            are not integers.
    """
    check_shape("labels", labels, states.shape[:-1])
    check_classes(labels)
    return labels.to(device=states.device, dtype=torch.long).flatten()


def mean_of_items(
    total: torch.Tensor,
    num_items: int | torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None,
) -> torch.Tensor:
    """`total` divided by the number of items.

    Without items the result is 0 while gradients are computed, and NaN otherwise: in an evaluation
    Trainer leaves out batches whose loss is NaN, as with stock models.
    """
    count = num_items if num_items_in_batch is None else num_items_in_batch
    count = torch.as_tensor(count, device=total.device)
    if torch.is_grad_enabled():
        count = count.clamp(min=1)
    return total / count


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of `logits` `(..., classes)` and `labels` `(...)`. Without labels the result is
    the one of `mean_of_items`.

    Args:
        label_smoothing: The share of the target that is divided equally among all classes (Szegedy
            et al. 2015, arXiv:1512.00567).

    Raises:
        ValueError: as in `flat_classes`.
    """
    labels = flat_classes(labels, logits)
    logits = logits.flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(
        logits,
        labels,
        reduction="sum",
        ignore_index=IGNORE_INDEX,
        label_smoothing=label_smoothing,
    )
    num_labelled = (labels != IGNORE_INDEX).sum()
    return mean_of_items(total, num_labelled, num_items_in_batch)


def sequence_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    problem_type: str,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Loss of `logits` `(B, num_labels)` for a `problem_type` in transformers, whose own losses
    ignore `num_items_in_batch`.

    Args:
        labels: `(B,)` of classes for single_label_classification, `(B, num_labels)` of 0 and 1 for
            multi_label_classification (binary cross-entropy), `(B,)` or `(B, num_labels)` of
            numbers for regression (mean squared error).

    Raises:
        ValueError: for labels of another shape, classes that are not integers, and targets of
            multi_label_classification outside of 0 to 1.
    """
    labels = labels.to(logits.device)
    if problem_type == "single_label_classification":
        if labels.ndim == 2:
            labels = labels.squeeze(-1)
        return cross_entropy(logits, labels, num_items_in_batch)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    shape = logits.shape
    if labels.ndim == 1 and shape[-1] == 1:
        shape = shape[:1]
    check_shape("labels", labels, shape)
    targets = labels.to(logits.dtype).reshape(logits.shape)
    if problem_type == "regression":
        total = F.mse_loss(logits, targets, reduction="sum")
    else:
        check_probabilities(targets)
        total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return mean_of_items(total, targets.numel(), num_items_in_batch)


def check_probabilities(targets: torch.Tensor) -> None:
    """Reject targets outside the range from 0 to 1. A traced graph cannot check values.

    Raises:
        ValueError: for such targets.
    """
    if is_tracing(targets) or bool(((targets >= 0) & (targets <= 1)).all()):
        return
    raise ValueError("labels of multi_label_classification must lie between 0 and 1.")


def linear_cross_entropy(
    hidden_states: torch.Tensor,
    head: nn.Module,
    labels: torch.Tensor,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Sum of the cross-entropy of `head(hidden_states)`, for states `(n, width)` and `labels`
    `(n,)`, none of which is ignored.

    If gradients are needed, they are computed along with the loss, some rows at a time, so that no
    matrix `(n, vocab)` is ever in memory. A head that is more than a linear layer (an adapter;
    sharded, quantised or offloaded weights) is called as a module.
    """
    if is_plain_linear(head) and torch.is_grad_enabled() and not is_tracing(hidden_states):
        device_type = hidden_states.device.type
        dtype = hidden_states.dtype
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
        return LinearCrossEntropy.apply(
            hidden_states, head.weight, head.bias, labels, label_smoothing, dtype
        )
    logits = head(hidden_states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)


def is_plain_linear(head: nn.Module) -> bool:
    """Whether calling a module only multiplies by its weight, and runs no hooks."""
    if type(head) is not nn.Linear or "forward" in vars(head) or has_hooks(head):
        return False
    # ZeRO 3 leaves an empty weight behind.
    is_whole = head.weight.shape == (head.out_features, head.in_features)
    return type(head.weight) is nn.Parameter and is_whole


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks, except those that make it compute a flat row. (torch keeps hooks
    in dictionaries of the module.)"""
    tables = [value for name, value in vars(module).items() if name.endswith("hooks")]
    hooks = [hook for table in tables if isinstance(table, dict) for hook in table.values()]
    return any(hook not in MAP_HOOKS for hook in hooks)


# torch.nn.functional.linear_cross_entropy, new in torch 2.13, does the same in float32 and at about
# the same speed (`python -m benchmarks losses`). For bfloat16 on a CPU its default policy converts
# to float32, which takes twice as long on a processor with instructions for bfloat16. Its policy
# "accurate" is faster than this class, but it returns the loss in bfloat16 and adds the gradients
# of the chunks in bfloat16. With label smoothing it computes all logits at once.
class LinearCrossEntropy(torch.autograd.Function):
    """Cross-entropy of a linear layer, whose gradients are computed in the forward pass. Products
    are computed in `dtype`, and probabilities and sums in at least float32."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        device_type = hidden_states.device.type
        vocab_size = len(weight)
        exact = torch.promote_types(dtype, torch.float32)
        num_rows = CHUNK_ROWS
        if device_type != "cpu":
            num_rows = max(CHUNK_ROWS, CHUNK_LOGITS // vocab_size)
        loss = torch.zeros((), dtype=exact, device=hidden_states.device)
        state_grad = torch.empty_like(hidden_states)
        weight_grad = None
        if ctx.needs_input_grad[1]:
            weight_grad = torch.zeros_like(weight, dtype=exact)
        bias_grad = None if bias is None else torch.zeros_like(bias, dtype=exact)

        with torch.autocast(device_type, enabled=False):
            weight_in_dtype = weight.to(dtype)
            bias_in_dtype = None if bias is None else bias.to(dtype)
            for start in range(0, len(hidden_states), num_rows):
                rows = slice(start, start + num_rows)
                states = hidden_states[rows].to(dtype)  # (c, width)
                logits = F.linear(states, weight_in_dtype, bias_in_dtype)  # (c, vocab)
                chunk_loss, logit_grad = cross_entropy_and_gradient(
                    logits, labels[rows, None], label_smoothing, exact
                )
                loss += chunk_loss
                if bias_grad is not None:
                    bias_grad += logit_grad.sum(dim=0)
                logit_grad = logit_grad.to(dtype)
                state_grad[rows] = logit_grad @ weight_in_dtype
                if weight_grad is not None:
                    add_product(weight_grad, logit_grad.t(), states)
                # The next chunk takes their memory.
                del logits, logit_grad
        ctx.save_for_backward(state_grad, weight_grad, bias_grad)
        bias_dtype = None if bias is None else bias.dtype
        ctx.dtypes = (hidden_states.dtype, weight.dtype, bias_dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = [
            None if saved is None else (saved * grad).to(dtype)
            for saved, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*gradients, None, None, None)


def cross_entropy_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the cross-entropy of `logits` `(c, vocab)` and `labels` `(c, 1)`, and its gradient
    with respect to the logits, in `dtype`."""
    share_of_all = label_smoothing / logits.shape[1]
    log_probs = logits.log_softmax(dim=-1, dtype=dtype)
    loss = -(1 - label_smoothing) * log_probs.gather(dim=1, index=labels).sum()
    if label_smoothing:
        loss -= share_of_all * log_probs.sum()
    on_labels = log_probs.new_full(labels.shape, label_smoothing - 1)
    gradient = log_probs.exp_().scatter_add_(dim=1, index=labels, src=on_labels)
    if label_smoothing:
        gradient -= share_of_all
    return loss, gradient


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add `left @ right` to `total`, in place."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right
