"""GPT-NeoX and Pythia-shaped models whose branches follow one another (`use_parallel_residual=False`)."""

from dataclasses import replace
from typing import Any

from transformers import GPTNeoXConfig

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForCausalLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)
from roformer_lite.errors import InputError

from .bert_family import QUESTION_ANSWERING, TOKEN_CLASSIFICATION
from .converter import SourceConfig
from .hugging_face import COMMON_FIELDS, Head, HuggingFaceConverter, Rules, same_names
from .llama import SCORE, with_bias_of_zeros
from .rope_fields import plain_rope
from .stored_names import StoredNames
from .weight_map import WeightMap, WeightRule
from .weight_operations import SplitHeads

NAMES = (
    ("attention.dense.*", "self_attn.o_proj.*"),
    ("mlp.dense_h_to_4h.*", "mlp.up_proj.*"),
    ("mlp.dense_4h_to_h.*", "mlp.down_proj.*"),
    ("input_layernorm.*", "self_attn_norm.*"),
    ("post_attention_layernorm.*", "mlp_norm.*"),
)


class GPTNeoX(HuggingFaceConverter):
    """GPT-NeoX without parallel branches."""

    name = "gpt_neox"
    prefix = "gpt_neox"
    config_class = GPTNeoXConfig
    fields = {
        **same_names(*COMMON_FIELDS, "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
        **same_names("hidden_act", "hidden_dropout", "attention_dropout", "max_position_embeddings"),
        **same_names("attention_bias", "use_cache"),
        "norm_eps": "layer_norm_eps",
    }
    constants = {"norm_placement": "pre", "final_norm": True, "is_decoder": True}
    ignored = (
        "layers.{i}.attention.rotary_emb.inv_freq",
        "layers.{i}.attention.bias",
        "layers.{i}.attention.masked_bias",
    )
    stored_names = StoredNames({r"^embed_out\.": "lm_head."})
    output_matrix = "lm_head.weight"
    heads = {
        "Model": Head(RoFormerLiteModel),
        "ForCausalLM": Head(RoFormerLiteForCausalLM, ignored=(output_matrix,)),
        "ForSequenceClassification": Head(
            RoFormerLiteForSequenceClassification,
            (SCORE,),
            lambda config: {"classifier_pooling": "last", "classifier_dropout": 0.0},
        ),
        "ForTokenClassification": replace(
            TOKEN_CLASSIFICATION, config_fields=lambda config: {"classifier_dropout": config.classifier_dropout}
        ),
        "ForQuestionAnswering": QUESTION_ANSWERING,
    }

    def computed_fields(self, theirs: GPTNeoXConfig) -> dict[str, Any]:
        if theirs.use_parallel_residual:
            raise InputError(
                "use_parallel_residual=True: attention and feed-forward read the same states there; here the "
                "feed-forward reads the sum behind the attention"
            )
        return {"rope_parameters": theirs.rope_parameters}

    def their_fields(self, ours: RoFormerLiteConfig) -> dict[str, Any]:
        rope = plain_rope(ours)
        rope = rope if rope is None else {"partial_rotary_factor": 1.0, **rope}
        return {"use_parallel_residual": False, "rope_parameters": rope}

    def stack_rules(self, ours: RoFormerLiteConfig, source_config: SourceConfig) -> Rules:
        heads = SplitHeads(ours.num_attention_heads)
        qkv = tuple(f"layers.{{i}}.self_attn.{part}_proj.*" for part in "qkv")
        return (
            WeightRule("embed_in.weight", "embeddings.word_embeddings.weight"),
            WeightRule("layers.{i}.attention.query_key_value.*", qkv, heads),
            *(WeightRule(f"layers.{{i}}.{theirs}", f"layers.{{i}}.{ours}") for theirs, ours in NAMES),
            WeightRule("final_layer_norm.*", "final_norm.*"),
        )

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        return with_bias_of_zeros(super().weight_map(our_config, source_config), our_config.num_labels)


CONVERTER = GPTNeoX()
