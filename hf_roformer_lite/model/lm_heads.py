"""Language models of one stack: masked (fill in the blanks) and causal (what comes next)."""

import copy
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions, MaskedLMOutput
from transformers.processing_utils import Unpack
from transformers.utils.generic import TransformersKwargs, can_return_tuple
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig
from .decoding import reorder_beams, step_logits
from .fast_linear import RoFormerLiteLinear
from .host_side import on_host
from .input_checks import check_ids, check_labels, check_logits_to_keep
from .input_layout import is_padding_mask
from .layers import make_norm
from .lazy_logits import UnreadLogits, lm_output
from .losses import IGNORE_INDEX, cross_entropy, labelled_lm_loss
from .modeling_roformer_lite import RoFormerLiteModel, RoFormerLitePreTrainedModel

_READ = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class RoFormerLiteLMTransform(nn.Module):
    """What comes between the last layer and the LM head: `(..., hidden)` to `(..., embedding_size)`.

    With `lm_head_transform` BERT's dense, activation and norm; else a projection if the two widths differ.
    """

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        if not config.vocab_size:
            raise ValueError("vocab_size=0: a stack that takes vectors has no vocabulary for a language model head.")
        has_dense = config.lm_head_transform or config.embedding_size != config.hidden_size
        widths, bias = (config.hidden_size, config.embedding_size), config.head_bias or not config.lm_head_transform
        self.dense = RoFormerLiteLinear(*widths, bias=bias) if has_dense else nn.Identity()
        self.act_fn = ACT2FN[config.hidden_act] if config.lm_head_transform else nn.Identity()
        self.norm = make_norm(config, config.embedding_size) if config.lm_head_transform else nn.Identity()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.act_fn(self.dense(hidden_states)))


class LMHeadMixin:
    """From hidden states to logits and loss, for models with `lm_transform` and `lm_head`."""

    def compute_logits(self, hidden_states: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """`(..., hidden)` to `(..., vocab)`; `cache` is that of the step which made the states."""
        return step_logits(self.lm_head, self.lm_transform(hidden_states), cache)

    def keep_positions(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None,
        logits_to_keep: int | torch.Tensor,
        count_real_tokens: bool,
    ) -> torch.Tensor:
        """The states `(B, L, hidden)` whose logits `logits_to_keep` asks for: of the last positions (0: of all), or
        of the given indices.

        With `count_real_tokens` and a `(B, L)` mask a number counts the last real tokens of each row, wherever its
        padding is; where there are fewer, the last padding takes their place. A mask longer than the states, as
        beside a cache, counts from its end.

        Raises:
            ValueError, TypeError: for a negative number, for indices outside the input, and for anything else.
        """
        check_logits_to_keep(logits_to_keep)
        length = hidden_states.shape[1]
        if isinstance(logits_to_keep, torch.Tensor):
            try:
                return hidden_states[:, logits_to_keep]
            except IndexError as error:
                raise ValueError(f"logits_to_keep has an index outside the {length} positions.") from error
        if logits_to_keep and count_real_tokens and is_padding_mask(attention_mask):
            is_real = attention_mask[:, -length:].to(hidden_states.device) != 0
            last = is_real.int().argsort(dim=1, stable=True)[:, -logits_to_keep:]  # (B, kept)
            return hidden_states.gather(1, last.unsqueeze(-1).expand(-1, -1, hidden_states.shape[-1]))
        return hidden_states[:, -logits_to_keep:]

    def _valid_auto_compile_criteria(self, model_kwargs: dict[str, Any], generation_config: GenerationConfig) -> bool:
        """Called by `generate`: whether its steps are compiled. transformers compiles for GPUs; with a static cache
        and a `compile_config` a CPU compiles too, as it is asked to."""
        if generation_config.compile_config is not None and self.device.type == "cpu":
            compiled = copy.copy(generation_config.compile_config)  # which is the caller's
            compiled._compile_all_devices = True
            generation_config.compile_config = compiled
        return super()._valid_auto_compile_criteria(model_kwargs, generation_config)

    @staticmethod
    def ask_for_last_real_token(inputs: dict[str, Any]) -> None:
        """Change the arguments of `forward` for a prompt of `generate`, which reads the logits at the last place: they
        must be those of the last real token of each row, also where the user asks for all (0)."""
        kept = inputs.get("logits_to_keep", 1)
        inputs["logits_to_keep"] = kept if isinstance(kept, torch.Tensor) else max(kept, 1)
        inputs["count_real_tokens"] = True

    def is_sparse(self, labels: torch.Tensor | None) -> bool:
        """Whether labelled positions alone go through the LM head, unless somebody reads the logits."""
        is_asked_for = self.config.get_text_config(decoder=True).sparse_prediction
        return labels is not None and self.training and is_asked_for

    def read_together(
        self, labels: torch.Tensor | None, *masks: torch.Tensor | dict[str, torch.Tensor] | None
    ) -> list[Any]:
        """Labels and masks as they are, or where the places of the labelled positions will be asked for, read from
        their device at once: later the device would have to be waited for."""
        if not self.is_sparse(labels) or not all(is_padding_mask(mask) for mask in masks if mask is not None):
            return [labels, *masks]
        given = [tensor for tensor in (labels, *masks) if tensor is not None]
        is_readable = all(isinstance(tensor, torch.Tensor) and tensor.dtype in _READ for tensor in given)
        if not is_readable or labels.dtype == torch.bool:
            return [labels, *masks]  # which may be wrong, and is told where it is checked
        return on_host(labels, *(None if mask is None else mask.bool() for mask in masks))

    def logits_and_loss(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        cache: Cache | None = None,
    ) -> tuple[torch.Tensor | UnreadLogits | None, torch.Tensor | None]:
        """Logits `(B, L, vocab)` and the loss of `labels` `(B, L)`, aligned with `hidden_states` `(B, L, hidden)`.

        Without labels the loss is None. Where `is_sparse` the logits are not computed yet, and None while compiling.
        """
        if labels is not None:
            check_labels(labels, hidden_states.shape[:2], "token")
        if self.is_sparse(labels):
            head = self.lm_transform, self.lm_head
            loss = labelled_lm_loss(hidden_states, labels, *head, num_items_in_batch, smoothing)
            unread = None if is_tracing(loss) else UnreadLogits(self.compute_logits, hidden_states, head)
            return unread, loss
        logits = self.compute_logits(hidden_states, cache)
        if labels is None:
            return logits, None
        return logits, cross_entropy(logits, labels, num_items_in_batch, label_smoothing=smoothing)


class RoFormerLiteOneStackLM(LMHeadMixin, RoFormerLitePreTrainedModel):
    """Stack, transform and LM head; what masked and causal language models have in common."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__(config)
        self.model = RoFormerLiteModel(config, add_pooling_layer=False)
        self.lm_transform = RoFormerLiteLMTransform(config)
        self.lm_head = RoFormerLiteLinear(config.embedding_size, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()


class RoFormerLiteForMaskedLM(RoFormerLiteOneStackLM):
    """Masked language modelling (Devlin et al. 2018, section 3.1). A config with `is_decoder` is copied without it."""

    def __init__(self, config: RoFormerLiteConfig):
        if config.is_decoder and not config.add_cross_attention:
            config = copy.deepcopy(config)
            config.is_decoder = False
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """As `RoFormerLiteModel.forward`; `labels` `(B, L)` holds the masked tokens, -100 elsewhere.

        `logits` is `(B, L, vocab)`, while training computed when first read (`config.sparse_prediction`).
        `smoothing` is the label smoothing of the loss.
        """
        labels, attention_mask = self.read_together(labels, attention_mask)
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            encoder_hidden_states,
            encoder_attention_mask,
            use_cache=False,
            return_dict=True,
            **kwargs,
        )
        logits, loss = self.logits_and_loss(outputs.last_hidden_state, labels, num_items_in_batch, smoothing)
        return lm_output(
            MaskedLMOutput, logits, loss=loss, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class RoFormerLiteForCausalLM(RoFormerLiteOneStackLM, GenerationMixin):
    """Left-to-right language modelling, with `generate`. A config without `is_decoder` is copied with it."""

    loss_type = "ForCausalLM"  # tells Trainer that the labels are shifted here, when it counts them

    def __init__(self, config: RoFormerLiteConfig):
        if not config.is_decoder:
            config = copy.deepcopy(config)
            config.is_decoder = True
        super().__init__(config)

    def _reorder_cache(self, past_key_values: Cache, beam_idx: torch.Tensor) -> Cache:
        """Called by `generate` when beams change places, `(B * beams,)`."""
        return reorder_beams(past_key_values, beam_idx)

    def _prepare_position_ids_for_generation(
        self, inputs_tensor: torch.Tensor, model_kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """Called by `generate`: positions `(B, L)` that count real tokens, those after padding on the right too."""
        attention_mask = model_kwargs.get("attention_mask")
        if attention_mask is None:
            return super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)
        return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in every model of transformers, except that a prompt keeps its `(B, L)` mask, and that the next token
        follows the last real token of each row, also before padding on the right. For a static cache transformers
        would replace the mask by one of four dimensions, which does not tell where the prompt ends."""
        inputs = super().prepare_inputs_for_generation(
            input_ids, next_sequence_length, past_key_values, attention_mask, inputs_embeds, **kwargs
        )
        given = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
        if attention_mask is not None and given.shape[1] > 1:
            inputs["attention_mask"] = attention_mask
            self.ask_for_last_real_token(inputs)
        return inputs

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        count_real_tokens: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithCrossAttentions:
        """As `RoFormerLiteModel.forward`; `labels` `(B, L)` are the input ids (shifted here), -100 where ignored.

        `logits_to_keep` computes the logits of the last positions alone (0: of all), or of the given indices; with
        `count_real_tokens`, as `generate` sets it, of the last real tokens of each row, which padding may follow.
        `logits` is `(B, L, vocab)`, while training computed when first read (`config.sparse_prediction`). With labels
        no cache is made unless asked for. `smoothing` is the label smoothing of the loss; `shift_labels` `(B, L)` are
        labels that are aligned with the positions already.
        """
        # Not an argument: Trainer takes every argument with "label" in its name for one that batches must have.
        shift_labels = kwargs.pop("shift_labels", None)
        if shift_labels is None and labels is not None:
            check_ids(input_ids, inputs_embeds)
            given = input_ids if inputs_embeds is None else inputs_embeds
            check_labels(labels, given.shape[:2], "token")
            shift_labels = nn.functional.pad(labels[:, 1:].long(), (0, 1), value=IGNORE_INDEX)
        if use_cache is None and shift_labels is not None:
            use_cache = False
        shift_labels, attention_mask = self.read_together(shift_labels, attention_mask)
        outputs = self.model(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            encoder_hidden_states,
            encoder_attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        if shift_labels is None:
            hidden_states = self.keep_positions(hidden_states, attention_mask, logits_to_keep, count_real_tokens)
        cache = outputs.past_key_values
        logits, loss = self.logits_and_loss(hidden_states, shift_labels, num_items_in_batch, smoothing, cache)
        return lm_output(
            CausalLMOutputWithCrossAttentions,
            logits,
            loss=loss,
            past_key_values=cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )


__all__ = ["RoFormerLiteForCausalLM", "RoFormerLiteForMaskedLM"]
