"""ESM-2 and ESM-1b, protein language models, all heads but the one that predicts contacts from
attention.

Their token dropout depends on the share of mask tokens in a text: it is `token_dropout_mask_id`
here. A part of the positions of ESM-1b's table, up to the id of padding, is never used and left
out.
"""

from typing import Any

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
                    *(
                        f"attention.{n}"
                        for n in ("self.query", "self.key", "self.value", "output.dense")
                    )
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
        POSITIONS,  # some files of ESM-2 hold one, which nothing reads
        *(
            "embeddings.position_ids",
            "pooler.dense.*",
            "contact_head.regression.*",
            "rotary_embeddings.inv_freq",
        ),
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
        fields = {
            "embedding_norm": bool(theirs.emb_layer_norm_before),
            "token_dropout_mask_id": theirs.mask_token_id if theirs.token_dropout else None,
        }
        if theirs.position_embedding_type == "rotary":
            rope = {"rope_type": "default", "rope_theta": theirs.rope_theta}
            return fields | {
                "rope_parameters": rope,
                "max_position_embeddings": theirs.max_position_embeddings,
            }
        rows = theirs.max_position_embeddings - theirs.pad_token_id - 1
        return fields | {"position_embedding_type": "learned", "max_position_embeddings": rows}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        mask = ours.token_dropout_mask_id
        fields = {"emb_layer_norm_before": ours.embedding_norm, "token_dropout": mask is not None}
        fields |= {"mask_token_id": mask, "max_position_embeddings": ours.max_position_embeddings}
        if ours.position_embedding_type == "learned":
            rows = ours.max_position_embeddings + (ours.pad_token_id or 0) + 1
            return fields | {"position_embedding_type": "absolute", "max_position_embeddings": rows}
        theta = (ours.rope_parameters or {}).get("rope_theta", 10000.0)
        return fields | {"position_embedding_type": "rotary", "rope_theta": theta}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        if ours.position_embedding_type == "rope":
            return self.rules
        return (*self.rules, WeightRule(POSITIONS, POSITIONS, drop_rows(ours.pad_token_id + 1)))

    def computed_tensors(self, model: PreTrainedModel, theirs: EsmConfig) -> Tensors:
        if theirs.position_embedding_type != "rotary":
            return {}
        return {
            "rotary_embeddings.inv_freq": EsmRotaryEmbedding.compute_default_rope_parameters(
                theirs
            )[0]
        }


CONVERTERS = (Esm(),)
