"""NeoBERT: pre-norm with RMSNorm, a gated feed-forward, rotary positions, no biases.

One matrix holds the queries, keys and values, head by head, and the rotation pairs neighbouring
channels. Its code was published with its weights, is not part of transformers, and is never run.
The plain modules with which `verify` compares are written from its description (Le Breton et al.
2025, arXiv:2502.19587).
"""

from functools import partial
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    ModelOutput,
    SequenceClassifierOutput,
)

from hf_roformer_lite import RoFormerLiteConfig

from .bert import LINEAR, WITH_INPUT_DROPOUT
from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, SIZES, Head, HuggingFaceConverter, same_names
from .llama import PRE_RMS_NORM
from .weight_map import (
    CHUNK,
    UNCHANGED,
    Rules,
    WeightRule,
    in_layers,
    in_turn,
    permute_for_rope,
    renamed,
    split_heads,
)

THETA = 10000.0
LAYER = "transformer_encoder.{i}."
COMPUTED = ("tie_word_embeddings", "initializer_range", "intermediate_size")


@strict
class NeoBERTConfig(PreTrainedConfig):
    """The fields of a NeoBERT checkpoint. The inner width of its gated feed-forward is two thirds
    of `intermediate_size`, rounded up to a multiple of 8."""

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
    """Rotate each pair of neighbouring channels of `(B, heads, L, head_dim)`, as a complex number,
    by its position."""
    length, width = states.shape[-2:]
    speeds = THETA ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * speeds
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(states.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns.to(pairs.dtype)).flatten(-2)


class NeoBERT(PreTrainedModel):
    """The stack, whose names have the prefix `model.` in classes with a head."""

    config_class = NeoBERTConfig

    def __init__(self, config: NeoBERTConfig):
        super().__init__(config)
        self.encoder = nn.Embedding(config.vocab_size, config.hidden_size)
        self.transformer_encoder = nn.ModuleList(
            self._make_layer(config) for _ in range(config.num_hidden_layers)
        )
        self.layer_norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.post_init()

    @staticmethod
    def _make_layer(config: NeoBERTConfig) -> nn.ModuleDict:
        hidden = config.hidden_size
        inner = config.inner_width
        linear = partial(nn.Linear, bias=False)
        return nn.ModuleDict(
            {
                "attention_norm": nn.RMSNorm(hidden, config.norm_eps),
                "ffn_norm": nn.RMSNorm(hidden, config.norm_eps),
                "qkv": linear(hidden, 3 * hidden),
                "wo": linear(hidden, hidden),
                "ffn": nn.ModuleDict(
                    {"w12": linear(hidden, 2 * inner), "w3": linear(inner, hidden)}
                ),
            }
        )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> BaseModelOutput:
        """Ids `(B, L)` to states `(B, L, hidden)`."""
        states = self.encoder(input_ids)
        is_real = attention_mask.bool()[:, None, None]
        heads = (self.config.num_attention_heads, -1)
        for layer in self.transformer_encoder:
            packed = layer["qkv"](layer["attention_norm"](states)).unflatten(-1, heads)
            query, key, value = packed.transpose(1, 2).chunk(3, -1)
            query = rotate_pairs(query)
            key = rotate_pairs(key)
            attended = F.scaled_dot_product_attention(query, key, value, is_real)
            states = states + layer["wo"](attended.transpose(1, 2).flatten(-2))
            gate, up = layer["ffn"]["w12"](layer["ffn_norm"](states)).chunk(2, -1)
            states = states + layer["ffn"]["w3"](F.silu(gate) * up)
        return BaseModelOutput(last_hidden_state=self.layer_norm(states))


class NeoBERTLMHead(PreTrainedModel):
    """The language model."""

    config_class = NeoBERTConfig

    def __init__(self, config: NeoBERTConfig):
        super().__init__(config)
        self.model = NeoBERT(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> ModelOutput:
        return MaskedLMOutput(logits=self.decoder(self.model(**inputs).last_hidden_state))


class NeoBERTForSequenceClassification(PreTrainedModel):
    """The sequence classifier, which reads the state of the first token."""

    config_class = NeoBERTConfig

    def __init__(self, config: NeoBERTConfig):
        super().__init__(config)
        self.model = NeoBERT(config)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(self, **inputs: torch.Tensor) -> ModelOutput:
        first = self.model(**inputs).last_hidden_state[:, 0]
        inner = self.dense(self.dropout(first)).tanh()
        return SequenceClassifierOutput(logits=self.classifier(self.dropout(inner)))


CLASSES = {
    "Model": NeoBERT,
    "LMHead": NeoBERTLMHead,
    "ForSequenceClassification": NeoBERTForSequenceClassification,
}


class NeoBert(HuggingFaceConverter):
    """NeoBERT. Config: the fields of its config.json, with `architectures` for the head."""

    name = "neobert"
    prefix = "model"
    config_class = NeoBERTConfig
    in_transformers = False
    fields = {
        **{
            ours: theirs for ours, theirs in (COMMON_FIELDS | SIZES).items() if ours not in COMPUTED
        },
        **same_names("norm_eps", "classifier_dropout", max_position_embeddings="max_length"),
    }
    constants = {
        **PRE_RMS_NORM,
        **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), False),
        "hidden_act": "silu",
        "hidden_dropout": 0.0,
    }
    rules = (
        WeightRule("encoder.weight", "embeddings.word_embeddings.weight"),
        *in_layers(
            {
                "wo.weight": "self_attn.o_proj.weight",
                "ffn.w3.weight": "mlp.down_proj.weight",
                "attention_norm.weight": "self_attn_norm.weight",
                "ffn_norm.weight": "mlp_norm.weight",
            },
            LAYER,
        ),
        WeightRule(
            f"{LAYER}ffn.w12.*", ("layers.{i}.mlp.gate_proj.*", "layers.{i}.mlp.up_proj.*"), CHUNK
        ),
        WeightRule("layer_norm.weight", "final_norm.weight"),
    )
    output_matrix = "decoder.weight"
    heads = {
        "Model": Head(),
        "LMHead": Head(
            renamed({"decoder.bias": "lm_head.bias"}), {"lm_head_bias": True}, becomes="ForMaskedLM"
        ),
        "ForSequenceClassification": Head(
            (*renamed({"dense.*": "classifier.dense.*"}), *LINEAR), WITH_INPUT_DROPOUT
        ),
    }

    def class_name(self, head: str) -> str:
        return super().class_name(head.removeprefix("Model"))

    def computed_fields(self, theirs: NeoBERTConfig) -> dict[str, Any]:
        return {
            "intermediate_size": theirs.inner_width,
            "initializer_range": theirs.decoder_init_range,
        }

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        return {"intermediate_size": 3 * ours.intermediate_size // 2}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        rows = permute_for_rope(ours.num_attention_heads)
        split = in_turn(split_heads(ours.num_attention_heads), rows, rows, UNCHANGED)
        parts = tuple(f"layers.{{i}}.self_attn.{part}_proj.weight" for part in "qkv")
        return (*self.rules, WeightRule(f"{LAYER}qkv.weight", parts, split))

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        head, _ = self.head(source_config)
        return CLASSES[head](NeoBERTConfig.from_dict(dict(source_config)))


CONVERTERS = (NeoBert(),)
