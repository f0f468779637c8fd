"""RoFormerV2 and NeoBERT, whose classes are not part of transformers, as plain modules: what `verify` compares with.

Written from their descriptions (Su et al. 2022, "RoFormerV2", and Le Breton et al. 2025, arXiv:2502.19587), with the
names that their published checkpoints have. Texts are computed whole, with their padding, by the textbook's formulas.
"""

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, RoFormerConfig
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    ModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

THETA = 10000.0


@strict
class NeoBERTConfig(PreTrainedConfig):
    """The fields of a NeoBERT checkpoint. Two thirds of `intermediate_size`, rounded up to a multiple of 8, are the
    inner width of its gated feed-forward."""

    model_type = "neobert"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 28
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    norm_eps: float = 1e-6
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    max_length: int = 1024
    embedding_init_range: float = 0.02
    decoder_init_range: float = 0.02
    classifier_init_range: float = 0.02
    classifier_dropout: float = 0.1
    tie_word_embeddings: bool = False

    @property
    def inner_width(self) -> int:
        return -(-int(2 * self.intermediate_size / 3) // 8) * 8


def rotate_pairs(states: torch.Tensor) -> torch.Tensor:
    """Turn each pair of neighbouring channels of `(B, heads, L, head_dim)`, as a complex number, by its position."""
    length, width = states.shape[-2:]
    speeds = THETA ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(states.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns.to(pairs.dtype)).flatten(-2)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, dropout: float = 0.0
) -> torch.Tensor:
    """Rotated attention of `(B, heads, L, head_dim)` to the real tokens of `mask` `(B, L)`, as `(B, L, hidden)`."""
    scores = rotate_pairs(query) @ rotate_pairs(key).transpose(-1, -2) / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask.bool()[:, None, None], float("-inf"))
    probabilities = nn.functional.dropout(scores.softmax(-1), dropout)
    return (probabilities @ value).transpose(1, 2).flatten(-2)


class RoFormerModel(PreTrainedModel):
    """The stack of RoFormerV2: post-norm, no biases; its norms divide by the root mean square and have no gain."""

    config_class = RoFormerConfig

    def __init__(self, config: RoFormerConfig):
        super().__init__(config)
        hidden, width = config.hidden_size, config.embedding_size
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(config.vocab_size, width),
                "token_type_embeddings": nn.Embedding(config.type_vocab_size, width),
            }
        )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        if width != hidden:
            self.embeddings_project = nn.Linear(width, hidden)
        layers = nn.ModuleList(self._layer(hidden, config.intermediate_size) for _ in range(config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})
        self.post_init()

    @staticmethod
    def _layer(hidden: int, inner: int) -> nn.ModuleDict:
        projections = {name: nn.Linear(hidden, hidden, bias=False) for name in ("query", "key", "value")}
        output = nn.ModuleDict({"dense": nn.Linear(hidden, hidden, bias=False)})
        return nn.ModuleDict(
            {
                "attention": nn.ModuleDict({"self": nn.ModuleDict(projections), "output": output}),
                "intermediate": nn.ModuleDict({"dense": nn.Linear(hidden, inner, bias=False)}),
                "output": nn.ModuleDict({"dense": nn.Linear(inner, hidden, bias=False)}),
            }
        )

    def norm(self, states: torch.Tensor) -> torch.Tensor:
        return states / (states.square().mean(-1, keepdim=True) + self.config.layer_norm_eps).sqrt()

    def states(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Ids `(B, L)` to `(B, L, hidden)`."""
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        words = self.embeddings["word_embeddings"](input_ids)
        states = self.dropout(self.norm(words + self.embeddings["token_type_embeddings"](segments)))
        if hasattr(self, "embeddings_project"):
            states = self.embeddings_project(states)
        for layer in self.encoder["layer"]:
            projections = layer["attention"]["self"]
            query, key, value = (
                projections[name](states).unflatten(-1, (self.config.num_attention_heads, -1)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            if self.config.rotary_value:
                value = rotate_pairs(value)
            dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
            attended = attend(query, key, value, attention_mask, dropout)
            states = self.norm(states + self.dropout(layer["attention"]["output"]["dense"](attended)))
            inner = ACT2FN[self.config.hidden_act](layer["intermediate"]["dense"](states))
            states = self.norm(states + self.dropout(layer["output"]["dense"](inner)))
        return states

    def forward(self, **inputs: torch.Tensor) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.states(**inputs))


class RoFormerWithHead(PreTrainedModel):
    """RoFormerV2 with a head, which `score` computes."""

    config_class = RoFormerConfig
    base_model_prefix = "roformer"

    def __init__(self, config: RoFormerConfig):
        super().__init__(config)
        self.roformer = RoFormerModel(config)
        self.make_head(config)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> ModelOutput:
        return self.score(self.roformer.states(**inputs))


class RoFormerForMaskedLM(RoFormerWithHead):
    _tied_weights_keys = {"cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight"}

    def make_head(self, config: RoFormerConfig) -> None:
        decoder = nn.Linear(config.embedding_size, config.vocab_size, bias=False)
        self.cls = nn.ModuleDict({"predictions": nn.ModuleDict({"decoder": decoder})})

    def score(self, states: torch.Tensor) -> MaskedLMOutput:
        return MaskedLMOutput(logits=self.cls["predictions"]["decoder"](states))


class RoFormerForSequenceClassification(RoFormerWithHead):
    def make_head(self, config: RoFormerConfig) -> None:
        dense, output = (nn.Linear(config.hidden_size, width) for width in (config.hidden_size, config.num_labels))
        self.classifier = nn.ModuleDict({"dense": dense, "out_proj": output})

    def score(self, states: torch.Tensor) -> SequenceClassifierOutput:
        features = self.classifier["dense"](self.roformer.dropout(states[:, 0]))
        features = self.roformer.dropout(ACT2FN[self.config.hidden_act](features))
        return SequenceClassifierOutput(logits=self.classifier["out_proj"](features))


class RoFormerForTokenClassification(RoFormerWithHead):
    def make_head(self, config: RoFormerConfig) -> None:
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def score(self, states: torch.Tensor) -> TokenClassifierOutput:
        return TokenClassifierOutput(logits=self.classifier(self.roformer.dropout(states)))


class RoFormerForQuestionAnswering(RoFormerWithHead):
    def make_head(self, config: RoFormerConfig) -> None:
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def score(self, states: torch.Tensor) -> QuestionAnsweringModelOutput:
        start, end = self.qa_outputs(states).unbind(-1)
        return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)


class NeoBERT(PreTrainedModel):
    """The stack of NeoBERT: pre-norm with gains, no biases, each head's queries, keys and values side by side."""

    config_class = NeoBERTConfig

    def __init__(self, config: NeoBERTConfig):
        super().__init__(config)
        hidden, inner = config.hidden_size, config.inner_width
        self.encoder = nn.Embedding(config.vocab_size, hidden)
        self.transformer_encoder = nn.ModuleList(
            nn.ModuleDict(
                {
                    "qkv": nn.Linear(hidden, 3 * hidden, bias=False),
                    "wo": nn.Linear(hidden, hidden, bias=False),
                    "ffn": nn.ModuleDict(
                        {"w12": nn.Linear(hidden, 2 * inner, bias=False), "w3": nn.Linear(inner, hidden, bias=False)}
                    ),
                    "attention_norm": nn.RMSNorm(hidden, config.norm_eps),
                    "ffn_norm": nn.RMSNorm(hidden, config.norm_eps),
                }
            )
            for _ in range(config.num_hidden_layers)
        )
        self.layer_norm = nn.RMSNorm(hidden, config.norm_eps)
        self.post_init()

    def states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Ids `(B, L)` to `(B, L, hidden)`."""
        states = self.encoder(input_ids)
        for layer in self.transformer_encoder:
            packed = layer["qkv"](layer["attention_norm"](states))
            heads = packed.unflatten(-1, (self.config.num_attention_heads, -1)).transpose(1, 2).chunk(3, -1)
            states = states + layer["wo"](attend(*heads, attention_mask))
            gate, up = layer["ffn"]["w12"](layer["ffn_norm"](states)).chunk(2, -1)
            states = states + layer["ffn"]["w3"](nn.functional.silu(gate) * up)
        return self.layer_norm(states)

    def forward(self, **inputs: torch.Tensor) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.states(**inputs))


class NeoBERTLMHead(PreTrainedModel):
    config_class = NeoBERTConfig

    def __init__(self, config: NeoBERTConfig):
        super().__init__(config)
        self.model = NeoBERT(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> MaskedLMOutput:
        return MaskedLMOutput(logits=self.decoder(self.model.states(**inputs)))


class NeoBERTForSequenceClassification(PreTrainedModel):
    config_class = NeoBERTConfig

    def __init__(self, config: NeoBERTConfig):
        super().__init__(config)
        self.model = NeoBERT(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> SequenceClassifierOutput:
        features = self.dense(self.dropout(self.model.states(**inputs)[:, 0])).tanh()
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(features)))
