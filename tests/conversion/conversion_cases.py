"""Small configurations of every source of weights, and random weights for them."""

import torch

from hf_roformer_lite.conversion import CONVERTERS
from hf_roformer_lite.conversion.hugging_face import HuggingFaceConverter

LAYER = {"d_model": 12, "nhead": 2, "dim_feedforward": 20}
HF = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 30,
    "max_position_embeddings": 32,
    "initializer_range": 0.15,
}


def heads(family, *names, **fields):
    """Return a small configuration for each class of a family."""
    return [{**HF, **fields, "architectures": [family + name]} for name in names]


def roberta(family):
    return [
        *heads(family, "Model", "ForMaskedLM", "ForSequenceClassification", num_labels=4),
        *heads(family, "ForTokenClassification", "ForMultipleChoice", "ForQuestionAnswering"),
        *heads(family, "ForMaskedLM", tie_word_embeddings=False, pad_token_id=0),
        *heads(family, "ForCausalLM", is_decoder=True),
    ]


def pairs(family, *names, **fields):
    return [{**PAIR, **fields, "architectures": [family + name]} for name in names]


CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
MODERN = {
    "pad_token_id": 0,
    "local_attention": 4,
    "num_hidden_layers": 4,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SECOND = {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}
ESM = {"position_embedding_type": "rotary", "pad_token_id": 1, "num_labels": 4}
NEOX = {
    "use_parallel_residual": False,
    "eos_token_id": 2,
    "rope_parameters": {"partial_rotary_factor": 0.5},
}
TWO = {"num_key_value_heads": 2}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
PAIR = {
    "vocab_size": 50,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 30,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
    "init_std": 0.15,
}
MARIAN = {"pad_token_id": 49, "decoder_start_token_id": 49}

CASES: dict[str, list[dict]] = {
    "deeplotx": [
        {
            "feature_dim": 16,
            "heads": 3,
            "ffn_layers": 2,
            "proj_layers": 2,
            "proj_expansion": 1.5,
            "base": 100,
        },
        {"feature_dim": 6, "heads": 4, "ffn_expansion": 3, "bias": False, "num_layers": 2},
        {"feature_dim": 8, "cross_attention": True},
    ],
    "prenorm-encoder-layer": [
        {"d_model": 12, "heads": 2, "d_ff": 20},
        {"d_model": 7, "heads": 2, "d_ff": 5, "num_layers": 2},
    ],
    "prenorm-decoder-layer": [
        {"d_model": 12, "heads": 3, "d_ff": 20},
        {"d_model": 12, "heads": 2, "d_ff": 9, "num_layers": 2},
    ],
    "bert-like": [{field: value for field, value in HF.items() if field != "initializer_range"}],
    "walkthrough": [{"d_in": 6, "d_model": 4}],
    "scratch-seq2seq": [
        {"src_vocab": 30, "tgt_vocab": 40, "d_model": 12, "N": 2, "heads": 2, "d_ff": 20, "pad": 0}
    ],
    "torch-encoder": [
        {**LAYER, "num_layers": 2},
        {
            **LAYER,
            "num_layers": 2,
            "norm_first": True,
            "activation": "gelu",
            "norm": True,
            "bias": False,
        },
    ],
    "torch-decoder": [
        {**LAYER, "num_layers": 2, "norm": True},
        {**LAYER, "num_layers": 1, "norm_first": True, "activation": "gelu"},
    ],
    "torch-transformer": [
        {**LAYER, "num_encoder_layers": 1, "num_decoder_layers": 2},
        {
            **LAYER,
            "num_encoder_layers": 2,
            "num_decoder_layers": 1,
            "norm_first": True,
            "activation": "gelu",
        },
    ],
    "roformer": [
        *heads("RoFormer", "Model", "ForMaskedLM", embedding_size=16, rotary_value=True),
        *heads("RoFormer", "ForMaskedLM", tie_word_embeddings=False, hidden_act="relu"),
        *heads("RoFormer", "ForCausalLM", is_decoder=True),
        *heads("RoFormer", "ForCausalLM", is_decoder=True, add_cross_attention=True),
        *heads(
            "RoFormer",
            *CLASSIFIERS,
            "ForQuestionAnswering",
            "ForMultipleChoice",
            rotary_value=True,
            num_labels=3,
        ),
        *heads("RoFormer", "ForMultipleChoice", summary_type="first"),
    ],
    "bert": [
        *heads(
            "Bert", "Model", "ForPreTraining", "ForNextSentencePrediction", "ForQuestionAnswering"
        ),
        *heads("Bert", *CLASSIFIERS, "ForMultipleChoice", num_labels=3),
        *heads("Bert", "ForMaskedLM", tie_word_embeddings=False),
        *heads("Bert", "LMHeadModel", is_decoder=True, add_cross_attention=True),
    ],
    "ernie": [
        *heads(
            "Ernie",
            "Model",
            "ForPreTraining",
            "ForMaskedLM",
            "ForNextSentencePrediction",
            "ForMultipleChoice",
        ),
        *heads("Ernie", "ForSequenceClassification", "ForTokenClassification", num_labels=4),
        *heads("Ernie", "ForQuestionAnswering", use_task_id=True),
        *heads("Ernie", "ForCausalLM", is_decoder=True),
    ],
    "roberta": roberta("Roberta"),
    "xlm-roberta": roberta("XLMRoberta")[:3],
    "camembert": roberta("Camembert")[:3],
    "electra": [
        *heads(
            "Electra",
            "Model",
            "ForPreTraining",
            "ForMaskedLM",
            "ForMultipleChoice",
            embedding_size=16,
        ),
        *heads("Electra", *CLASSIFIERS, num_labels=4, embedding_size=24),
        *heads(
            "Electra",
            "ForMaskedLM",
            "ForQuestionAnswering",
            tie_word_embeddings=False,
            embedding_size=24,
        ),
        *heads("Electra", "ForCausalLM", is_decoder=True, add_cross_attention=True),
    ],
    "distilbert": [
        *heads("DistilBert", "Model", "ForMultipleChoice", "ForMaskedLM", "ForQuestionAnswering"),
        *heads(
            "DistilBert",
            *CLASSIFIERS,
            "ForMaskedLM",
            num_labels=4,
            tie_word_embeddings=False,
            activation="relu",
        ),
    ],
    "albert": [
        *heads(
            "Albert",
            "Model",
            "ForPreTraining",
            "ForMaskedLM",
            "ForMultipleChoice",
            "ForQuestionAnswering",
        ),
        *heads("Albert", *CLASSIFIERS, num_labels=4, num_hidden_layers=3, num_hidden_groups=2),
        *heads("Albert", "ForMaskedLM", tie_word_embeddings=False),
    ],
    "nomic_bert": [
        *heads("NomicBert", "Model", "ForMaskedLM", max_position_embeddings=9),
        *heads("NomicBert", "ForMaskedLM", *CLASSIFIERS, num_labels=4, tie_word_embeddings=False),
    ],
    "jina_embeddings_v3": [
        *heads(
            "JinaEmbeddingsV3",
            "Model",
            "ForMaskedLM",
            "ForQuestionAnswering",
            max_position_embeddings=9,
        ),
        *heads(
            "JinaEmbeddingsV3", "ForMaskedLM", *CLASSIFIERS, num_labels=4, tie_word_embeddings=False
        ),
    ],
    "gte": [
        *heads("Gte", "Model", "ForMaskedLM", type_vocab_size=0, max_position_embeddings=9),
        *heads("Gte", "ForMaskedLM", *CLASSIFIERS, num_labels=4, tie_word_embeddings=False),
    ],
    "roformer_v2": [
        *heads("RoFormer", "Model", "ForMaskedLM", **SECOND, rotary_value=True),
        *heads("RoFormer", *CLASSIFIERS, "ForQuestionAnswering", **SECOND, num_labels=4),
        *heads("RoFormer", "ForMaskedLM", **SECOND, tie_word_embeddings=False),
        *heads("RoFormer", "Model", **SECOND, embedding_size=16),
    ],
    "neobert": [
        *heads("NeoBERT", "", "LMHead", max_length=32, intermediate_size=36),
        *heads("NeoBERT", "ForSequenceClassification", num_labels=4, max_length=32),
    ],
    "llama": [
        *heads("Llama", "Model", "ForCausalLM", num_key_value_heads=1, head_dim=8),
        *heads(
            "Llama", "ForCausalLM", tie_word_embeddings=True, attention_bias=True, mlp_bias=True
        ),
        *heads("Llama", "ForCausalLM", rope_parameters=LLAMA_3),
        *heads("Llama", *CLASSIFIERS, "ForQuestionAnswering", num_labels=4, pad_token_id=0),
    ],
    "qwen2": [
        *heads("Qwen2", "Model", "ForCausalLM", num_key_value_heads=1),
        *heads(
            "Qwen2",
            "ForCausalLM",
            use_sliding_window=True,
            sliding_window=4,
            max_window_layers=1,
            **TWO,
        ),
        *heads(
            "Qwen2",
            *CLASSIFIERS,
            "ForQuestionAnswering",
            num_labels=4,
            pad_token_id=0,
            num_key_value_heads=2,
        ),
    ],
    "eurobert": [
        *heads(
            "EuroBert",
            "Model",
            "ForMaskedLM",
            num_key_value_heads=1,
            pad_token_id=3,
            max_position_embeddings=9,
        ),
        *heads("EuroBert", "ForMaskedLM", tie_word_embeddings=True, mlp_bias=True, pad_token_id=3),
        *heads("EuroBert", *CLASSIFIERS, num_labels=4, pad_token_id=3),
        *heads("EuroBert", "ForSequenceClassification", classifier_pooling="bos", pad_token_id=3),
        *heads("EuroBert", "ForSequenceClassification", classifier_pooling="mean", pad_token_id=3),
    ],
    "ultrabert": [
        *heads("Ultrabert", "Model", sliding_window=2, num_hidden_layers=3, num_key_value_heads=1),
        *heads(
            "Ultrabert",
            *CLASSIFIERS,
            "ForQuestionAnswering",
            num_labels=4,
            sliding_window=3,
            num_hidden_layers=3,
        ),
        *heads(
            "Ultrabert",
            "ForSequenceClassification",
            classifier_pooling="mean",
            num_key_value_heads=2,
        ),
    ],
    "modernbert": [
        *heads(
            "ModernBert",
            "Model",
            "ForMaskedLM",
            "ForMultipleChoice",
            "ForQuestionAnswering",
            **MODERN,
        ),
        *heads(
            "ModernBert", *CLASSIFIERS, num_labels=4, **MODERN, norm_bias=True, classifier_bias=True
        ),
        *heads("ModernBert", "ForSequenceClassification", classifier_pooling="mean", **MODERN),
        *heads(
            "ModernBert",
            "ForMaskedLM",
            **MODERN,
            attention_bias=True,
            mlp_bias=True,
            decoder_bias=False,
        ),
        *heads(
            "ModernBert", "ForMaskedLM", **MODERN, tie_word_embeddings=False, classifier_bias=True
        ),
    ],
    "modernbert-decoder": [
        *heads("ModernBertDecoder", "Model", "ForCausalLM", "ForSequenceClassification", **MODERN),
        *heads("ModernBertDecoder", "ForSequenceClassification", classifier_bias=True, **MODERN),
    ],
    "esm": [
        *heads("Esm", "Model", "ForMaskedLM", **ESM, token_dropout=True, mask_token_id=5),
        *heads(
            "Esm",
            "ForMaskedLM",
            *CLASSIFIERS,
            **ESM,
            emb_layer_norm_before=True,
            tie_word_embeddings=False,
        ),
        *heads("Esm", "Model", pad_token_id=1, token_dropout=True, mask_token_id=5),
    ],
    "gpt_neox": [
        *heads("GPTNeoX", "Model", "ForCausalLM", **NEOX),
        *heads("GPTNeoX", "ForCausalLM", **NEOX, tie_word_embeddings=True, attention_bias=False),
        *heads(
            "GPTNeoX", *CLASSIFIERS, "ForQuestionAnswering", **NEOX, num_labels=4, pad_token_id=0
        ),
    ],
    "bart": [
        *pairs("Bart", "Model", "ForConditionalGeneration"),
        *pairs("Bart", "ForConditionalGeneration", scale_embedding=True, tie_word_embeddings=False),
    ],
    "mbart": pairs("MBart", "Model", "ForConditionalGeneration", scale_embedding=True),
    "marian": [
        *pairs("Marian", "Model", "MTModel", scale_embedding=True, **MARIAN),
        *pairs(
            "Marian",
            "MTModel",
            share_encoder_decoder_embeddings=False,
            decoder_vocab_size=60,
            **MARIAN,
        ),
    ],
}

# Versions of transformers before 5.21 do not have UltraBERT.
if "ultrabert" not in CONVERTERS:
    del CASES["ultrabert"]
FAMILIES = [
    name for name, converter in CONVERTERS.items() if isinstance(converter, HuggingFaceConverter)
]


def source_weights(name, config):
    """Return the source's own model with random weights, and these weights."""
    torch.manual_seed(0)
    reference = CONVERTERS[name].build_reference(config).eval()
    return reference, dict(reference.state_dict())


@torch.no_grad()
def noisy(model):
    """Add noise to `model`, so that no bias is zero and no gain is one, and return it."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()
