"""The encoder–decoder: two stacks, with or without an LM head for translation and rewriting."""

import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .compatibility import CACHE_NAME, accepts_past_key_values
from .configuration_roformer_lite import filled
from .configuration_roformer_lite_seq2seq import RoFormerLiteSeq2SeqConfig
from .generation import PaddedGenerationMixin
from .heads_roformer_lite import LMHeadMixin, ignore_padding, keep_positions
from .losses import IGNORE_INDEX, check_classes
from .modeling_roformer_lite import RoFormerLiteModel, RoFormerLitePreTrainedModel
from .packing import check_shape, is_padding_mask

logger = logging.get_logger(__name__)


class RoFormerLiteSeq2SeqPreTrainedModel(RoFormerLitePreTrainedModel):
    """Base of the models of two stacks."""

    # The base class declares the configuration of one stack. Transformers takes the class of the
    # configuration from this annotation.
    config: RoFormerLiteSeq2SeqConfig  # type: ignore[assignment]
    _can_record_outputs: dict[str, Any] = {}  # The two stacks record their own.

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """The decoder's input for `labels` `(B, L)`: the start token, then all labels but the last;
        -100 becomes the pad token. The stock `DataCollatorForSeq2Seq` calls this."""
        shifted = F.pad(labels[:, :-1], pad=(1, 0), value=self.config.decoder_start_token_id)
        return shifted.masked_fill(shifted == IGNORE_INDEX, filled(self.config.pad_token_id))

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> nn.Embedding:
        """As in every stock model; the tables of both sides get the same number of
        rows."""
        config = self.config
        if new_num_tokens is None and pad_to_multiple_of is None:
            # Transformers declares that this method returns any module, and `resize` an embedding.
            return self.get_input_embeddings()  # type: ignore[return-value]
        encoder, decoder = config.stacks()
        if encoder.vocab_size != decoder.vocab_size:
            logger.warning_once(
                f"encoder.vocab_size={encoder.vocab_size} and "
                f"decoder.vocab_size={decoder.vocab_size} are two vocabularies; both get "
                "the new size."
            )
        embeddings = super().resize_token_embeddings(
            new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        num_tokens = embeddings.num_embeddings
        if not (config.share_embeddings and config.tie_word_embeddings):
            self.get_decoder().resize_token_embeddings(num_tokens, mean_resizing=mean_resizing)
            self.tie_weights()
        encoder.vocab_size = num_tokens
        decoder.vocab_size = num_tokens
        return embeddings


class RoFormerLiteSeq2SeqModel(RoFormerLiteSeq2SeqPreTrainedModel):
    """Encoder and decoder without a head."""

    def __init__(self, config: RoFormerLiteSeq2SeqConfig):
        super().__init__(config)
        encoder, decoder = config.stacks()
        self.encoder = RoFormerLiteModel(encoder, add_pooling_layer=False)
        self.decoder = RoFormerLiteModel(decoder, add_pooling_layer=False)
        if config.share_embeddings and config.tie_word_embeddings:
            self._tied_weights_keys = {
                "encoder.embeddings.word_embeddings.weight": (
                    "decoder.embeddings.word_embeddings.weight"
                )
            }
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)
        if self.config.share_embeddings and self.config.tie_word_embeddings:
            self.decoder.set_input_embeddings(value)

    @accepts_past_key_values
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Encode the source, and run the decoder on the target.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: The source, as
                for `RoFormerLiteModel.forward`.
            decoder_input_ids, decoder_attention_mask, decoder_position_ids, decoder_inputs_embeds:
                The target. Positions of both sides that restart begin packed documents.
            encoder_outputs: The output of the encoder for this source, if it has already run.
            cache, use_cache: The decoder's cache.

        Raises:
            ValueError: if inputs do not fit together.
        """
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError(
                "decoder_input_ids are missing. Pass these, decoder_inputs_embeds, or (for a model "
                "with an LM head) labels."
            )
        if attention_mask is not None and not is_padding_mask(attention_mask):
            raise ValueError(
                "attention_mask of an encoder–decoder must be (batch, length): both sides read it."
            )
        if kwargs.get("cu_seq_lens_q") is not None:
            raise ValueError(
                "cu_seq_lens_q can't describe two sides; pass position_ids and "
                "decoder_position_ids."
            )
        if use_cache is None:
            use_cache = self.config.use_cache
        # Without these flags the configuration of each stack decides.
        if self.config.output_hidden_states:
            kwargs.setdefault("output_hidden_states", True)
        if self.config.output_attentions:
            kwargs.setdefault("output_attentions", True)
        kwargs["return_dict"] = True

        if encoder_outputs is None:
            encoded: BaseModelOutput = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                **kwargs,
            )
        elif isinstance(encoder_outputs, tuple | list):
            encoded = BaseModelOutput(*encoder_outputs)
        else:
            encoded = encoder_outputs

        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            position_ids=decoder_position_ids,
            inputs_embeds=decoder_inputs_embeds,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            encoder_position_ids=position_ids,
            cache=cache,
            use_cache=use_cache,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            **{CACHE_NAME: decoder_outputs.get(CACHE_NAME)},
        )


class RoFormerLiteForConditionalGeneration(
    RoFormerLiteSeq2SeqPreTrainedModel, LMHeadMixin, PaddedGenerationMixin
):
    """An encoder–decoder with an LM head, for translation, summaries and rewriting of text."""

    # Labels are aligned with the decoder's outputs, so nothing must shift them again.
    loss_type = "ForMaskedLM"
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: RoFormerLiteSeq2SeqConfig):
        super().__init__(config)
        self.model = RoFormerLiteSeq2SeqModel(config)
        _, decoder = config.stacks()
        self.add_lm_head(decoder)
        target = "model.decoder.embeddings.word_embeddings.weight"
        self._tied_weights_keys = {"lm_head.weight": target}
        if config.share_embeddings and config.tie_word_embeddings:
            self._tied_weights_keys["model.encoder.embeddings.word_embeddings.weight"] = target
        self.post_init()

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As in every stock model. A tied LM head is not written, so the configuration
        must say that it is tied. PEFT says the opposite after merging an adapter, unless the LM
        head is tied to the encoder's table."""
        embeddings = self.get_decoder().get_input_embeddings()
        if self.lm_head.weight is getattr(embeddings, "weight", None):
            self.config.tie_word_embeddings = True
        super().save_pretrained(save_directory, *args, **kwargs)

    @accepts_past_key_values
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        decoder_position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        cache: Cache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        last_tokens: torch.Tensor | None = None,
        skip_logits: bool | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Like `RoFormerLiteSeq2SeqModel.forward`, with an LM head.

        Args:
            labels: `(B, Lt)`, -100 where ignored. Without `decoder_input_ids` the decoder reads
                them shifted by one. With labels no cache is made unless `use_cache` is True.
            logits_to_keep, last_tokens: As for `RoFormerLiteForCausalLM`, for the target.
            skip_logits, num_items_in_batch, smoothing: As for `RoFormerLiteForMaskedLM`.

        Returns:
            `logits` `(B, Lt, vocab)`, unless they are skipped; `loss` with labels; and the outputs
            of the two stacks.
        """
        if labels is not None:
            check_classes(labels)
            labels = labels.long()  # The decoder reads them as tokens.
            use_cache = bool(use_cache)
            is_read = labels != IGNORE_INDEX
            target = decoder_input_ids if decoder_inputs_embeds is None else decoder_inputs_embeds
            if target is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
            else:
                check_shape("labels", labels, target.shape[:2])
            if target is decoder_input_ids and not self.skips_logits(skip_logits):
                # A target that is passed may go on after its labels.
                is_read |= decoder_input_ids != self.config.pad_token_id
            others = (decoder_inputs_embeds, decoder_attention_mask, decoder_position_ids, cache)
            if all(other is None for other in others):
                # No token of a causal row depends on later ones, so nothing after the last label
                # needs to be computed.
                decoder_attention_mask = is_read.flip(1).cummax(dim=1).values.flip(1)
                # Scaled rotary tables depend on the largest position, so all tokens keep one.
                decoder_position_ids = torch.arange(labels.shape[1], device=labels.device)[None]
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            decoder_position_ids=decoder_position_ids,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            cache=cache,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        if labels is None:
            hidden_states = keep_positions(hidden_states, logits_to_keep, last_tokens)
        else:
            labels = ignore_padding(labels, decoder_attention_mask)
        return self.language_model_output(
            Seq2SeqLMOutput,
            outputs,
            hidden_states,
            labels=labels,
            skip_logits=skip_logits,
            num_items_in_batch=num_items_in_batch,
            smoothing=smoothing,
        )


# All classes of a bundle of a pair, as in `heads_roformer_lite.py`.
__all__ = [
    "RoFormerLiteForConditionalGeneration",
    "RoFormerLiteSeq2SeqConfig",
    "RoFormerLiteSeq2SeqModel",
]
