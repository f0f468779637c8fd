"""The protein language models ESM-2 and ESM-1b, with all heads except the one that predicts
contacts from attention.

Their token dropout, which depends on the share of mask tokens in a text, is `token_dropout_mask_id`
here. The rows of ESM-1b's table of positions up to the id of padding are never read, are left out
here, and are exported as zeros, as is the head that predicts contacts.
"""

from typing import Any

import torch
from transformers import EsmConfig, PreTrainedModel
from transformers.models.esm.modeling_esm import EsmRotaryEmbedding

from hf_roformer_lite import RoFormerLiteConfig

from .bert import (
    DENSE_CLASSIFIER,
    ENCODER_FIELDS,
    LAYER,
    LM_FIELDS,
    POOLER,
    POSITIONS,
    ROBERTA_TRANSFORM,
    TENSORFLOW_NAMES,
    TOKEN_CLASSIFICATION,
    WITH_INPUT_DROPOUT,
    unused_rows,
)
from .converter import SourceConfig, Tensors
from .hugging_face import Head, HuggingFaceConverter, same_names
from .weight_map import (
    ConversionError,
    Rules,
    WeightRule,
    drop_rows,
    in_layers,
    projections,
    renamed,
)


class Esm(HuggingFaceConverter):
    """ESM: pre-norm layers with rotary or learned positions."""

    name = "esm"
    prefix = "esm"
    config_class = EsmConfig
    has_pooler = True
    fields = {**ENCODER_FIELDS, **same_names("use_cache")}
    constants = {
        "norm_placement": "pre",
        "final_norm": True,
        "hidden_act": "gelu",
        "hidden_dropout_places": ["attention", "mlp"],
    }
    rules = (
        WeightRule("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
        WeightRule("embeddings.layer_norm.*", "embeddings.norm.*"),
        *in_layers(
            {
                "attention.LayerNorm.*": "self_attn_norm.*",
                **projections(
                    query="attention.self.query",
                    key="attention.self.key",
                    value="attention.self.value",
                    output="attention.output.dense",
                ),
                "LayerNorm.*": "mlp_norm.*",
                "intermediate.dense.*": "mlp.up_proj.*",
                "output.dense.*": "mlp.down_proj.*",
            },
            LAYER,
        ),
        WeightRule("encoder.emb_layer_norm_after.*", "final_norm.*"),
    )
    stored_names = TENSORFLOW_NAMES
    ignored = (
        # Some files of ESM-2 contain an unused table of positions.
        POSITIONS,
        "embeddings.position_ids",
        "pooler.dense.*",
        "contact_head.regression.*",
        "rotary_embeddings.inv_freq",
        "encoder.layer.*.attention.self.rotary_embeddings.inv_freq",
    )
    output_matrix = "lm_head.decoder.weight"
    heads = {
        "Model": Head(POOLER),
        "ForMaskedLM": Head(
            ROBERTA_TRANSFORM + renamed({"lm_head.bias": "lm_head.bias"}), LM_FIELDS
        ),
        "ForSequenceClassification": Head(DENSE_CLASSIFIER, WITH_INPUT_DROPOUT),
        "ForTokenClassification": TOKEN_CLASSIFICATION,
    }

    def computed_fields(self, theirs: EsmConfig) -> dict[str, Any]:
        if theirs.is_decoder or theirs.add_cross_attention:
            raise ConversionError(
                f"is_decoder={theirs.is_decoder}: only encoders of ESM can be converted"
            )
        fields: dict[str, Any] = {"embedding_norm": bool(theirs.emb_layer_norm_before)}
        if theirs.token_dropout:
            fields["token_dropout_mask_id"] = theirs.mask_token_id
        num_positions = theirs.max_position_embeddings
        if theirs.position_embedding_type == "rotary":
            fields["rope_parameters"] = {"rope_type": "default", "rope_theta": theirs.rope_theta}
        else:
            fields["position_embedding_type"] = "learned"
            num_positions -= unused_rows(theirs)
        fields["max_position_embeddings"] = num_positions
        return fields

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "emb_layer_norm_before": ours.embedding_norm,
            "token_dropout": ours.token_dropout_mask_id is not None,
            "mask_token_id": ours.token_dropout_mask_id,
        }
        num_rows = ours.max_position_embeddings
        num_unused = unused_rows(ours)  # Their class needs the id of padding for any positions.
        if ours.position_embedding_type == "learned":
            fields["position_embedding_type"] = "absolute"
            num_rows += num_unused
        else:
            fields["position_embedding_type"] = "rotary"
            fields["rope_theta"] = (ours.rope_parameters or {}).get("rope_theta", 10000.0)
        fields["max_position_embeddings"] = num_rows
        return fields

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        if ours.position_embedding_type == "rope":
            return self.rules
        return (*self.rules, WeightRule(POSITIONS, POSITIONS, drop_rows(unused_rows(ours))))

    def computed_tensors(self, model: PreTrainedModel, theirs: EsmConfig) -> Tensors:
        # Their class has this head in every model, so a file without it would seem damaged.
        num_attentions = theirs.num_hidden_layers * theirs.num_attention_heads
        tensors = {
            "contact_head.regression.weight": torch.zeros(1, num_attentions, dtype=model.dtype),
            "contact_head.regression.bias": torch.zeros(1, dtype=model.dtype),
        }
        if theirs.position_embedding_type == "rotary":
            frequencies, _ = EsmRotaryEmbedding.compute_default_rope_parameters(theirs)
            tensors["rotary_embeddings.inv_freq"] = frequencies
        return tensors


CONVERTERS = (Esm(),)
