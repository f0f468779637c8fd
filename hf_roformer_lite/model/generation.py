"""`generate` with prompts that are padded on the left."""

from functools import wraps
from typing import Any

from transformers.generation import GenerationMixin

from .packing import is_padding_mask, positions_of_real_tokens


class PaddedGenerationMixin(GenerationMixin):
    """`generate`, which accepts padding only before the tokens of a prompt. Other models of
    transformers continue a prompt that ends with padding after the padding, and warn."""

    config: Any

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # `generate` reads the signature.
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in every stock model, except that an encoder–decoder counts the positions of
        a target by its real tokens, with a static cache too.

        Raises:
            ValueError: if a prompt ends with padding.
        """
        is_pair = self.config.is_encoder_decoder
        attention_mask = kwargs.get("decoder_attention_mask" if is_pair else "attention_mask")
        if is_padding_mask(attention_mask):
            # A prompt that is read in parts may begin with parts of padding alone.
            has_tokens = attention_mask.any(dim=1)
            if bool((has_tokens & (attention_mask[:, -1] == 0)).any()):
                raise ValueError(
                    "a prompt ends with padding, after which it cannot be continued: pad on the "
                    "left (tokenizer.padding_side = 'left')."
                )
            if is_pair:
                kwargs["decoder_position_ids"] = positions_of_real_tokens(attention_mask)
        return super().prepare_inputs_for_generation(*args, **kwargs)
