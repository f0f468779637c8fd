"""BART, mBART and Marian: encoder–decoders with scaled embeddings and a table of positions.

Marian's table holds sines and cosines in an unusual order, and most of its files lack it. Here it
becomes a table of learned positions with the same numbers. A decoder without a
`decoder_start_token_id` starts with the token with which their `generate` begins: `bos_token_id`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from transformers import BartConfig, MarianConfig, MBartConfig, PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig

from .converter import CLASSIC_FIELDS, SourceConfig, Tensors
from .hugging_face import WORDS, Head, HuggingFaceConverter, check_direction
from .weight_map import ONE_ROW, Operation, WeightMap, WeightRule, drop_rows, in_layers, projections

SIDES = ("encoder", "decoder")
LOGITS_BIAS = "final_logits_bias"
POSITIONS = "embed_positions.weight"
# Our fields of a stack, and the names of their fields, which apply to both stacks.
FIELDS_OF_BOTH_STACKS = {
    "hidden_size": "d_model",
    "hidden_act": "activation_function",
    "hidden_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "mlp_dropout": "activation_dropout",
    "scale_embeddings": "scale_embedding",
    "max_position_embeddings": "max_position_embeddings",
    "initializer_range": "init_std",
    **{name: name for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")},
}
# Their names of these fields begin with `encoder_` or `decoder_`.
FIELDS_OF_ONE_STACK = {
    "num_hidden_layers": "layers",
    "num_attention_heads": "attention_heads",
    "intermediate_size": "ffn_dim",
}
# The pair has these fields itself, under the same names.
FIELDS_OF_PAIR = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "use_cache",
    "id2label",
    "label2id",
)
MATRICES = ("q_proj", "k_proj", "v_proj", "out_proj")
LAYER = {
    **projections(*(f"self_attn.{matrix}" for matrix in MATRICES)),
    **projections(*(f"encoder_attn.{matrix}" for matrix in MATRICES), ours="cross_attn"),
    "self_attn_layer_norm.*": "self_attn_norm.*",
    "encoder_attn_layer_norm.*": "cross_attn_norm.*",
    "fc1.*": "mlp.up_proj.*",
    "fc2.*": "mlp.down_proj.*",
    "final_layer_norm.*": "mlp_norm.*",
}
STACK = (
    *in_layers(LAYER),
    WeightRule("layernorm_embedding.*", "embeddings.norm.*"),
    WeightRule("layer_norm.*", "final_norm.*"),
)


def sines_then_cosines(rows: int, width: int) -> torch.Tensor:
    """A table of `rows` positions with `width` channels in float64: sines in the first half,
    cosines in the second."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
    angles = torch.arange(rows, dtype=torch.float64)[:, None] / 10000.0**exponents
    return torch.cat((angles.sin(), angles.cos()), -1)


class PairConverter(HuggingFaceConverter):
    """An encoder–decoder with BART's names.

    Attributes:
        constants: Fields of both stacks that are the same in all checkpoints.
        unused_positions: The number of rows in their tables before the row of the first position.
    """

    prefix = "model"
    fields = {}
    heads = {"Model": Head(becomes="Seq2SeqModel"), "ForConditionalGeneration": Head()}
    unused_positions: ClassVar[int] = 2

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        theirs = self.read_config(source_config)
        check_direction(theirs, is_causal=None)
        encoder_fields = self.stack_fields(theirs, "encoder")
        decoder_fields = self.stack_fields(theirs, "decoder")
        decoder_fields["lm_head_bias"] = source_config.get("stored_logits_bias", True)
        start_token_id = theirs.decoder_start_token_id
        if start_token_id is None:
            start_token_id = theirs.bos_token_id
        return RoFormerLiteSeq2SeqConfig(
            encoder=RoFormerLiteConfig(**encoder_fields),
            decoder=RoFormerLiteConfig(**decoder_fields),
            share_embeddings=self.shares_embeddings(theirs),
            decoder_start_token_id=start_token_id,
            **{name: getattr(theirs, name) for name in FIELDS_OF_PAIR},
        )

    def shares_embeddings(self, theirs: PreTrainedConfig) -> bool:
        """Whether both sides share one table."""
        return theirs.tie_word_embeddings

    def stack_fields(self, theirs: PreTrainedConfig, side: str) -> dict[str, Any]:
        """The fields of our config for one stack."""
        return {
            **CLASSIC_FIELDS,
            **self.constants,
            **{ours: getattr(theirs, name) for ours, name in FIELDS_OF_BOTH_STACKS.items()},
            **{
                ours: getattr(theirs, f"{side}_{name}")
                for ours, name in FIELDS_OF_ONE_STACK.items()
            },
            "position_embedding_type": "learned",
            "norm_eps": 1e-5,
        }

    def their_fields(self, ours: RoFormerLiteSeq2SeqConfig) -> dict[str, Any]:
        fields = {
            theirs: getattr(ours.encoder, name) for name, theirs in FIELDS_OF_BOTH_STACKS.items()
        }
        for side in SIDES:
            stack = getattr(ours, side)
            for name, theirs in FIELDS_OF_ONE_STACK.items():
                fields[f"{side}_{theirs}"] = getattr(stack, name)
        for name in FIELDS_OF_PAIR:
            fields[name] = getattr(ours, name)
        fields["decoder_start_token_id"] = ours.decoder_start_token_id
        fields["forced_eos_token_id"] = None
        return fields

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        return {
            **source_config,
            "stored_positions": any(name.endswith(POSITIONS) for name in state_dict),
            "stored_logits_bias": LOGITS_BIAS in state_dict,
        }

    def weight_map(
        self, our_config: RoFormerLiteSeq2SeqConfig, source_config: SourceConfig
    ) -> WeightMap:
        theirs, ours = self.stack_prefixes(source_config)
        table = []
        unread = []
        for side in SIDES:
            positions = self.position_rule(getattr(our_config, side), source_config)
            table += [rule.prefixed(f"{side}.", f"{side}.") for rule in (*STACK, positions)]
            unread += [f"{side}.{POSITIONS}", f"{side}.version"]
        their_words = [f"{side}.embed_tokens.weight" for side in SIDES]
        output_table = their_words[-1]
        copies = {}
        if our_config.tie_word_embeddings and our_config.share_embeddings:
            output_table = "shared.weight"
            table.append(WeightRule(output_table, f"decoder.{WORDS}"))
            copies = {theirs + name: theirs + output_table for name in their_words}
        else:
            for side, their_table in zip(SIDES, their_words, strict=True):
                table.append(WeightRule(their_table, f"{side}.{WORDS}"))
            unread.append("shared.weight")
        table = [rule.prefixed(theirs, ours) for rule in table]
        if our_config.tie_word_embeddings:
            copies["lm_head.weight"] = theirs + output_table
        else:
            table.append(WeightRule("lm_head.weight", "lm_head.weight"))
        table.append(WeightRule(LOGITS_BIAS, "lm_head.bias", ONE_ROW))
        ignored = (*(theirs + name for name in unread), "lm_head.weight")
        return WeightMap(table, ignored, copies=copies)

    def computed_tensors(self, model: PreTrainedModel, theirs: Any) -> Tensors:
        has_third_table = getattr(theirs, "share_encoder_decoder_embeddings", True)
        if theirs.tie_word_embeddings or not has_third_table:
            return {}
        # Their class has this table even if both sides have one of their own. Only
        # `get_input_embeddings` reads it.
        return {"shared.weight": model.get_encoder().get_input_embeddings().weight.detach().clone()}

    def position_rule(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> WeightRule:
        """The rule for a table of positions."""
        return WeightRule(
            POSITIONS, "embeddings.position_embeddings.weight", drop_rows(self.unused_positions)
        )


class Bart(PairConverter):
    """BART: post-norm, with a norm after the embeddings."""

    name = "bart"
    config_class = BartConfig
    constants = {"norm_placement": "post", "final_norm": False, "embedding_norm": True}


class MBart(PairConverter):
    """mBART: pre-norm, with a norm after the embeddings and one at the end."""

    name = "mbart"
    config_class = MBartConfig
    constants = {"norm_placement": "pre", "final_norm": True, "embedding_norm": True}


class Marian(PairConverter):
    """Marian, such as OPUS-MT: post-norm, computed positions, one or two vocabularies."""

    name = "marian"
    config_class = MarianConfig
    constants = {"norm_placement": "post", "final_norm": False, "embedding_norm": False}
    heads = {
        "Model": Head(becomes="Seq2SeqModel"),
        "MTModel": Head(becomes="ForConditionalGeneration"),
    }
    unused_positions = 0

    def shares_embeddings(self, theirs: MarianConfig) -> bool:
        return theirs.tie_word_embeddings and theirs.share_encoder_decoder_embeddings

    def stack_fields(self, theirs: MarianConfig, side: str) -> dict[str, Any]:
        fields = super().stack_fields(theirs, side)
        if side == "decoder":
            fields["vocab_size"] = theirs.decoder_vocab_size
        return fields

    def their_fields(self, ours: RoFormerLiteSeq2SeqConfig) -> dict[str, Any]:
        return {
            **super().their_fields(ours),
            "decoder_vocab_size": ours.decoder.vocab_size,
            "share_encoder_decoder_embeddings": ours.share_embeddings,
        }

    def position_rule(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> WeightRule:
        rule = super().position_rule(ours, source_config)
        if source_config.get("stored_positions", True):
            return rule
        table = sines_then_cosines(ours.max_position_embeddings, ours.hidden_size)
        computed = Operation(lambda theirs, count: [table], lambda ours, count: [])
        return WeightRule((), rule.ours, computed)


CONVERTERS = (Bart(), MBart(), Marian())
