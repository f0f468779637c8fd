"""Losses of all heads. Each is a sum over labelled items divided by their number.

The number is that of this batch, or `num_items_in_batch`, which Trainer counts over all batches of an optimiser step,
so that accumulating gradients over many small batches equals one large batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from transformers.utils.import_utils import is_tracing

from .fused_cross_entropy import linear_cross_entropy
from .operators import find_labelled, labelled_places

IGNORE_INDEX = -100  # transformers' label of positions that count for nothing


def _mean(
    total: torch.Tensor, items: int | torch.Tensor, num_items_in_batch: int | torch.Tensor | None
) -> torch.Tensor:
    count = items if num_items_in_batch is None else num_items_in_batch
    if isinstance(count, torch.Tensor):
        return total / count.to(total.device).clamp(min=1)
    return total / max(count, 1)


def _no_such_class(labels: torch.Tensor, classes: int, ignored: int) -> ValueError:
    """What to say of labels outside the classes, which only a CPU reports before it goes on."""
    labels = labels[labels != ignored]
    return ValueError(
        f"labels has numbers from {int(labels.min())} to {int(labels.max())}; each must be from 0 to {classes - 1}, "
        f"or {ignored}, which counts for nothing."
    )


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of `logits` `(..., classes)` and `labels` `(...)`; 0 when nothing is labelled.

    `label_smoothing` gives this share of the target to all classes alike (Szegedy et al. 2015, arXiv:1512.00567).
    """
    labels = labels.to(logits.device, torch.long).flatten()
    logits = logits.flatten(0, -2)
    try:
        total = F.cross_entropy(
            logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits,
            labels,
            ignore_index=ignore_index,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
    except IndexError as error:
        raise _no_such_class(labels, logits.shape[-1], ignore_index) from error
    return _mean(total, (labels != ignore_index).sum(), num_items_in_batch)


def labelled_lm_loss(
    hidden_states: torch.Tensor,
    labels: torch.Tensor,
    transform: Callable[[torch.Tensor], torch.Tensor],
    lm_head: nn.Module,
    num_items_in_batch: int | torch.Tensor | None = None,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of the labelled positions alone: no other position goes through the LM head.

    Args:
        hidden_states: `(B, L, hidden)`.
        labels: `(B, L)`, aligned with `hidden_states`, or on the host; -100 where nothing is to be predicted.
        transform: From `(n, hidden)` to `(n, embedding_size)`.
        lm_head: From there to `(n, vocab)`.
    """
    places, targets = _find_labelled(labels, hidden_states.device)
    states = transform(hidden_states.flatten(0, -2).index_select(0, places))  # (n, embedding_size)
    try:
        total = linear_cross_entropy(states, lm_head, targets, label_smoothing)
    except IndexError as error:
        raise _no_such_class(targets, lm_head.out_features, IGNORE_INDEX) from error
    return _mean(total, (targets != IGNORE_INDEX).sum(), num_items_in_batch)


def _find_labelled(labels: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of the labelled positions among all, and their labels, each `(n,)`, on `device`."""
    if not is_tracing(labels):
        return labelled_places(labels, IGNORE_INDEX, device)
    labels = labels.to(device, torch.long).flatten()
    if not torch.compiler.is_exporting():
        return find_labelled(labels, IGNORE_INDEX)
    places = (labels != IGNORE_INDEX).nonzero().squeeze(-1)
    return places, labels[places]


def sequence_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    problem_type: str,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Loss of `logits` `(B, num_labels)` for a `problem_type` of transformers.

    `labels` is `(B,)` of classes for single_label_classification, `(B, num_labels)` of 0 and 1 for
    multi_label_classification (binary cross-entropy), `(B,)` or `(B, num_labels)` of numbers for regression (mean
    squared error).

    Raises:
        ValueError: for labels of another shape, and for numbers that are no class.
    """
    labels = labels.to(logits.device)
    if problem_type == "single_label_classification":
        return cross_entropy(logits, labels, num_items_in_batch)
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if labels.numel() != logits.numel():
        raise ValueError(
            f"labels has shape {tuple(labels.shape)}; for problem_type={problem_type!r} it must be "
            f"{tuple(logits.shape)}, a number for each score."
        )
    targets = labels.to(logits.dtype).reshape(logits.shape)
    if problem_type == "regression":
        total = F.mse_loss(logits, targets, reduction="sum")
    else:
        total = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return _mean(total, targets.numel(), num_items_in_batch)


def infer_problem_type(num_labels: int, labels: torch.Tensor) -> str:
    """The problem type that `num_labels` and the kind of `labels` speak of, by transformers' own rule."""
    if num_labels == 1:
        return "regression"
    is_class = labels.dtype in (torch.long, torch.int)
    return "single_label_classification" if is_class else "multi_label_classification"
