"""The tasks of an encoder: classification of sequences and of tokens, questions, multiple choice."""

from typing import Any, ClassVar

import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutputWithPastAndCrossAttentions,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils.generic import TransformersKwargs, can_return_tuple

from .configuration_roformer_lite import RoFormerLiteConfig
from .fast_linear import RoFormerLiteLinear
from .input_checks import check_choices, check_labels
from .layers import make_norm
from .losses import cross_entropy, infer_problem_type, sequence_loss
from .modeling_roformer_lite import RoFormerLiteModel, RoFormerLitePreTrainedModel
from .ragged import RaggedBatch
from .text_scores import RoFormerLiteDocumentScores, RoFormerLiteTextScores, RoFormerLiteWordScores


class RoFormerLiteClassificationHead(nn.Module):
    """Dropout and linear layer; before them, if `config.classifier_activation` names one, a dense layer and that
    activation, with a norm behind it if `config.classifier_norm` asks for one."""

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__()
        dropout = config.hidden_dropout if config.classifier_dropout is None else config.classifier_dropout
        has_dense = config.classifier_activation is not None
        width = config.hidden_size
        self.dense = RoFormerLiteLinear(width, width, bias=config.head_bias) if has_dense else nn.Identity()
        self.act_fn = ACT2FN[config.classifier_activation] if has_dense else nn.Identity()
        self.norm = make_norm(config) if config.classifier_norm else nn.Identity()
        self.input_dropout = nn.Dropout(dropout if config.classifier_input_dropout else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = RoFormerLiteLinear(config.hidden_size, num_labels)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.score(self.transform(hidden_states))

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What comes before the scores, `(..., hidden)` to the same shape."""
        return self.norm(self.act_fn(self.dense(self.input_dropout(hidden_states))))

    def score(self, features: torch.Tensor) -> torch.Tensor:
        """Transformed states `(..., hidden)` to `(..., num_labels)`."""
        return self.out_proj(self.dropout(features))


class RoFormerLiteClassificationModel(RoFormerLitePreTrainedModel):
    """Stack and classifier; what the classification heads have in common."""

    text_scores_class: ClassVar[type[RoFormerLiteTextScores] | None] = None

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__(config)
        self.num_labels = self.number_of_scores(config)
        self.model = RoFormerLiteModel(config, add_pooling_layer=False)
        self.classifier = RoFormerLiteClassificationHead(config, self.num_labels)
        self.text_scores = None
        if self.text_scores_class and config.classifier_text_features:
            self.text_scores = self.text_scores_class(config, self.num_labels)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RoFormerLiteTextScores):
            module.init_weights()

    @staticmethod
    def number_of_scores(config: RoFormerLiteConfig) -> int:
        return config.num_labels

    def add_text_scores(self, text_scores: RoFormerLiteTextScores) -> None:
        """Add fitted scores of the text to the logits from now on; the configuration says so too."""
        self.config.classifier_text_features = len(text_scores.weight)
        self.text_scores = text_scores.to(self.device, self.dtype)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.text_scores is not None:
            self.text_scores.resize_vocabulary(self.config.vocab_size)
        return embeddings

    def real_tokens(
        self, input_ids: torch.Tensor | None, tokens: RaggedBatch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The real tokens, their places in the flattened batch and their documents, each `(N,)`, for the scores of
        the text.

        Raises:
            ValueError: without `input_ids`, which tell the text.
        """
        if input_ids is None:
            raise ValueError(
                f"inputs_embeds: classifier_text_features={self.config.classifier_text_features} reads the text from "
                "input_ids; give these instead."
            )
        return tokens.tokens_of_documents(input_ids)[:3]

    def encode_and_pool(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        inputs_embeds: torch.Tensor | None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, BaseModelOutputWithPastAndCrossAttentions, RaggedBatch]:
        """What the classifier scores, one vector a document `(documents, hidden)`, by `config.classifier_pooling`;
        the stack's outputs, and which tokens are real."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        inputs |= {"inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids, "use_cache": False, **kwargs}
        layout = self.model.lay_out(**inputs)
        outputs = self.model(**inputs, layout=layout, return_dict=True)
        tokens, states, how = layout.tokens, outputs.last_hidden_state, self.config.classifier_pooling
        if how == "late":
            features = tokens.restore(self.classifier.transform(tokens.gather(states)))
            return tokens.pool(features, "mean"), outputs, tokens
        return self.classifier.transform(tokens.pool(states, how)), outputs, tokens


class RoFormerLiteForSequenceClassification(RoFormerLiteClassificationModel):
    """Classes, sets of classes, or numbers for whole sequences.

    With `config.classifier_text_features` the logits are the sum of the classifier's and of the scores of n-grams.
    """

    text_scores_class = RoFormerLiteDocumentScores

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
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """As `RoFormerLiteModel.forward`; `logits` is `(B, num_labels)`, one row a document if the input is packed.

        `labels`: `(B,)` classes; `(B, num_labels)` of 0 and 1; or numbers, as `config.problem_type` says
        (inferred from the first labels when it is None).
        """
        pooled, outputs, tokens = self.encode_and_pool(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs
        )
        logits = self.classifier.score(pooled)  # (B, num_labels)
        if self.text_scores is not None:
            real, _, documents = self.real_tokens(input_ids, tokens)
            logits = logits + self.text_scores(logits, real, documents)
        loss = None
        if labels is not None:
            if not isinstance(labels, torch.Tensor):
                raise TypeError(f"labels is a {type(labels).__name__}; it must be a tensor.")
            problem_type = self.config.problem_type or infer_problem_type(self.num_labels, labels)
            if problem_type == "single_label_classification":
                check_labels(labels.squeeze(-1) if labels.ndim == 2 else labels, logits.shape[:1], "row")
            loss = sequence_loss(logits, labels, problem_type, num_items_in_batch)
            self.config.problem_type = problem_type  # not that of labels which have been refused
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class RoFormerLiteForMultipleChoice(RoFormerLiteClassificationModel):
    """Which of several continuations is right: one score for each."""

    @staticmethod
    def number_of_scores(config: RoFormerLiteConfig) -> int:
        return 1

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
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        """As `RoFormerLiteModel.forward` with a dimension of choices, `(B, choices, L)`; `labels` `(B,)` is the
        number of the right choice; `logits` `(B, choices)`."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        inputs |= {"position_ids": position_ids, "inputs_embeds": inputs_embeds}
        batch_size, choices = check_choices(inputs)
        flat = [None if tensor is None else tensor.flatten(0, 1) for tensor in inputs.values()]  # (B * choices, L, …)
        pooled, outputs, _ = self.encode_and_pool(*flat, **kwargs)
        logits = self.classifier.score(pooled).view(batch_size, choices)
        if labels is not None:
            check_labels(labels, (batch_size,), "row")
        return MultipleChoiceModelOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class RoFormerLiteForTokenClassification(RoFormerLiteClassificationModel):
    """A class for each token (entities, parts of speech).

    With `config.classifier_text_features` the logits are the classifier's, scores of the words and what the tags of
    their neighbours say.
    """

    text_scores_class = RoFormerLiteWordScores

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
        **kwargs: Unpack[TransformersKwargs],
    ) -> TokenClassifierOutput:
        """As `RoFormerLiteModel.forward`; `labels` `(B, L)`, -100 where ignored; `logits` `(B, L, num_labels)`."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        inputs |= {"inputs_embeds": inputs_embeds, "token_type_ids": token_type_ids, "use_cache": False, **kwargs}
        layout = self.model.lay_out(**inputs)
        outputs = self.model(**inputs, layout=layout, return_dict=True)
        logits = self.classifier(outputs.last_hidden_state)  # (B, L, num_labels)
        if self.text_scores is not None:
            real, places, documents = self.real_tokens(input_ids, layout.tokens)
            flat = logits.flatten(0, 1)
            added = self.text_scores(flat[places], real, documents)
            logits = flat.index_add(0, places, added).view_as(logits)
        if labels is not None:
            check_labels(labels, logits.shape[:2], "token")
        return TokenClassifierOutput(
            loss=None if labels is None else cross_entropy(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class RoFormerLiteForQuestionAnswering(RoFormerLiteClassificationModel):
    """Where the answer begins and ends in the text (SQuAD)."""

    @staticmethod
    def number_of_scores(config: RoFormerLiteConfig) -> int:
        return 2

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
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """As `RoFormerLiteModel.forward`; `start_positions`, `end_positions` `(B,)` are the tokens of the answer.

        Positions outside the input count for nothing, as in transformers' own heads.
        """
        inputs = input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds
        outputs = self.model(*inputs, use_cache=False, return_dict=True, **kwargs)
        start_logits, end_logits = self.classifier(outputs.last_hidden_state).unbind(-1)  # each (B, L)
        loss = None
        if start_positions is not None and end_positions is not None:
            length = start_logits.shape[1]
            for name, places in {"start_positions": start_positions, "end_positions": end_positions}.items():
                check_labels(
                    places.view(-1) if isinstance(places, torch.Tensor) else places,
                    start_logits.shape[:1],
                    "row",
                    name,
                )
            losses = [
                cross_entropy(logits, places.view(-1).clamp(0, length), num_items_in_batch, ignore_index=length)
                for logits, places in ((start_logits, start_positions), (end_logits, end_positions))
            ]
            loss = sum(losses) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = [
    "RoFormerLiteForMultipleChoice",
    "RoFormerLiteForQuestionAnswering",
    "RoFormerLiteForSequenceClassification",
    "RoFormerLiteForTokenClassification",
]
