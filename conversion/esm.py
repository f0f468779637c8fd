"""ESM-2 and ESM-1b, protein language models, all heads but the one that predicts contacts from attention.

Their token dropout depends on the share of mask tokens in a text: it is `token_dropout_mask_id` here. A part of the
positions of ESM-1b's table, up to the id of padding, is never used and left out.
"""

from typing import Any

from transformers import EsmConfig, PreTrainedModel
from transformers.models.esm.modeling_esm import EsmRotaryEmbedding

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .bert_family import (
    ENCODER_FIELDS,
    LM_FIELDS,
    POOLER,
    TOKEN_CLASSIFICATION,
    WITH_INPUT_DROPOUT,
    BertFamilyConverter,
)
from .converter import SourceConfig, Tensors
from .hugging_face import Head, HuggingFaceConverter, Rules, same_names
from .roberta import DENSE_CLASSIFIER, LM_HEAD
from .weight_map import WeightRule
from .weight_operations import DropRows

LAYER = "encoder.layer.{i}"
TABLE = "embeddings.position_embeddings.weight"
RULES = (
    WeightRule("embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
    WeightRule("embeddings.layer_norm.*", "embeddings.norm.*"),
    WeightRule(f"{LAYER}.attention.LayerNorm.*", "layers.{i}.self_attn_norm.*"),
    WeightRule(f"{LAYER}.attention.self.query.*", "layers.{i}.self_attn.q_proj.*"),
    WeightRule(f"{LAYER}.attention.self.key.*", "layers.{i}.self_attn.k_proj.*"),
    WeightRule(f"{LAYER}.attention.self.value.*", "layers.{i}.self_attn.v_proj.*"),
    WeightRule(f"{LAYER}.attention.output.dense.*", "layers.{i}.self_attn.o_proj.*"),
    WeightRule(f"{LAYER}.LayerNorm.*", "layers.{i}.mlp_norm.*"),
    WeightRule(f"{LAYER}.intermediate.dense.*", "layers.{i}.mlp.up_proj.*"),
    WeightRule(f"{LAYER}.output.dense.*", "layers.{i}.mlp.down_proj.*"),
    WeightRule("encoder.emb_layer_norm_after.*", "final_norm.*"),
)
LEFTOVERS = ("esm.pooler.dense.*",)


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
    current_names = BertFamilyConverter.current_names
    ignored = (
        TABLE,  # some files of ESM-2 hold one, which nothing reads
        "embeddings.position_ids",
        "rotary_embeddings.inv_freq",
        "encoder.layer.*.attention.self.rotary_embeddings.inv_freq",
        "contact_head.regression.*",
    )
    output_matrix = "lm_head.decoder.weight"
    heads = {
        "Model": Head(RoFormerLiteModel, POOLER),
        "ForMaskedLM": Head(
            RoFormerLiteForMaskedLM,
            (*LM_HEAD, WeightRule("lm_head.bias", "lm_head.bias")),
            lambda config: LM_FIELDS,
            (output_matrix, *LEFTOVERS),
        ),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification, DENSE_CLASSIFIER, lambda config: WITH_INPUT_DROPOUT, LEFTOVERS
        ),
        "ForTokenClassification": TOKEN_CLASSIFICATION.ignoring(*LEFTOVERS),
    }

    def computed_fields(self, theirs: EsmConfig) -> dict[str, Any]:
        if theirs.is_decoder or theirs.add_cross_attention:
            raise InputError(f"is_decoder={theirs.is_decoder}: only encoders of ESM can be converted")
        fields = {
            "embedding_norm": bool(theirs.emb_layer_norm_before),
            "token_dropout_mask_id": theirs.mask_token_id if theirs.token_dropout else None,
        }
        if theirs.position_embedding_type == "rotary":
            rope = {"rope_type": "default", "rope_theta": theirs.rope_theta}
            return fields | {"rope_parameters": rope, "max_position_embeddings": theirs.max_position_embeddings}
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
            return RULES
        return (*RULES, WeightRule(TABLE, TABLE, DropRows(ours.pad_token_id + 1)))

    def export(self, model: PreTrainedModel) -> tuple[Tensors, dict[str, Any]]:
        state_dict, source_config = super().export(model)
        if source_config["position_embedding_type"] == "rotary":
            prefix = self.stack_prefixes(self.head(source_config))[0]
            rotation = EsmRotaryEmbedding.compute_default_rope_parameters(EsmConfig.from_dict(source_config))
            state_dict[f"{prefix}rotary_embeddings.inv_freq"] = rotation[0]
        return state_dict, source_config


CONVERTER = Esm()
