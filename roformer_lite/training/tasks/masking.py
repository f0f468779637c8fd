"""Masking of tokens for masked language models."""

from typing import Any

import torch
from transformers import DataCollatorForLanguageModeling


class MaskingCollator(DataCollatorForLanguageModeling):
    """transformers' collator, with at least one masked token in a batch.

    In a batch of a few tokens chance may mask none of them. Such a batch has nothing to learn from, and text that
    makes no other batch could not be measured once the model is trained.
    """

    def torch_mask_tokens(
        self, inputs: torch.Tensor, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs with masks `(B, L)`, and labels `(B, L)` that are -100 at all other tokens."""
        ids = inputs.clone()
        inputs, labels = super().torch_mask_tokens(inputs, special_tokens_mask, offset_mapping)
        if (labels == -100).all():
            words = (~torch.isin(ids, torch.tensor(self.tokenizer.all_special_ids))).nonzero()
            if len(words):
                row, place = words[torch.randint(len(words), (), generator=self.generator)]
                labels[row, place] = ids[row, place]
                inputs[row, place] = self.tokenizer.mask_token_id
        return inputs, labels
