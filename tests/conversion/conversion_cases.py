"""Small configs of every source of weights, and random weights for them."""

import torch

from hf_roformer_lite.conversion import CONVERTERS

LAYER = {"d_model": 12, "nhead": 2, "dim_feedforward": 20}
HF = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 30}
HF |= {"max_position_embeddings": 32, "initializer_range": 0.15}
CASES: dict[str, list[dict]] = {
    "deeplotx": [
        {"feature_dim": 16, "heads": 3, "ffn_layers": 2, "proj_layers": 2, "proj_expansion": 1.5, "base": 100},
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
    "scratch-seq2seq": [{"src_vocab": 30, "tgt_vocab": 40, "d_model": 12, "N": 2, "heads": 2, "d_ff": 20, "pad": 0}],
    "torch-encoder": [
        {**LAYER, "num_layers": 2},
        {**LAYER, "num_layers": 2, "norm_first": True, "activation": "gelu", "norm": True, "bias": False},
    ],
    "torch-decoder": [
        {**LAYER, "num_layers": 2, "norm": True},
        {**LAYER, "num_layers": 1, "norm_first": True, "activation": "gelu"},
    ],
    "torch-transformer": [
        {**LAYER, "num_encoder_layers": 1, "num_decoder_layers": 2},
        {**LAYER, "num_encoder_layers": 2, "num_decoder_layers": 1, "norm_first": True, "activation": "gelu"},
    ],
    "roformer": [
        {**HF, "architectures": ["RoFormerModel"], "embedding_size": 16, "rotary_value": True},
        {**HF, "architectures": ["RoFormerForMaskedLM"], "embedding_size": 16},
        {**HF, "architectures": ["RoFormerForMaskedLM"], "tie_word_embeddings": False, "hidden_act": "relu"},
        {**HF, "architectures": ["RoFormerForCausalLM"], "is_decoder": True},
        {**HF, "architectures": ["RoFormerForCausalLM"], "is_decoder": True, "add_cross_attention": True},
        {**HF, "architectures": ["RoFormerForSequenceClassification"], "rotary_value": True, "num_labels": 3},
        {**HF, "architectures": ["RoFormerForTokenClassification"], "num_labels": 5},
        {**HF, "architectures": ["RoFormerForQuestionAnswering"]},
        {**HF, "architectures": ["RoFormerForMultipleChoice"]},
        {**HF, "architectures": ["RoFormerForMultipleChoice"], "summary_type": "first"},
    ],
    "bert": [
        {**HF, "architectures": ["BertModel"]},
        {**HF, "architectures": ["BertForPreTraining"]},
        {**HF, "architectures": ["BertForMaskedLM"], "tie_word_embeddings": False},
        {**HF, "architectures": ["BertLMHeadModel"], "is_decoder": True, "add_cross_attention": True},
        {**HF, "architectures": ["BertForNextSentencePrediction"]},
        {**HF, "architectures": ["BertForSequenceClassification"], "num_labels": 3},
        {**HF, "architectures": ["BertForMultipleChoice"]},
        {**HF, "architectures": ["BertForTokenClassification"], "num_labels": 5},
        {**HF, "architectures": ["BertForQuestionAnswering"]},
    ],
}


def source_weights(name, config, seed=0):
    converter = CONVERTERS[name]
    torch.manual_seed(seed)
    reference = converter.build_reference(config).eval()
    return reference, dict(converter.reference_state_dict(reference))
