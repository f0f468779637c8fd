"""`generate` with prompts that are padded on the left."""

from functools import wraps
from typing import Any

import torch
from transformers.generation import GenerationMixin

from .packing import is_padding_mask, positions_of_real_tokens


class LeftPaddedGenerationMixin(GenerationMixin):
    """`generate`, with an error for prompts that are padded on the right. Transformers continues
    them after the padding, and only warns."""

    config: Any

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # `generate` reads the signature.
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in every stock model, except that an encoder–decoder counts the positions of
        a target by its real tokens with a static cache too.

        Raises:
            ValueError: if a row of a prompt ends with padding.
        """
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        is_pair = self.config.is_encoder_decoder
        attention_mask = kwargs.get("decoder_attention_mask" if is_pair else "attention_mask")
        if not is_padding_mask(attention_mask):
            return inputs
        if kwargs.get("is_first_iteration", True):
            check_prompt(attention_mask)
        if is_pair:
            length = inputs["decoder_input_ids"].shape[1]
            positions = positions_of_real_tokens(attention_mask)[:, -length:]
            # A copy, as the strides of a view would grow with the mask, and compiled code with
            # them.
            positions = positions.clone(memory_format=torch.contiguous_format)
            inputs["decoder_position_ids"] = positions
        return inputs


def check_prompt(attention_mask: torch.Tensor) -> None:
    """Reject prompts `(B, L)` of which a row ends with padding."""
    is_real = attention_mask != 0
    # A row of padding alone is the beginning of a longer prompt that is read in parts.
    ends_with_padding = is_real.any(dim=1) & ~is_real[:, -1]
    if bool(ends_with_padding.any()):
        raise ValueError(
            "the prompt has padding after its last token: pad on the left "
            "(tokenizer.padding_side = 'left')."
        )
