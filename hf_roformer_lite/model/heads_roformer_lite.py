"""Heads of one stack: masked and causal language models, classifiers of sequences and tokens,
questions, choices.

Every loss is a sum over labelled items divided by their number: that of this batch, or
`num_items_in_batch`, which Trainer counts over all batches of an optimiser step, so that
accumulating gradients over many small batches equals one large batch.
"""

import copy
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
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
from transformers.utils.generic import TransformersKwargs, can_return_tuple
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig
from .modeling_roformer_lite import (
    RoFormerLiteModel,
    RoFormerLitePreTrainedModel,
    accepts_cache,
    has_hooks,
    make_norm,
)
from .padding import is_padding_mask, packed_documents, pool, positions_of_real_tokens

IGNORE_INDEX = -100  # transformers' label of positions that count for nothing
# of logits at a time on a CPU: with fewer the products are slower, with more nothing is faster
CHUNK_ROWS = 256
CHUNK_LOGITS = 2**26  # elsewhere, where every chunk is a launch of kernels: 256 MiB in float32


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: int | torch.Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Cross-entropy of `logits` `(..., classes)` and `labels` `(...)`; 0 when nothing is labelled.

    `label_smoothing` gives this share of the target to all classes alike (Szegedy et al. 2015,
    arXiv:1512.00567).

    Raises:
        ValueError: for labels of another shape, which torch would take when they are as many.
    """
    check_shape("labels", labels, logits.shape[:-1])
    labels, logits = labels.to(logits.device, torch.long).flatten(), logits.flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    total = F.cross_entropy(logits, labels, reduction="sum", **options)
    return _mean(total, (labels != ignore_index).sum(), num_items_in_batch)


def check_shape(name: str, tensor: Any, shape: torch.Size) -> None:
    """Refuse a tensor that has not the `shape`.

    Raises:
        ValueError: with name and both shapes.
    """
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {tuple(shape)}.")


def _mean(
    total: torch.Tensor, items: int | torch.Tensor, num_items_in_batch: int | torch.Tensor | None
):
    count = items if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(count, device=total.device).clamp(min=1)


def linear_cross_entropy(
    states: torch.Tensor, head: nn.Module, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Sum of the cross-entropy of `head(states)`, for `states` `(n, width)` and `labels` `(n,)`
    without ignored ones.

    Where gradients are wanted they are computed along with the loss, some rows at a time: no matrix
    of `(n, vocab)` is ever held. A head that is more than a linear layer (an adapter, sharded,
    quantised or offloaded weights) is called as the module it is.
    """
    is_plain = type(head) is nn.Linear and "forward" not in vars(head) and not has_hooks(head)
    weight = getattr(head, "weight", None)
    if (
        is_plain
        and type(weight) is nn.Parameter
        and not is_tracing(states)
        and torch.is_grad_enabled()
    ):
        # ZeRO 3 leaves an empty one behind
        if weight.shape == (head.out_features, head.in_features):
            kind = states.device.type
            dtype = (
                torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
            )
            return _LinearCrossEntropy.apply(
                states, weight, head.bias, labels, label_smoothing, dtype
            )
    logits = head(states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=label_smoothing)


class _LinearCrossEntropy(torch.autograd.Function):
    """Products are computed in `dtype`, probabilities and sums in float32 at least."""

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        label_smoothing: float,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        kind, vocabulary = states.device.type, len(weight)
        exact = torch.promote_types(dtype, torch.float32)
        with torch.autocast(kind, enabled=False):
            total = torch.zeros((), dtype=exact, device=states.device)
            state_grads, weight_grad = torch.empty_like(states), None
            if ctx.needs_input_grad[1]:
                weight_grad = torch.zeros_like(weight, dtype=exact)
            bias_grad = None if bias is None else torch.zeros_like(bias, dtype=exact)
            factor, summand = weight.to(dtype), None if bias is None else bias.to(dtype)
            on_label, on_all = 1 - label_smoothing, label_smoothing / vocabulary
            step = CHUNK_ROWS if kind == "cpu" else max(CHUNK_ROWS, CHUNK_LOGITS // vocabulary)
            for start in range(0, len(states), step):
                rows = slice(start, start + step)
                chunk, label = states[rows].to(dtype), labels[rows, None]  # (c, width), (c, 1)
                # (c, vocab)
                log_probs = F.linear(chunk, factor, summand).log_softmax(-1, dtype=exact)
                total -= on_label * log_probs.gather(1, label).sum()
                if label_smoothing:
                    total -= on_all * log_probs.sum()
                grads = log_probs.exp_().scatter_add_(
                    1, label, log_probs.new_full(label.shape, -on_label)
                )
                if label_smoothing:
                    grads -= on_all
                if bias_grad is not None:
                    bias_grad += grads.sum(0)
                grads = grads.to(dtype)
                state_grads[rows] = grads @ factor
                if weight_grad is not None and dtype == exact:
                    weight_grad.addmm_(grads.t(), chunk)
                elif weight_grad is not None:
                    weight_grad += grads.t() @ chunk
        ctx.save_for_backward(state_grads, weight_grad, bias_grad)
        ctx.dtypes = states.dtype, weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return (
            *(None if saved is None else (saved * grad).to(dtype) for saved, dtype in grads),
            None,
            None,
            None,
        )


class RoFormerLiteLMTransform(nn.Module):
    """What comes between the last layer and the LM head: `(..., hidden)` to `(...,
    embedding_size)`.

    With `lm_head_transform` BERT's dense, activation and norm; else a projection if the two widths
    differ.
    """

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        if not config.vocab_size:
            raise ValueError(
                "vocab_size=0: a stack that takes vectors has no vocabulary for a language model head."
            )
        self.dense = self.norm = None
        if config.lm_head_transform or config.embedding_size != config.hidden_size:
            bias = config.head_bias or not config.lm_head_transform
            self.dense = nn.Linear(config.hidden_size, config.embedding_size, bias=bias)
        if config.lm_head_transform:
            self.act_fn, self.norm = (
                ACT2FN[config.hidden_act],
                make_norm(config, config.embedding_size),
            )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.dense is not None:
            hidden_states = self.dense(hidden_states)
        return hidden_states if self.norm is None else self.norm(self.act_fn(hidden_states))


class LMHeadMixin:
    """From hidden states to logits and loss, for models with `lm_transform` and `lm_head`."""

    def add_lm_head(self, config: RoFormerLiteConfig) -> None:
        self.lm_transform = RoFormerLiteLMTransform(config)
        self.lm_head = nn.Linear(config.embedding_size, config.vocab_size, bias=config.lm_head_bias)

    def skips_logits(self, labels: torch.Tensor | None, skip_logits: bool | None) -> bool:
        """Whether labelled positions alone go through the LM head: `skip_logits`, or the config's
        while training."""
        if skip_logits is None:
            skip_logits = self.training and self.config.get_text_config(decoder=True).skip_logits
        return labels is not None and skip_logits

    def logits_and_loss(
        self,
        hidden_states: torch.Tensor,
        labels: torch.Tensor | None,
        skip_logits: bool | None,
        num_items_in_batch: int | torch.Tensor | None,
        smoothing: float,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Logits `(B, L, vocab)`, None where they are skipped, and the loss of `labels` `(B, L)`,
        which are aligned with `hidden_states` `(B, L, hidden)`; without labels it is None."""
        skips = self.skips_logits(labels, skip_logits)
        # in a graph shapes can't depend on where labels are
        if not skips or is_tracing(hidden_states):
            logits = self.lm_head(self.lm_transform(hidden_states))
            if labels is None:
                return logits, None
            loss = cross_entropy(logits, labels, num_items_in_batch, label_smoothing=smoothing)
            return None if skips else logits, loss
        check_shape("labels", labels, hidden_states.shape[:-1])
        labels = labels.to(hidden_states.device, torch.long).flatten()
        places = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        # (n, embedding_size)
        states = self.lm_transform(hidden_states.flatten(0, 1).index_select(0, places))
        total = linear_cross_entropy(states, self.lm_head, labels[places], smoothing)
        return None, _mean(total, len(places), num_items_in_batch)


def keep_positions(
    hidden_states: torch.Tensor,
    logits_to_keep: int | torch.Tensor,
    attention_mask: Any,
    count_real_tokens: bool,
) -> torch.Tensor:
    """The states `(B, L, hidden)` whose logits are wanted: of the last positions (0: of all), or of
    the given indices.

    With `count_real_tokens` and a `(B, L)` mask a number counts the last real tokens of each row,
    wherever its padding is; where there are fewer, the last padding takes their place.
    """
    if isinstance(logits_to_keep, torch.Tensor):
        return hidden_states[:, logits_to_keep]
    if logits_to_keep and count_real_tokens and is_padding_mask(attention_mask):
        is_real = attention_mask[:, -hidden_states.shape[1] :].to(hidden_states.device) != 0
        last = is_real.int().argsort(dim=1, stable=True)[:, -logits_to_keep:, None]  # (B, kept, 1)
        return hidden_states.gather(1, last.expand(-1, -1, hidden_states.shape[-1]))
    return hidden_states[:, -logits_to_keep:]


def ask_for_last_real_token(inputs: dict[str, Any]) -> None:
    """Change the arguments of `forward` for a prompt of `generate`, which reads the logits at the
    last place: these must be those of the last real token of each row, also where the user asks for
    all (0)."""
    kept = inputs.get("logits_to_keep", 1)
    inputs["logits_to_keep"] = kept if isinstance(kept, torch.Tensor) else max(kept, 1)
    inputs["count_real_tokens"] = True


class RoFormerLiteForMaskedLM(LMHeadMixin, RoFormerLitePreTrainedModel):
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
        **kwargs: Unpack[TransformersKwargs],
    ) -> MaskedLMOutput:
        """As `RoFormerLiteModel.forward`; `labels` `(B, L)` holds the masked tokens, -100
        elsewhere.

        `logits` is `(B, L, vocab)`, or None where they are skipped (`skip_logits` of the config,
        which the argument overrides). `smoothing` is the label smoothing of the loss.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, use_cache=False, return_dict=True, **kwargs)
        logits, loss = self.logits_and_loss(
            outputs.last_hidden_state, labels, skip_logits, num_items_in_batch, smoothing
        )
        return MaskedLMOutput(loss, logits, outputs.hidden_states, outputs.attentions)


class RoFormerLiteForCausalLM(LMHeadMixin, RoFormerLitePreTrainedModel, GenerationMixin):
    """Left-to-right language modelling, with `generate`. A config without `is_decoder` is copied
    with it."""

    loss_type = "ForCausalLM"  # tells Trainer that the labels are shifted here, when it counts them
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

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.Tensor,
        next_sequence_length: int | None = None,
        *,
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,  # `generate` looks at the names of these arguments
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in every model of transformers, except that positions count real tokens after padding
        on the right too, and that a prompt keeps its `(B, L)` mask: for a static cache transformers
        would replace it by one of four dimensions, which does not tell where the prompt ends."""
        if cache is not None:
            kwargs["cache"] = cache
        inputs = super().prepare_inputs_for_generation(
            input_ids, next_sequence_length, attention_mask=attention_mask, **kwargs
        )
        if is_padding_mask(attention_mask):
            given = (
                inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
            )
            length = given.shape[1]
            inputs["position_ids"] = positions_of_real_tokens(attention_mask)[:, -length:]
            if length > 1:
                if length < attention_mask.shape[1] and not bool(
                    attention_mask[:, -length:].any(1).all()
                ):
                    raise ValueError(
                        "prefill_chunk_size can't be combined with padding on the right; pad on the left."
                    )
                inputs["attention_mask"] = attention_mask
                ask_for_last_real_token(inputs)
        return inputs

    @accepts_cache
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
        skip_logits: bool | None = None,
        num_items_in_batch: int | torch.Tensor | None = None,
        smoothing: float = 0.0,
        count_real_tokens: bool = False,
        **kwargs: Unpack[TransformersKwargs],
    ) -> CausalLMOutputWithCrossAttentions:
        """As `RoFormerLiteModel.forward`; `labels` `(B, L)` are the input ids (shifted here), -100
        where ignored.

        `logits_to_keep` computes the logits of the last positions alone (0: of all), or of the
        given indices; with `count_real_tokens`, as `generate` sets it, of the last real tokens of
        each row, which padding may follow. `logits` is `(B, L, vocab)`, or None where they are
        skipped (`skip_logits` of the config, which the argument overrides). With labels no cache is
        made unless asked for. `smoothing` is the label smoothing of the loss; `shift_labels` `(B,
        L)` are labels that are aligned with the positions already.
        """
        # Not an argument: Trainer takes every argument with "label" in its name for one that
        # batches must have.
        shift_labels = kwargs.pop("shift_labels", None)
        if shift_labels is None and labels is not None:
            shift_labels = F.pad(labels[:, 1:].long(), (0, 1), value=IGNORE_INDEX)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        inputs += (encoder_hidden_states, encoder_attention_mask, past_key_values)
        kwargs["return_dict"] = True
        outputs = self.model(
            *inputs, use_cache=use_cache if shift_labels is None else bool(use_cache), **kwargs
        )
        states = outputs.last_hidden_state
        if shift_labels is None:
            states = keep_positions(states, logits_to_keep, attention_mask, count_real_tokens)
        logits, loss = self.logits_and_loss(
            states, shift_labels, skip_logits, num_items_in_batch, smoothing
        )
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )


class RoFormerLiteClassificationHead(nn.Module):
    """Dropout and linear layer; before them, if `config.classifier_activation` names one, a dense
    layer and that activation, with a norm after it if `config.classifier_norm` asks for one."""

    def __init__(self, config: RoFormerLiteConfig, num_labels: int):
        super().__init__()
        dropout = (
            config.hidden_dropout
            if config.classifier_dropout is None
            else config.classifier_dropout
        )
        self.dense = self.norm = None
        if config.classifier_activation is not None:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.head_bias)
            self.act_fn = ACT2FN[config.classifier_activation]
        if config.classifier_norm:
            self.norm = make_norm(config)
        self.input_dropout = nn.Dropout(dropout if config.classifier_input_dropout else 0.0)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(config.hidden_size, num_labels)

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What comes before the scores, `(..., hidden)` to the same shape."""
        if self.dense is not None:
            hidden_states = self.act_fn(self.dense(self.input_dropout(hidden_states)))
        return hidden_states if self.norm is None else self.norm(hidden_states)

    def score(self, features: torch.Tensor) -> torch.Tensor:
        """Transformed states `(..., hidden)` to `(..., num_labels)`."""
        return self.out_proj(self.dropout(features))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.score(self.transform(hidden_states))


class RoFormerLiteDocumentHead(RoFormerLiteClassificationHead):
    """The head of whole documents, `(documents, hidden)` to `(documents, num_labels)`."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states.flatten(0, -2))  # vLLM gives (documents, 1, hidden)


# Scores of the text beside a classifier, by what they are of. `text_features.py`, which few models
# need, adds its own.
TEXT_SCORES: dict[str, type[nn.Module]] = {}


class RoFormerLiteClassificationModel(RoFormerLitePreTrainedModel):
    """Stack and classifier; what the classification heads have in common."""

    num_scores: int | None = None  # default: config.num_labels
    output_class: Any = SequenceClassifierOutput
    head_class = RoFormerLiteClassificationHead
    scores_text_of: str | None = None  # the key in `TEXT_SCORES` of the scores that may be added

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__(config)
        self.num_labels = self.num_scores or config.num_labels
        self.model = RoFormerLiteModel(config, add_pooling_layer=False)
        self.classifier = self.head_class(config, self.num_labels)
        self.text_scores = None
        wanted = config.classifier_text_features or (
            config.decode_tags and self.scores_text_of == "word"
        )
        if self.scores_text_of is not None and wanted:
            self.text_scores = TEXT_SCORES[self.scores_text_of](config, self.num_labels)
        self.post_init()

    def add_text_scores(self, text_scores: nn.Module | None) -> None:
        """Add fitted scores of the text to the logits from now on, in the place of earlier ones;
        None removes those. The configuration says so too."""
        self.config.classifier_text_features = 0 if text_scores is None else len(text_scores.weight)
        self.config.decode_tags = getattr(text_scores, "decodes", False)
        self.config.classifier_text_counts = getattr(text_scores, "counts_repeated", False)
        self.text_scores = None if text_scores is None else text_scores.to(self.device, self.dtype)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in every model of transformers; new tokens have no text."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.text_scores is not None:
            self.text_scores.resize_vocabulary(self.config.vocab_size)
        return embeddings

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
        # PEFT's prefix tuning asks whether a model has this argument
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> SequenceClassifierOutput:
        """As `RoFormerLiteModel.forward`; each class says what its `logits` and `labels` are. The
        fields of a `TokenClassifierOutput` are the same; sentence-transformers reads their names
        off this annotation."""
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        kwargs |= {"past_key_values": past_key_values, "return_dict": True}
        outputs = self.model(*inputs, use_cache=False, **kwargs)
        described = (attention_mask, position_ids, kwargs.get("cu_seq_lens_q"))
        joint = logits = self.logits(outputs.last_hidden_state, *described)
        if self.text_scores is not None:
            joint, logits = self.text_scores.of_batch(logits, input_ids, *described)
        loss = None if labels is None else self.loss(joint, labels, num_items_in_batch)
        return self.output_class(loss, logits, outputs.hidden_states, outputs.attentions)

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any
    ) -> torch.Tensor:
        return cross_entropy(logits, labels, num_items_in_batch)

    def logits(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cu_seq_lens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`(B, L, hidden)` to `(documents, num_labels)`, by `config.classifier_pooling`."""
        documents = packed_documents(hidden_states, attention_mask, position_ids, cu_seq_lens)
        if self.config.classifier_pooling == "late":
            states = self.classifier.transform(hidden_states)
            return self.classifier.score(pool(states, "mean", documents, attention_mask))
        return self.classifier(
            pool(hidden_states, self.config.classifier_pooling, documents, attention_mask)
        )


class RoFormerLiteForSequenceClassification(RoFormerLiteClassificationModel):
    """Classes, sets of classes, or numbers for whole sequences.

    `logits` is `(B, num_labels)`, one row a document if the input is packed; with
    `config.classifier_text_features` the sum of the classifier's and of the scores of n-grams.
    `labels`: `(B,)` classes, `(B, num_labels)` of 0 and 1, or numbers, as `config.problem_type`
    says (inferred from the first labels when it is None, by transformers' rule).
    """

    head_class = RoFormerLiteDocumentHead
    scores_text_of = "document"

    def loss(
        self, logits: torch.Tensor, labels: torch.Tensor, num_items_in_batch: Any
    ) -> torch.Tensor:
        problem_type = self.config.problem_type
        if problem_type is None:
            is_class = labels.dtype in (torch.long, torch.int)
            problem_type = (
                "single_label_classification" if is_class else "multi_label_classification"
            )
            problem_type = "regression" if self.num_labels == 1 else problem_type
        loss = sequence_loss(logits, labels, problem_type, num_items_in_batch)
        self.config.problem_type = problem_type  # not that of labels which have been refused
        return loss


def sequence_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    problem_type: str,
    num_items_in_batch: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """Loss of `logits` `(B, num_labels)` for a `problem_type` of transformers, whose own ignores
    `num_items_in_batch`.

    `labels` is `(B,)` of classes for single_label_classification, `(B, num_labels)` of 0 and 1 for
    multi_label_classification (binary cross-entropy), `(B,)` or `(B, num_labels)` of numbers for
    regression (mean squared error).

    Raises:
        ValueError: for labels of another shape.
    """
    labels = labels.to(logits.device)
    if problem_type == "single_label_classification":
        labels = labels.squeeze(-1) if labels.ndim == 2 else labels
        return cross_entropy(logits, labels, num_items_in_batch)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if labels.ndim > 1 or labels.numel() != logits.numel():
        check_shape("labels", labels, logits.shape)
    targets = labels.to(logits.dtype).reshape(logits.shape)
    measure = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    return _mean(measure(logits, targets, reduction="sum"), targets.numel(), num_items_in_batch)


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
        **kwargs: Unpack[TransformersKwargs],
    ) -> MultipleChoiceModelOutput:
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        shape, *others = [tensor.shape[:3] for tensor in inputs if tensor is not None]
        if len(shape) != 3 or any(other != shape for other in others):
            raise ValueError(
                "input_ids (or inputs_embeds), masks and so on must all be (batch, choices, length)."
            )
        # (B * choices, L, …)
        flat = (None if tensor is None else tensor.flatten(0, 1) for tensor in inputs)
        outputs = super().forward(*flat, return_dict=True, **kwargs)
        outputs.logits = outputs.logits.view(shape[:2])
        if labels is not None:
            outputs.loss = cross_entropy(outputs.logits, labels, num_items_in_batch)
        return outputs


class RoFormerLiteForTokenClassification(RoFormerLiteClassificationModel):
    """A class for each token (entities, parts of speech): `labels` `(B, L)`, -100 where ignored;
    `logits` `(B, L, num_labels)`, with `config.classifier_text_features` the sum of the
    classifier's, of scores of the words and of what the tags of their neighbours say. With
    `config.decode_tags` their maxima are one tag for each word, in a sequence that can be; the loss
    is of what they are before."""

    output_class = TokenClassifierOutput
    scores_text_of = "word"

    def logits(self, hidden_states: torch.Tensor, *described: Any) -> torch.Tensor:
        return self.classifier(hidden_states)


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
        **kwargs: Unpack[TransformersKwargs],
    ) -> QuestionAnsweringModelOutput:
        """As `RoFormerLiteModel.forward`; `start_positions`, `end_positions` `(B,)` are the tokens
        of the answer.

        Positions outside the input count for nothing, as in transformers' own heads.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.model(*inputs, use_cache=False, return_dict=True, **kwargs)
        start, end = self.classifier(outputs.last_hidden_state).unbind(-1)  # each (B, L)
        loss = None
        if start_positions is not None and end_positions is not None:
            length = start.shape[1]
            losses = [
                cross_entropy(
                    scores,
                    places.view(-1).clamp(0, length),
                    num_items_in_batch,
                    ignore_index=length,
                )
                for scores, places in ((start, start_positions), (end, end_positions))
            ]
            loss = sum(losses) / 2
        return QuestionAnsweringModelOutput(
            loss, start, end, outputs.hidden_states, outputs.attentions
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
