"""The logits of every token of labelled data, for metrics that predictions do not determine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from datasets import Dataset


@torch.inference_mode()
def token_logits(
    model: Any, encoded: Dataset, collator: Any, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits `(B, L, vocab)` and labels `(B, L)` of each batch, in the order of the examples."""
    for batch in DataLoader(encoded, batch_size=batch_size, collate_fn=collator):
        inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
        yield model(**inputs).logits, inputs["labels"]
