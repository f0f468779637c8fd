"""Heads of one stack: masked and causal language models, sequence and token classifiers, question
answering and multiple choice."""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from ..padding_free.heads import SkippedLogits
from .compatibility import accepts_past_key_values
from .configuration_roformer_lite import RoFormerLiteConfig, filled
from .generation import PaddedGenerationMixin
from .losses import (
    IGNORE_INDEX,
    check_classes,
    cross_entropy,
    flat_classes,
    ignore_classes,
    linear_cross_entropy,
    mean_of_items,
    sequence_loss,
)
from .modeling_roformer_lite import RoFormerLiteModel, RoFormerLitePreTrainedModel, make_norm
from .packing import is_padding_mask
from .pooling import pool


def output_of_head(output_class: Any, outputs: ModelOutput, **own_fields: Any) -> Any:
    """The output of a head: its own fields, and all others as in the `outputs` of the stack."""
    fields = {name: outputs.get(name) for name in output_class.__dataclass_fields__}
    fields.update(own_fields)
    return output_class(**fields)


class RoFormerLiteLMTransform(nn.Module):
    """The transformation between the last layer and the LM head, `(..., hidden)` to
    `(..., embedding_size)`.

    With `lm_head_transform` it is BERT's dense layer, activation and norm. Otherwise it is a
    projection if the two widths differ.
    """

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        if not config.vocab_size:
            raise ValueError(
                "vocab_size=0: a stack that takes vectors has no vocabulary for a language model "
                "head."
            )
        self.dense: nn.Linear | None = None
        self.norm: nn.Module | None = None
        if config.lm_head_transform or config.embedding_size != config.hidden_size:
            bias = config.head_bias or not config.lm_head_transform
            embedding_size = filled(config.embedding_size)
            self.dense = nn.Linear(config.hidden_size, embedding_size, bias=bias)
        if config.lm_head_transform:
            self.act_fn = ACT2FN[config.hidden_act]
            self.norm = make_norm(config, width=config.embedding_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.dense is not None:
            hidden_states = self.dense(hidden_states)
        if self.norm is not None:
            hidden_states = self.norm(self.act_fn(hidden_states))
        return hidden_states


class LMHeadMixin:
    """Computes logits and loss from hidden states, for models with `lm_transform` and `lm_head`."""

    config: Any  # The configuration of one stack or of a pair.
    training: bool

    def add_lm_head(self, config: RoFormerLiteConfig) -> None:
        embedding_size = filled(config.embedding_size)
        self.lm_transform = RoFormerLiteLMTransform(config)
        self.lm_head = nn.Linear(embedding_size, config.vocab_size, bias=config.lm_head_bias)

    def skips_logits(self, skip_logits: bool | None) -> bool:
        """Whether, with labels, only labelled positions go through the LM head. By default
        `config.skip_logits` decides while training, and all positions do otherwise."""
        if skip_logits is not None:
            return skip_logits
        return self.training and self.config.get_text_config(decoder=True).skip_logits

    def language_model_output(
        self,
        output_class: Any,
        outputs: ModelOutput,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        skip_logits: bool | None,
        num_items_in_batch: int | torch.Tensor | None,
        smoothing: float,
    ) -> Any:
        """The output with logits and loss.

        Args:
            outputs: The outputs of the stack, or of both stacks.
            hidden_states: `(B, L, hidden)`, those of its last states that need logits.
            labels: `(B, L)`, aligned with the states. Without labels there is no loss.
        """
        if labels is None:
            logits = self.lm_head(self.lm_transform(hidden_states))
            return output_of_head(output_class, outputs, logits=logits)
        skips_logits = self.skips_logits(skip_logits)
        # In a graph, shapes cannot depend on the number of labels.
        if skips_logits and not is_tracing(hidden_states):
            labels = flat_classes(labels, hidden_states)
            indices = (labels != IGNORE_INDEX).nonzero().squeeze(1)
            states = hidden_states.flatten(0, 1).index_select(0, indices)
            states = self.lm_transform(states)  # (n, embedding_size)
            total = linear_cross_entropy(states, self.lm_head, labels[indices], smoothing)
            loss = mean_of_items(total, len(indices), num_items_in_batch)
        else:
            logits = self.lm_head(self.lm_transform(hidden_states))
            loss = cross_entropy(logits, labels, num_items_in_batch, smoothing)
        if skips_logits:
            # torch.compile cannot return such an object.
            logits = None if torch.compiler.is_compiling() else SkippedLogits()
        return output_of_head(output_class, outputs, loss=loss, logits=logits)


def ignore_padding(labels: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    """The labels `(B, L)`, with -100 at padding."""
    if not is_padding_mask(attention_mask):
        return labels
    # PEFT's prefix tuning gives a mask that is longer by its prefix.
    attention_mask = attention_mask[:, -labels.shape[-1] :]
    if labels.shape != attention_mask.shape:
        return labels
    return ignore_classes(labels, where=attention_mask == 0)


def keep_positions(
    hidden_states: torch.Tensor,
    logits_to_keep: int | torch.Tensor,
    last_tokens: torch.Tensor | None = None,
) -> torch.Tensor:
    """The states of the positions whose logits are requested, `(B, kept, hidden)`: the last ones
    (all if `logits_to_keep` is 0), or those at the given indices.

    Args:
        last_tokens: `(B, L)`, the positions whose states are taken in place of those of padding.
    """
    if last_tokens is not None:
        hidden_states = hidden_states.take_along_dim(last_tokens[:, :, None], dim=1)
    if isinstance(logits_to_keep, torch.Tensor):
        return hidden_states[:, logits_to_keep]
    # A view of all positions would not know the flat row.
    return hidden_states[:, -logits_to_keep:] if logits_to_keep else hidden_states


class RoFormerLiteForMaskedLM(RoFormerLitePreTrainedModel, LMHeadMixin):
    """Masked language modelling (Devlin et al. 2018, section 3.1). A config with `is_decoder` is
    copied without it."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: RoFormerLiteConfig):
        if config.is_decoder and not config.add_cross_attention:
            config = copy.deepcopy(config)
            config.is_decoder = False
        super().__init__(config)
        self.model = RoFormerLiteModel(config, add_pooling_layer=False)
        self.add_lm_head(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        skip_logits: bool | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Like `RoFormerLiteModel.forward`.

        Args:
            labels: `(B, L)`, the masked tokens, -100 elsewhere. Labels of padding are ignored.
            skip_logits: Whether only labelled positions go through the LM head. If so, using
                `logits` is an error; otherwise they are `(B, L, vocab)`. Default:
                `config.skip_logits` while training.
            num_items_in_batch: The number of labels in all batches of an optimizer step, by which
                the loss is divided. Default: the number of labels in this batch.
            smoothing: Label smoothing of the loss.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            return_dict=True,
            **kwargs,
        )
        if labels is not None:
            labels = ignore_padding(labels, attention_mask)
        return self.language_model_output(
            MaskedLMOutput,
            outputs,
            outputs.last_hidden_state,
            labels=labels,
            skip_logits=skip_logits,
            num_items_in_batch=num_items_in_batch,
            smoothing=smoothing,
        )


class RoFormerLiteForCausalLM(RoFormerLitePreTrainedModel, LMHeadMixin, PaddedGenerationMixin):
    """Left-to-right language modelling, with `generate`. A config without `is_decoder` is copied
    with it."""

    loss_type = "ForCausalLM"  # Tells Trainer, which counts the labels, that they are shifted here.
    _tied_weights_keys = {"lm_head.weight": "model.embeddings.word_embeddings.weight"}
    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: RoFormerLiteConfig):
        if not config.is_decoder:
            config = copy.deepcopy(config)
            config.is_decoder = True
            config.validate_architecture()
        super().__init__(config)
        self.model = RoFormerLiteModel(config, add_pooling_layer=False)
        self.add_lm_head(config)
        self.post_init()

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """As in every stock model. All requests are in one row without padding, which
        "sdpa" supports and "padding_free" does not, so the attention implementation is changed."""
        if self.config._attn_implementation == "padding_free":
            self.set_attn_implementation("sdpa")
        return super().init_continuous_batching(*args, **kwargs)

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """As in every stock model, with the attention implementation of
        `init_continuous_batching` for as long as it runs."""
        implementation = self.config._attn_implementation
        try:
            return super().generate_batch(*args, **kwargs)
        finally:
            self.set_attn_implementation(implementation)

    @accepts_past_key_values
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
        cache: Cache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        last_tokens: torch.Tensor | None = None,
        skip_logits: bool | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        **kwargs: Any,
    ) -> CausalLMOutputWithCrossAttentions:
        """Like `RoFormerLiteModel.forward` and `RoFormerLiteForMaskedLM.forward`.

        Args:
            labels: `(B, L)`, the input ids (they are shifted here), -100 where ignored. With labels
                no cache is made unless `use_cache` is True. Labels of padding are ignored. Pad on
                the right: after padding on the left, the first token of a row would be predicted
                from padding, as in all stock causal models.
            logits_to_keep: The number of last positions whose logits are computed (0: all), or the
                indices of positions.
            last_tokens: `(B, L)`, the last token at or before each position. Logits of padding are
                those of this token. `generate` passes it for prompts that end with padding.
            kwargs: `shift_labels` `(B, L)` are labels that are already aligned with the positions.
        """
        # This is not a named argument, because Trainer expects every argument with "label" in its
        # name in each batch.
        shift_labels = kwargs.pop("shift_labels", None)
        if shift_labels is None and labels is not None:
            labels = ignore_padding(labels, attention_mask)
            shift_labels = F.pad(labels[:, 1:], pad=(0, 1), value=IGNORE_INDEX)
        if shift_labels is not None:
            use_cache = bool(use_cache)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            cache=cache,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        if shift_labels is None:
            hidden_states = keep_positions(hidden_states, logits_to_keep, last_tokens)
        return self.language_model_output(
            CausalLMOutputWithCrossAttentions,
            outputs,
            hidden_states,
            labels=shift_labels,
            skip_logits=skip_logits,
            num_items_in_batch=num_items_in_batch,
            smoothing=smoothing,
        )


class RoFormerLiteClassificationHead(nn.Module):
    """Dropout and a linear layer. With `config.classifier_activation` a dense layer and this
    activation come first, and with `config.classifier_norm` a norm after them."""

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__()
        dropout = config.classifier_dropout
        if dropout is None:
            dropout = config.hidden_dropout
        self.dense: nn.Linear | None = None
        self.norm: nn.Module | None = None
        if config.classifier_activation is not None:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
            self.act_fn = ACT2FN[config.classifier_activation]
        if config.classifier_norm:
            self.norm = make_norm(config)
        self.input_dropout = nn.Dropout(dropout if config.classifier_input_dropout else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(config.hidden_size, num_labels)

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The transformation before the scores, `(..., hidden)` to the same shape."""
        if self.dense is not None:
            hidden_states = self.act_fn(self.dense(self.input_dropout(hidden_states)))
        if self.norm is not None:
            hidden_states = self.norm(hidden_states)
        return hidden_states

    def score(self, features: torch.Tensor) -> torch.Tensor:
        """Transformed states `(..., hidden)` to `(..., num_labels)`."""
        return self.out_proj(self.dropout(features))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.score(self.transform(hidden_states))


class RoFormerLiteDocumentHead(RoFormerLiteClassificationHead):
    """The head of whole sequences, `(B, hidden)` to `(B, num_labels)`."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states.flatten(0, -2))  # vLLM gives (B, 1, hidden).


class RoFormerLiteClassificationModel(RoFormerLitePreTrainedModel):
    """A stack and a classifier: the common part of the classification heads."""

    num_scores: int | None = None  # Default: config.num_labels.
    output_class: Any = SequenceClassifierOutput
    head_class = RoFormerLiteClassificationHead
    pools_tokens = True  # Whether there is one row of logits for each sequence, or for each token.

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__(config)
        self.num_labels: int = self.num_scores or filled(config.num_labels)
        self.model = RoFormerLiteModel(config, add_pooling_layer=False)
        self.model.takes_packed_documents = not self.pools_tokens
        self.classifier = self.head_class(config, self.num_labels)
        self.post_init()

    @accepts_past_key_values
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Like `RoFormerLiteModel.forward`. Each class describes its `logits` and `labels`.

        A `TokenClassifierOutput` has the same fields, whose names sentence-transformers reads from
        this annotation. Only PEFT's prefix tuning passes a `cache`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=False,
            return_dict=True,
            **kwargs,
        )
        logits = self.logits(outputs.last_hidden_state, attention_mask)
        loss = None
        if labels is not None:
            loss = self.loss(logits, labels, attention_mask, num_items_in_batch)
        return output_of_head(self.output_class, outputs, loss=loss, logits=logits)

    def loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: Any,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        return cross_entropy(logits, ignore_padding(labels, attention_mask), num_items_in_batch)

    def logits(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """`(B, L, hidden)` to `(B, num_labels)` by `config.classifier_pooling`, or to
        `(B, L, num_labels)`."""
        if not self.pools_tokens:
            return self.classifier(hidden_states)
        how = self.config.classifier_pooling
        if how == "late":
            hidden_states = self.classifier.transform(hidden_states)
            return self.classifier.score(pool(hidden_states, "mean", attention_mask))
        return self.classifier(pool(hidden_states, how, attention_mask))


class RoFormerLiteForSequenceClassification(RoFormerLiteClassificationModel):
    """Predicts a class, a set of classes, or numbers for each sequence.

    `logits` is `(B, num_labels)`. `labels` are classes `(B,)`, zeros and ones `(B, num_labels)`, or
    numbers, depending on `config.problem_type`. If it is None, it is inferred from the first
    labels, as in transformers. Packed documents are refused, as padding costs nothing.
    """

    head_class = RoFormerLiteDocumentHead

    def loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: Any,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        problem_type = self.config.problem_type
        if problem_type is None:
            problem_type = "multi_label_classification"
            if self.num_labels == 1:
                problem_type = "regression"
            elif labels.dtype in (torch.long, torch.int):
                problem_type = "single_label_classification"
        loss = sequence_loss(logits, labels, problem_type, num_items_in_batch)
        # Stored only now, so that invalid labels have no influence.
        self.config.problem_type = problem_type
        return loss


class RoFormerLiteForMultipleChoice(RoFormerLiteClassificationModel):
    """Chooses one of several continuations, each of which gets a score.

    All inputs have a dimension of choices, `(B, choices, L)`. `labels` `(B,)` are the numbers of
    the right choices, and `logits` are `(B, choices)`.
    """

    num_scores = 1
    output_class = MultipleChoiceModelOutput

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        arguments = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        inputs = {name: tensor for name, tensor in arguments.items() if tensor is not None}
        # (During an export, sizes are symbols, which a set cannot hold.)
        shapes = [tensor.shape[:3] for tensor in inputs.values()]
        if not shapes or any(len(shape) != 3 or shape != shapes[0] for shape in shapes):
            raise ValueError(
                "input_ids (or inputs_embeds), masks and all other inputs must be (batch, "
                "choices, length)."
            )
        batch_size, num_choices, _ = shapes[0]
        rows = {name: tensor.flatten(0, 1) for name, tensor in inputs.items()}  # (B * choices, L)
        outputs = super().forward(**rows, return_dict=True, **kwargs)
        outputs.logits = outputs.logits.view(batch_size, num_choices)
        if labels is not None:
            outputs.loss = cross_entropy(outputs.logits, labels, num_items_in_batch)
        return outputs


class RoFormerLiteForTokenClassification(RoFormerLiteClassificationModel):
    """Predicts a class for each token (entities, parts of speech). `labels` `(B, L)` are -100 where
    they are ignored; labels of padding always are. `logits` are `(B, L, num_labels)`."""

    output_class = TokenClassifierOutput
    pools_tokens = False


class RoFormerLiteForQuestionAnswering(RoFormerLiteClassificationModel):
    """Finds the first and the last token of the answer in the text (SQuAD)."""

    num_scores = 2
    pools_tokens = False

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        start_positions: torch.Tensor | None = None,
        end_positions: torch.Tensor | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Like `RoFormerLiteModel.forward`.

        Args:
            start_positions, end_positions: `(B,)`, the first and the last token of the answer.
                Positions outside the input are ignored, as in transformers' own heads.
        """
        outputs = super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            return_dict=True,
            **kwargs,
        )
        start_logits, end_logits = outputs.logits.unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            length = start_logits.shape[1]
            losses = []
            for logits, positions in (
                (start_logits, start_positions),
                (end_logits, end_positions),
            ):
                check_classes(positions)  # `clamp` would make integers of booleans.
                positions = positions.view(-1).clamp(min=0)
                positions = ignore_classes(positions, where=positions >= length)
                losses.append(cross_entropy(logits, positions, num_items_in_batch))
            loss = (losses[0] + losses[1]) / 2
        return output_of_head(
            QuestionAnsweringModelOutput,
            outputs,
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
        )


# All classes of a bundle of one stack: its `auto_map` names them in this file, or in one that
# imports them from it.
__all__ = [
    "RoFormerLiteConfig",
    "RoFormerLiteForCausalLM",
    "RoFormerLiteForMaskedLM",
    "RoFormerLiteForMultipleChoice",
    "RoFormerLiteForQuestionAnswering",
    "RoFormerLiteForSequenceClassification",
    "RoFormerLiteForTokenClassification",
    "RoFormerLiteModel",
]
