"""`generate` with prompts that are padded on either side."""

from functools import wraps
from typing import Any

import torch
from transformers.generation import GenerationMixin

from .packing import is_padding_mask, last_places, positions_of_real_tokens


class PaddedGenerationMixin(GenerationMixin):
    """`generate`, which continues each prompt after its last token. Other models of transformers
    continue a prompt that ends with padding after the padding."""

    config: Any

    def _prepare_position_ids_for_generation(
        self, inputs_tensor: torch.Tensor, model_kwargs: dict[str, Any]
    ) -> torch.Tensor:
        # `generate` continues the last position of a row. Stock models have 0 at padding. (There is
        # no public way to tell these positions from those that a user passes.)
        attention_mask = model_kwargs.get("attention_mask")
        if is_padding_mask(attention_mask):
            return positions_of_real_tokens(attention_mask)
        return super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # `generate` reads the signature.
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in every stock model, except that an encoder–decoder counts the positions of
        a target by its real tokens with a static cache too, and that logits of padding are replaced
        by those of the token before it.

        Raises:
            ValueError: if a prompt ends with padding that is read in a part of its own.
        """
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        is_pair = self.config.is_encoder_decoder
        prefix = "decoder_" if is_pair else ""
        attention_mask = kwargs.get(f"{prefix}attention_mask")
        if not is_padding_mask(attention_mask):
            return inputs
        states = inputs.get(f"{prefix}inputs_embeds")
        given = inputs[f"{prefix}input_ids"] if states is None else states
        length = given.shape[1]
        # An assistant reads its prompt in an iteration that is not called the first one.
        if kwargs.get("is_first_iteration", False) or length > 1:
            inputs["last_tokens"] = find_last_tokens(attention_mask, length)
        if is_pair:
            positions = positions_of_real_tokens(attention_mask)[:, -length:]
            # A copy, as the strides of a view would grow with the mask, and compiled code with
            # them.
            positions = positions.clone(memory_format=torch.contiguous_format)
            inputs["decoder_position_ids"] = positions
        return inputs


def find_last_tokens(attention_mask: torch.Tensor, length: int) -> torch.Tensor | None:
    """The last real token at or before each of the last `length` positions, `(B, length)`, counted
    from the first of these; None if no padding follows a token there.

    Args:
        attention_mask: `(B, past + length)`.

    Raises:
        ValueError: if a row ends with padding, and its last token is not among these positions.
    """
    num_past = attention_mask.shape[1] - length
    is_real = attention_mask != 0
    tokens = last_places(is_real)[:, num_past:]
    is_after_a_token = (tokens >= 0) & ~is_real[:, num_past:]
    if not bool(is_after_a_token.any()):
        return None
    if bool((is_after_a_token & (tokens < num_past))[:, -1].any()):
        raise ValueError(
            "a prompt ends with padding that is read without its last token: pad on the left "
            "(tokenizer.padding_side = 'left'), or leave out prefill_chunk_size."
        )
    return (tokens - num_past).clamp(min=0)
