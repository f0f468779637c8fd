"""BART, mBART and Marian: encoder–decoders with scaled embeddings and positions of a table.

Marian's table is one of sines and cosines in an order of its own, and mostly not part of its files: here it is a table
of learned positions with the same numbers. A decoder whose start depends on the language of the text, as mBART's
without `decoder_start_token_id`, starts with the end token here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import BartConfig, MarianConfig, MBartConfig, PreTrainedConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteSeq2SeqConfig,
    RoFormerLiteSeq2SeqModel,
)

from .converter import CLASSIC_FIELDS, SourceConfig
from .hugging_face import Head, HuggingFaceConverter, Rules
from .weight_map import WeightMap, WeightRule
from .weight_operations import DropRows, OneRow, Operation

SIDES = ("encoder", "decoder")
LOGITS_BIAS = "final_logits_bias"
POSITIONS = "embed_positions.weight"
IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
OF_THE_PAIR = ("tie_word_embeddings", "use_cache", "id2label", "label2id")


def attention_rules(theirs: str, ours: str) -> list[WeightRule]:
    """Rules of one attention and its norm."""
    names = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
    layer = "layers.{i}."
    rules = [WeightRule(f"{layer}{theirs}.{a}.*", f"{layer}{ours}.{b}.*") for a, b in names.items()]
    return [*rules, WeightRule(f"{layer}{theirs}_layer_norm.*", f"{layer}{ours}_norm.*")]


LAYERS = (
    *attention_rules("self_attn", "self_attn"),
    *attention_rules("encoder_attn", "cross_attn"),
    WeightRule("layers.{i}.fc1.*", "layers.{i}.mlp.up_proj.*"),
    WeightRule("layers.{i}.fc2.*", "layers.{i}.mlp.down_proj.*"),
    WeightRule("layers.{i}.final_layer_norm.*", "layers.{i}.mlp_norm.*"),
    WeightRule("layernorm_embedding.*", "embeddings.norm.*"),
    WeightRule("layer_norm.*", "final_norm.*"),
)


@dataclass(frozen=True)
class HalvesOfSinusoids(Operation):
    """Our table of `rows` positions of `width` channels is computed: sines in its first half, cosines in the other."""

    rows: int
    width: int

    def to_ours(self, theirs: Sequence[torch.Tensor], count: int) -> Sequence[torch.Tensor]:
        exponents = torch.arange(0, self.width, 2, dtype=torch.float64) / self.width
        angles = torch.arange(self.rows, dtype=torch.float64)[:, None] / 10000.0**exponents
        return [torch.cat((angles.sin(), angles.cos()), -1)]


class PairConverter(HuggingFaceConverter):
    """An encoder–decoder with BART's names.

    Attributes:
        stack_constants: Fields of either stack that are the same in all checkpoints.
        unused_positions: Rows of their tables of positions before that of the first position.
    """

    prefix = "model"
    fields = {}
    stack_constants: Mapping[str, Any]
    unused_positions = 2

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        theirs = self.config_class.from_dict(dict(source_config))
        bias = {"lm_head_bias": source_config.get("stored_logits_bias", True)}
        start = theirs.decoder_start_token_id
        return RoFormerLiteSeq2SeqConfig(
            encoder=RoFormerLiteConfig(**self.stack_fields(theirs, "encoder")),
            decoder=RoFormerLiteConfig(**self.stack_fields(theirs, "decoder"), **bias),
            share_embeddings=self.shares_embeddings(theirs),
            decoder_start_token_id=theirs.eos_token_id if start is None else start,
            **{name: getattr(theirs, name) for name in (*IDS, *OF_THE_PAIR)},
        )

    def shares_embeddings(self, theirs: PreTrainedConfig) -> bool:
        """Whether both sides have one table."""
        return theirs.tie_word_embeddings

    def stack_fields(self, theirs: PreTrainedConfig, side: str) -> dict[str, Any]:
        """Fields of our config of one stack."""
        return {
            **CLASSIC_FIELDS,
            **self.stack_constants,
            "vocab_size": theirs.vocab_size,
            "hidden_size": theirs.d_model,
            "num_hidden_layers": getattr(theirs, f"{side}_layers"),
            "num_attention_heads": getattr(theirs, f"{side}_attention_heads"),
            "intermediate_size": getattr(theirs, f"{side}_ffn_dim"),
            "hidden_act": theirs.activation_function,
            "hidden_dropout": theirs.dropout,
            "attention_dropout": theirs.attention_dropout,
            "mlp_dropout": theirs.activation_dropout,
            "scale_embeddings": theirs.scale_embedding,
            "position_embedding_type": "learned",
            "max_position_embeddings": theirs.max_position_embeddings,
            "initializer_range": theirs.init_std,
            "norm_eps": 1e-5,
            **{name: getattr(theirs, name) for name in IDS},
        }

    def their_fields(self, ours: RoFormerLiteSeq2SeqConfig) -> dict[str, Any]:
        encoder = ours.encoder
        fields = {
            "vocab_size": encoder.vocab_size,
            "d_model": encoder.hidden_size,
            "activation_function": encoder.hidden_act,
            "dropout": encoder.hidden_dropout,
            "attention_dropout": encoder.attention_dropout,
            "activation_dropout": encoder.mlp_dropout,
            "scale_embedding": encoder.scale_embeddings,
            "max_position_embeddings": encoder.max_position_embeddings,
            "init_std": encoder.initializer_range,
            "decoder_start_token_id": ours.decoder_start_token_id,
            "forced_eos_token_id": None,
            **{name: getattr(ours, name) for name in (*IDS, *OF_THE_PAIR)},
        }
        for side, stack in (("encoder", encoder), ("decoder", ours.decoder)):
            fields |= {f"{side}_layers": stack.num_hidden_layers, f"{side}_ffn_dim": stack.intermediate_size}
            fields |= {f"{side}_attention_heads": stack.num_attention_heads}
        return fields

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        completed = super().complete_config(source_config, state_dict)
        completed["stored_positions"] = any(name.endswith(POSITIONS) for name in state_dict)
        return completed | {"stored_logits_bias": LOGITS_BIAS in state_dict}

    def stack_prefixes(self, head: Head) -> tuple[str, str]:
        return ("", "") if head.model_class is RoFormerLiteSeq2SeqModel else ("model.", "model.")

    def weight_map(self, our_config: RoFormerLiteSeq2SeqConfig, source_config: SourceConfig) -> WeightMap:
        head = self.head(source_config)
        theirs, ours = self.stack_prefixes(head)
        rules = []
        for side in SIDES:
            table = self.position_rule(getattr(our_config, side), source_config, f"{side}.{POSITIONS}")
            rules += [rule.prefixed(f"{side}.", f"{side}.") for rule in LAYERS]
            rules += [WeightRule(table[0], f"{side}.embeddings.position_embeddings.weight", table[1])]
        words = "embeddings.word_embeddings.weight"
        if our_config.tie_word_embeddings and our_config.share_embeddings:
            tables = [WeightRule("shared.weight", f"decoder.{words}")]
            copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        else:
            tables = [WeightRule(f"{side}.embed_tokens.weight", f"{side}.{words}") for side in SIDES]
            copies = ("shared.weight",)
        rules = [rule.prefixed(theirs, ours) for rule in (*rules, *tables)]
        unread = (*copies, *(f"{side}.{part}" for side in SIDES for part in (POSITIONS, "version")))
        ignored = [theirs + name for name in unread]
        output = () if our_config.tie_word_embeddings else (WeightRule("lm_head.weight", "lm_head.weight"),)
        bias = WeightRule(LOGITS_BIAS, "lm_head.bias", OneRow())
        return WeightMap((*rules, *output, bias), (*ignored, "lm_head.weight"))

    def position_rule(
        self, ours: RoFormerLiteConfig, source_config: SourceConfig, name: str
    ) -> tuple[str | tuple[str, ...], Operation]:
        """Their name of a table of positions, and what becomes of it."""
        return name, DropRows(self.unused_positions)

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        return LAYERS


def heads(generation: str) -> dict[str, Head]:
    """The bare pair, and the class that generates, called `generation`."""
    return {"Model": Head(RoFormerLiteSeq2SeqModel), generation: Head(RoFormerLiteForConditionalGeneration)}


POST_NORM = {"norm_placement": "post", "final_norm": False}


class Bart(PairConverter):
    """BART: post-norm, a norm on the embeddings."""

    name = "bart"
    config_class = BartConfig
    stack_constants = {**POST_NORM, "embedding_norm": True}
    heads = heads("ForConditionalGeneration")


class MBart(PairConverter):
    """mBART: pre-norm, a norm on the embeddings and one at the end."""

    name = "mbart"
    config_class = MBartConfig
    stack_constants = {"norm_placement": "pre", "final_norm": True, "embedding_norm": True}
    heads = heads("ForConditionalGeneration")


class Marian(PairConverter):
    """Marian, as of OPUS-MT: post-norm, positions that are computed, one or two vocabularies."""

    name = "marian"
    config_class = MarianConfig
    stack_constants = {**POST_NORM, "embedding_norm": False}
    heads = heads("MTModel")
    unused_positions = 0

    def shares_embeddings(self, theirs: MarianConfig) -> bool:
        return theirs.tie_word_embeddings and theirs.share_encoder_decoder_embeddings

    def stack_fields(self, theirs: MarianConfig, side: str) -> dict[str, Any]:
        size = theirs.vocab_size if side == "encoder" else theirs.decoder_vocab_size
        return super().stack_fields(theirs, side) | {"vocab_size": size}

    def their_fields(self, ours: RoFormerLiteSeq2SeqConfig) -> dict[str, Any]:
        sizes = {"vocab_size": ours.encoder.vocab_size, "decoder_vocab_size": ours.decoder.vocab_size}
        return super().their_fields(ours) | sizes | {"share_encoder_decoder_embeddings": ours.share_embeddings}

    def position_rule(
        self, ours: RoFormerLiteConfig, source_config: SourceConfig, name: str
    ) -> tuple[str | tuple[str, ...], Operation]:
        if source_config.get("stored_positions", True):
            return super().position_rule(ours, source_config, name)
        return (), HalvesOfSinusoids(ours.max_position_embeddings, ours.hidden_size)


CONVERTERS = (Bart(), MBart(), Marian())
