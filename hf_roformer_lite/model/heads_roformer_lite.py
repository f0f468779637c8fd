"""Heads of one stack: masked and causal language models, classifiers of sequences and tokens,
questions, choices."""

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any, Literal, Protocol

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import (
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.processing_utils import Unpack
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from ..padding_free.outputs import without_logits
from .compatibility import CACHE_NAME, accepts_past_key_values
from .configuration_roformer_lite import RoFormerLiteConfig, filled
from .losses import (
    IGNORE_INDEX,
    check_classes,
    check_shape,
    cross_entropy,
    linear_cross_entropy,
    mean_of_items,
    sequence_loss,
)
from .modeling_roformer_lite import (
    ForwardKwargs,
    RoFormerLiteModel,
    RoFormerLitePreTrainedModel,
    find_packed_documents,
    is_padding_mask,
    make_norm,
    pool,
    positions_of_real_tokens,
)


class RoFormerLiteLMTransform(nn.Module):
    """The transformation between the last layer and the LM head, `(..., hidden)` to
    `(..., embedding_size)`.

    With `lm_head_transform` BERT's dense, activation and norm; else a projection if the two widths
    differ.
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
    """From hidden states to logits and loss, for models with `lm_transform` and `lm_head`."""

    config: Any  # Of one stack or of a pair, as the model says.
    training: bool

    def add_lm_head(self, config: RoFormerLiteConfig) -> None:
        embedding_size = filled(config.embedding_size)
        self.lm_transform = RoFormerLiteLMTransform(config)
        self.lm_head = nn.Linear(embedding_size, config.vocab_size, bias=config.lm_head_bias)

    def skips_logits(self, labels: torch.Tensor | None, skip_logits: bool | None) -> bool:
        """Whether only labelled positions go through the LM head: `skip_logits`, or that of the
        config while training."""
        if labels is None:
            return False
        if skip_logits is None:
            skip_logits = self.training and self.config.get_text_config(decoder=True).skip_logits
        return skip_logits

    def logits_and_loss(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        skip_logits: bool | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Logits `(B, L, vocab)`, None where they are skipped, and the loss of `labels` `(B, L)`,
        which are aligned with `hidden_states` `(B, L, hidden)`; None without labels."""
        if labels is None:
            return self.lm_head(self.lm_transform(hidden_states)), None
        skips_logits = self.skips_logits(labels, skip_logits)
        # In a graph, shapes can't depend on where labels are.
        if not skips_logits or is_tracing(hidden_states):
            logits = self.lm_head(self.lm_transform(hidden_states))
            loss = cross_entropy(logits, labels, num_items_in_batch, label_smoothing=smoothing)
            return (None if skips_logits else logits), loss
        check_shape("labels", labels, hidden_states.shape[:-1])
        check_classes(labels)
        labels = labels.to(device=hidden_states.device, dtype=torch.long).flatten()
        places = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        states = hidden_states.flatten(0, 1).index_select(0, places)
        states = self.lm_transform(states)  # (n, embedding_size)
        total = linear_cross_entropy(states, self.lm_head, labels[places], smoothing)
        return None, mean_of_items(total, len(places), num_items_in_batch)


def ignore_padding(labels: torch.Tensor, attention_mask: Any) -> torch.Tensor:
    """Labels `(B, L)` of real tokens. Labels on padding are ignored."""
    if not is_padding_mask(attention_mask):
        return labels
    if labels.shape != attention_mask.shape:
        return labels
    return labels.masked_fill(attention_mask.to(labels.device) == 0, IGNORE_INDEX)


def keep_positions(
    hidden_states: torch.Tensor,
    logits_to_keep: int | torch.Tensor,
    attention_mask: Any,
    count_real_tokens: bool,
) -> torch.Tensor:
    """The states `(B, L, hidden)` whose logits are wanted: of the last positions (0: of all), or of
    the given indices.

    With `count_real_tokens` and a `(B, L)` mask, a number counts the last real tokens of each row,
    wherever its padding is; where there are fewer, the last padding takes their place.
    """
    if isinstance(logits_to_keep, torch.Tensor):
        return hidden_states[:, logits_to_keep]
    if not logits_to_keep or not count_real_tokens or not is_padding_mask(attention_mask):
        return hidden_states[:, -logits_to_keep:]
    is_real = attention_mask[:, -hidden_states.shape[1] :].to(hidden_states.device) != 0
    places = is_real.int().argsort(dim=1, stable=True)[:, -logits_to_keep:, None]  # (B, kept, 1)
    return hidden_states.gather(1, places.expand(-1, -1, hidden_states.shape[-1]))


def ask_for_last_real_token(inputs: dict[str, Any]) -> None:
    """Change the arguments of `forward` for a prompt of `generate`, which reads the logits at the
    last place: these must be those of the last real token of each row, even if the user asks for
    all (0)."""
    logits_to_keep = inputs.get("logits_to_keep", 1)
    if not isinstance(logits_to_keep, torch.Tensor):
        logits_to_keep = max(logits_to_keep, 1)
    inputs["logits_to_keep"] = logits_to_keep
    inputs["count_real_tokens"] = True


def check_prompt(attention_mask: torch.Tensor, length: int, has_windows: bool) -> None:
    """Refuse prompts with padding on the right where the next token would not see the last one.

    Args:
        attention_mask: `(B, past + L)`, of the prompt so far.
        length: L, the tokens of this call.
        has_windows: Whether sliding windows count positions, including padding.

    Raises:
        ValueError: with the remedy.
    """
    is_real = attention_mask != 0
    has_begun = is_real[:, :-length].any(dim=1)
    if bool((has_begun & ~is_real[:, -length:].any(dim=1)).any()):
        raise ValueError(
            "prefill_chunk_size can't be combined with padding on the right; pad on the left."
        )
    if has_windows and bool((is_real[:, :-1] & ~is_real[:, 1:]).any()):
        raise ValueError(
            "attention_mask has padding after tokens, which sliding windows count like tokens: "
            "pad on the left (padding_side='left')."
        )


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
        **kwargs: Unpack[ForwardKwargs],
    ) -> MaskedLMOutput:
        """As `RoFormerLiteModel.forward`.

        Args:
            labels: `(B, L)`, the masked tokens, -100 elsewhere. Labels of padding are ignored.
            skip_logits: Whether only labelled positions go through the LM head; using `logits`
                is an error then, else they are `(B, L, vocab)`. Default: `config.skip_logits`
                while training.
            num_items_in_batch: Labels in all batches of an optimiser step, which the loss is
                divided by.
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
        logits, loss = self.logits_and_loss(
            outputs.last_hidden_state,
            labels=labels,
            skip_logits=skip_logits,
            num_items_in_batch=num_items_in_batch,
            smoothing=smoothing,
        )
        output = MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return output if logits is not None else without_logits(output)


class CausalLMKwargs(ForwardKwargs, total=False):
    """Further keyword arguments of `RoFormerLiteForCausalLM.forward`."""

    shift_labels: torch.Tensor | None


class RoFormerLiteForCausalLM(RoFormerLitePreTrainedModel, LMHeadMixin, GenerationMixin):
    """Left-to-right language modelling, with `generate`. A config without `is_decoder` is copied
    with it."""

    loss_type = "ForCausalLM"  # Trainer, when it counts labels, learns that they are shifted here.
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

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # `generate` reads the signature.
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in every model of transformers, except that positions count real tokens after padding
        on the right too, and that a prompt keeps its `(B, L)` mask: for a static cache transformers
        would replace it by one of four dimensions, which does not tell where the prompt ends."""
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        attention_mask = kwargs.get("attention_mask")
        if not is_padding_mask(attention_mask):
            return inputs
        given = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
        length = given.shape[1]
        positions = positions_of_real_tokens(attention_mask)[:, -length:]
        # A copy, as the strides of a view would grow with the mask, and compiled code with them.
        inputs["position_ids"] = positions.clone(memory_format=torch.contiguous_format)
        if length > 1:
            has_windows = "sliding_attention" in filled(self.config.layer_types)
            check_prompt(attention_mask, length=length, has_windows=has_windows)
            inputs["attention_mask"] = attention_mask
            ask_for_last_real_token(inputs)
        return inputs

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """As in every model of transformers. Its requests stand in one row without padding, which
        "sdpa" takes and "padding_free" does not, so the attention implementation is changed."""
        if self.config._attn_implementation == "padding_free":
            self.set_attn_implementation("sdpa")
        return super().init_continuous_batching(*args, **kwargs)

    def generate_batch(self, *args: Any, **kwargs: Any) -> Any:
        """As in every model of transformers, with the attention implementation of
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
        skip_logits: bool | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        count_real_tokens: bool = False,
        **kwargs: Unpack[CausalLMKwargs],
    ) -> CausalLMOutputWithCrossAttentions:
        """As `RoFormerLiteModel.forward` and `RoFormerLiteForMaskedLM.forward`.

        Args:
            labels: `(B, L)`, the input ids (they are shifted here), -100 where ignored. With labels
                no cache is made unless asked for. Labels of padding are ignored.
            logits_to_keep: Compute the logits of the last positions only (0: of all), or of the
                given indices.
            count_real_tokens: Whether `logits_to_keep` counts the last real tokens of each row,
                which padding may follow; `generate` sets it.
            kwargs: `shift_labels` `(B, L)` are labels that are aligned with the positions already.
        """
        # It is no argument of its own, as Trainer takes every argument with "label" in its name for
        # one that batches must have.
        shift_labels = kwargs.pop("shift_labels", None)
        if shift_labels is None and labels is not None:
            labels = ignore_padding(labels, attention_mask)
            shift_labels = F.pad(labels[:, 1:].long(), pad=(0, 1), value=IGNORE_INDEX)
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
            hidden_states = keep_positions(
                hidden_states, logits_to_keep, attention_mask, count_real_tokens
            )
        logits, loss = self.logits_and_loss(
            hidden_states,
            labels=shift_labels,
            skip_logits=skip_logits,
            num_items_in_batch=num_items_in_batch,
            smoothing=smoothing,
        )
        output = CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            **{CACHE_NAME: outputs.get(CACHE_NAME)},
        )
        return output if logits is not None else without_logits(output)


class RoFormerLiteClassificationHead(nn.Module):
    """Dropout and linear layer; before them, if `config.classifier_activation` names one, a dense
    layer and that activation, with a norm after it if `config.classifier_norm` asks for one."""

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
    """The head of whole documents, `(documents, hidden)` to `(documents, num_labels)`."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states.flatten(0, -2))  # vLLM gives (documents, 1, hidden).


class TextScores(Protocol):
    """What a classifier asks of the scores of the text that it may have, which are a module of
    `ngram_scores.py` or `tag_scores.py`."""

    weight: nn.Parameter
    token_bytes: torch.Tensor

    def of_batch(
        self,
        logits: torch.Tensor,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cu_seq_lens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def resize_vocabulary(self, size: int) -> None: ...

    def to(self, *, device: torch.device, dtype: torch.dtype) -> "TextScores": ...


# The class of these scores, by what is scored. `ngram_scores.py` and `tag_scores.py`, which few
# models need, add theirs.
TEXT_SCORES: dict[str, Callable[[RoFormerLiteConfig, int], TextScores]] = {}


class RoFormerLiteClassificationModel(RoFormerLitePreTrainedModel):
    """Stack and classifier; what the classification heads have in common."""

    num_scores: int | None = None  # Default: config.num_labels.
    output_class: Any = SequenceClassifierOutput
    head_class = RoFormerLiteClassificationHead
    scores_text_of: str | None = None  # The key in `TEXT_SCORES` of the scores that may be added.

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__(config)
        self.num_labels: int = self.num_scores or filled(config.num_labels)
        self.model = RoFormerLiteModel(config, add_pooling_layer=False)
        self.classifier = self.head_class(config, self.num_labels)
        self.text_scores: TextScores | None = None
        has_scores = config.classifier_text_features > 0
        decodes_tags = config.decode_tags and self.scores_text_of == "word"
        if self.scores_text_of is not None and (has_scores or decodes_tags):
            self.text_scores = TEXT_SCORES[self.scores_text_of](config, self.num_labels)
        self.post_init()

    def add_text_scores(self, text_scores: TextScores | None) -> None:
        """Add fitted scores of the text to the logits from now on, in the place of earlier ones;
        None removes those. The configuration says so too."""
        self.config.classifier_text_features = 0 if text_scores is None else len(text_scores.weight)
        self.config.decode_tags = getattr(text_scores, "decodes", False)
        self.config.classifier_text_counts = getattr(text_scores, "counts_repeated", False)
        if text_scores is not None:
            self.config.classifier_token_bytes = text_scores.token_bytes.shape[1]
            text_scores = text_scores.to(device=self.device, dtype=self.dtype)
        self.text_scores = text_scores

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in every model of transformers; new tokens have no text."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.text_scores is not None:
            self.text_scores.resize_vocabulary(self.config.vocab_size)
        return embeddings

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
        **kwargs: Unpack[ForwardKwargs],
    ) -> SequenceClassifierOutput:
        """As `RoFormerLiteModel.forward`; each class says what its `logits` and `labels` are.

        The fields of a `TokenClassifierOutput` are the same; sentence-transformers reads their
        names off this annotation. Only PEFT's prefix tuning gives a `cache`.
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
        cu_seq_lens_q = kwargs.get("cu_seq_lens_q")
        logits = self.logits(outputs.last_hidden_state, attention_mask, position_ids, cu_seq_lens_q)
        joint_logits = logits
        if self.text_scores is not None:
            joint_logits, logits = self.text_scores.of_batch(
                logits, input_ids, attention_mask, position_ids, cu_seq_lens_q
            )
        loss = None
        if labels is not None:
            loss = self.loss(joint_logits, labels, attention_mask, num_items_in_batch)
        return self.output_class(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: Any,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        return cross_entropy(logits, labels, num_items_in_batch)

    def logits(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cu_seq_lens_q: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`(B, L, hidden)` to `(documents, num_labels)`, by `config.classifier_pooling`.

        Raises:
            ValueError: for borders of packed documents in a traced graph, which can't have one row
                of output for each.
        """
        is_traced = is_tracing(hidden_states)
        if cu_seq_lens_q is not None and is_traced:
            raise ValueError(
                "cu_seq_lens_q: compiled as a whole, a model can't pool packed documents; give "
                "them as rows."
            )
        documents = None
        if not is_traced:
            documents = find_packed_documents(
                shape=(hidden_states.shape[0], hidden_states.shape[1]),
                device=hidden_states.device,
                attention_mask=attention_mask,
                position_ids=position_ids,
                cu_seq_lens_q=cu_seq_lens_q,
            )
        how = self.config.classifier_pooling
        if how == "late":
            hidden_states = self.classifier.transform(hidden_states)
            pooled = pool(hidden_states, "mean", attention_mask, documents)
            return self.classifier.score(pooled)
        return self.classifier(pool(hidden_states, how, attention_mask, documents))


ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]


class RoFormerLiteForSequenceClassification(RoFormerLiteClassificationModel):
    """Classes, sets of classes, or numbers for whole sequences.

    `logits` is `(B, num_labels)`, one row a document if the input is packed; with
    `config.classifier_text_features` the sum of the classifier's and of the scores of n-grams.
    `labels`: `(B,)` classes, `(B, num_labels)` of 0 and 1, or numbers, as `config.problem_type`
    says (inferred from the first labels if it is None, by transformers' rule).
    """

    head_class = RoFormerLiteDocumentHead
    scores_text_of = "document"

    def loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: Any,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        problem_type = self.config.problem_type
        if problem_type is None:
            problem_type = self.infer_problem_type(labels)
        loss = sequence_loss(logits, labels, problem_type, num_items_in_batch)
        # Kept only now, as labels that have been refused decide nothing.
        self.config.problem_type = problem_type
        return loss

    def infer_problem_type(self, labels: torch.Tensor) -> ProblemType:
        if self.num_labels == 1:
            return "regression"
        if labels.dtype in (torch.long, torch.int):
            return "single_label_classification"
        return "multi_label_classification"


class RoFormerLiteForMultipleChoice(RoFormerLiteClassificationModel):
    """Which of several continuations is right: one score for each.

    All inputs have a dimension of choices, `(B, choices, L)`; `labels` `(B,)` is the number of the
    right choice; `logits` `(B, choices)`.
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
        **kwargs: Unpack[ForwardKwargs],
    ) -> MultipleChoiceModelOutput:
        arguments = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        inputs = {name: tensor for name, tensor in arguments.items() if tensor is not None}
        shapes = {tensor.shape[:3] for tensor in inputs.values()}
        if len(shapes) != 1 or any(len(shape) != 3 for shape in shapes):
            raise ValueError(
                "input_ids (or inputs_embeds), masks and so on must all be (batch, choices, "
                "length)."
            )
        batch_size, num_choices, _ = shapes.pop()
        rows = {name: tensor.flatten(0, 1) for name, tensor in inputs.items()}  # (B * choices, L)
        outputs = super().forward(**rows, return_dict=True, **kwargs)
        outputs.logits = outputs.logits.view(batch_size, num_choices)
        if labels is not None:
            outputs.loss = cross_entropy(outputs.logits, labels, num_items_in_batch)
        return outputs


class RoFormerLiteForTokenClassification(RoFormerLiteClassificationModel):
    """A class for each token (entities, parts of speech): `labels` `(B, L)`, -100 where ignored, as
    they are at padding; `logits` `(B, L, num_labels)`.

    With `config.classifier_text_features` the logits are the sum of the classifier's, of scores of
    the words and of what the tags of their neighbours say. With `config.decode_tags` their maxima
    are one tag for each word, in a sequence that can be; the loss is of what they are before.
    """

    output_class = TokenClassifierOutput
    scores_text_of = "word"

    def logits(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.classifier(hidden_states)

    def loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: Any,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        return cross_entropy(logits, ignore_padding(labels, attention_mask), num_items_in_batch)


class RoFormerLiteForQuestionAnswering(RoFormerLiteClassificationModel):
    """Where the answer begins and ends in the text (SQuAD)."""

    num_scores = 2

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
        **kwargs: Unpack[ForwardKwargs],
    ) -> QuestionAnsweringModelOutput:
        """As `RoFormerLiteModel.forward`.

        Args:
            start_positions, end_positions: `(B,)`, the tokens of the answer. Positions outside the
                input count for nothing, as in transformers' own heads.
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
        start_logits, end_logits = self.classifier(outputs.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            start_loss = self.place_loss(start_logits, start_positions, num_items_in_batch)
            end_loss = self.place_loss(end_logits, end_positions, num_items_in_batch)
            loss = (start_loss + end_loss) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def place_loss(
        self,
        logits: torch.Tensor,
        places: torch.Tensor,
        num_items_in_batch: int | torch.Tensor | None,
    ) -> torch.Tensor:
        length = logits.shape[1]
        places = places.view(-1).clamp(min=0, max=length)
        return cross_entropy(logits, places, num_items_in_batch, ignore_index=length)


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
