"""Configurations: what is refused, what is derived, what survives a file."""

import json

import pytest
from conftest import VOCAB, stack_config
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteModel, RoFormerLiteSeq2SeqConfig
from hf_roformer_lite.model.configuration_roformer_lite import PRESETS

IMPOSSIBLE = [
    ({"hidden_size": 30, "num_attention_heads": 4}, "hidden_size=30.*num_attention_heads=4"),
    ({"num_attention_heads": 6, "num_key_value_heads": 4, "hidden_size": 48}, "num_key_value_heads=4.*divisor"),
    ({"head_dim": 7}, "head_dim=7.*even"),
    (
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.3}, "head_dim": 10},
        "partial_rotary_factor",
    ),
    ({"hidden_act": "gelou"}, "hidden_act='gelou'.*gelu"),
    ({"classifier_activation": "tan"}, "classifier_activation='tan'"),
    ({"norm_type": "batch"}, "norm_type.*layernorm"),
    ({"position_embedding_type": "alibi"}, "position_embedding_type"),
    ({"rope_parameters": {"rope_type": "spiral"}}, "rope_type='spiral'.*yarn"),
    ({"rope_parameters": {"rope_type": "default"}, "position_embedding_type": "none"}, "rope_parameters.*'none'"),
    ({"vocab_size": -1}, "vocab_size=-1"),
    ({"num_hidden_layers": -1}, "num_hidden_layers=-1"),
    ({"num_attention_heads": 0}, "num_attention_heads=0"),
    ({"intermediate_size": 0}, "intermediate_size=0"),
    ({"hidden_dropout": 1.0}, "hidden_dropout=1.0"),
    ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
    ({"layer_types": ["full_attention"]}, "layer_types.*num_hidden_layers=4"),
    ({"layer_types": ["linear_attention"] * 4}, "layer_types"),
    ({"layer_types": ["sliding_attention"] * 4}, "sliding_window=None"),
    ({"sliding_window": 0}, "sliding_window=0"),
    ({"add_cross_attention": True}, "is_decoder"),
    ({"pad_token_id": 8192}, "pad_token_id=8192"),
    ({"hidden_size": "256"}, "hidden_size.*int"),
    ({"embedding_size": 33, "position_embedding_type": "sinusoidal"}, "embedding_size=33.*even"),
    ({"attention_bias": ["q", "w"]}, r"attention_bias=\['q', 'w'\].*some of q, k, v, o"),
    ({"mlp_bias": ["gate"]}, r"mlp_bias=\['gate'\].*some of up, down"),
    ({"first_attention_norm": False, "norm_placement": "post"}, "first_attention_norm=False.*norm_placement='post'"),
    ({"classifier_norm": True}, "classifier_norm=True.*without classifier_activation"),
    ({"classifier_input_dropout": True}, "classifier_input_dropout=True.*without classifier_activation"),
    ({"hidden_dropout_places": ["attn"]}, r"hidden_dropout_places=\['attn'\].*some of embeddings, attention, mlp"),
    ({"classifier_pooling": "late"}, "classifier_pooling='late'.*last without classifier_activation"),
    ({"token_dropout_mask_id": 8192}, "token_dropout_mask_id=8192"),
    ({"token_dropout_mask_id": 4, "is_decoder": True}, "token_dropout_mask_id=4"),
    ({"rope_parameters": {"sliding_attention": {"rope_type": "default"}}}, "one for each of their types, full_att"),
]


@pytest.mark.parametrize(("fields", "message"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_impossible_stacks_are_refused_when_made_and_when_loaded(fields, message, tmp_path):
    with pytest.raises((StrictDataclassError, ValueError), match=f"(?s){message}"):
        RoFormerLiteConfig(**fields)
    written = {**RoFormerLiteConfig().to_dict(), "layer_types": None, "head_dim": None, "num_key_value_heads": None}
    written |= {"embedding_size": None, "rope_parameters": None, **fields}
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises((StrictDataclassError, ValueError), match=f"(?s){message}"):
        AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder_start_token_id": None}, "decoder_start_token_id=None"),
        ({"eos_token_id": None}, "eos_token_id=None"),
        ({"pad_token_id": None}, "pad_token_id=None"),
        ({"decoder_start_token_id": 8192}, "decoder_start_token_id=8192.*8191"),
        ({"share_embeddings": True, "encoder": {"vocab_size": 10}}, "share_embeddings.*vocab_size"),
        ({"encoder": {"hidden_act": "gelou"}}, "gelou"),
        ({"encoder": 3}, "encoder"),
    ],
)
def test_impossible_pairs_are_refused(fields, message):
    with pytest.raises((StrictDataclassError, ValueError, TypeError), match=f"(?s){message}"):
        RoFormerLiteSeq2SeqConfig(**fields)


def test_pair_copies_its_stacks_and_fits_the_decoder_to_the_encoder():
    encoder, decoder = RoFormerLiteConfig(hidden_size=64), RoFormerLiteConfig(num_hidden_layers=2)
    pair = RoFormerLiteSeq2SeqConfig(encoder=encoder, decoder=decoder)
    assert not decoder.is_decoder and decoder.cross_attention_hidden_size is None
    assert pair.decoder.is_decoder and pair.decoder.add_cross_attention
    assert pair.decoder.cross_attention_hidden_size == 64
    assert (pair.num_hidden_layers, pair.hidden_size, pair.vocab_size) == (2, 256, 8192)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_and_files(name, tmp_path):
    config = RoFormerLiteConfig.from_preset(name, vocab_size=VOCAB, hidden_dropout=0)
    pair = RoFormerLiteSeq2SeqConfig.from_preset(name, vocab_size=VOCAB, decoder={"num_hidden_layers": 1})
    assert config.hidden_size == PRESETS[name]["hidden_size"] and pair.share_embeddings
    assert (pair.encoder.num_hidden_layers, pair.num_hidden_layers) == (PRESETS[name]["num_hidden_layers"], 1)
    for one in (config, pair):
        one.save_pretrained(tmp_path / one.model_type)
        again = AutoConfig.from_pretrained(tmp_path / one.model_type)
        assert type(again) is type(one)
        written, reread = one.to_dict(), again.to_dict()
        for either in (written, reread):
            for of_the_file in ("transformers_version", "_name_or_path"):
                either.pop(of_the_file, None)
        assert reread == written
    with pytest.raises(ValueError, match="preset='huge'.*tiny, mini, small, base"):
        RoFormerLiteConfig.from_preset("huge")


def test_auto_config_knows_the_names():
    assert AutoConfig.for_model("roformer_lite", hidden_size=64).hidden_size == 64
    assert AutoConfig.for_model("roformer_lite_seq2seq").is_encoder_decoder
    old_style = RoFormerLiteConfig(rope_theta=500.0, rope_scaling={"rope_type": "linear", "factor": 2.0})
    assert old_style.rope_parameters == {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
    one_type = RoFormerLiteConfig(rope_parameters={"full_attention": {"rope_theta": 500.0}})
    assert one_type.rope_parameters["rope_theta"] == 500.0  # nested without need, and written plainly
    assert RoFormerLiteConfig(attention_bias=["o", "v", "k", "q"]).attention_bias is True
    assert stack_config("modern").rope_parameters["full_attention"]["partial_rotary_factor"] == 1.0
    assert stack_config("sliding").layer_types == ["sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_style": "parallel_heads", "head_dim": 64}, "head_dim=64"),
        ({"layer_style": "parallel_heads", "norm_placement": "post"}, "norm_placement='post'"),
        ({"layer_style": "walkthrough"}, "norm_placement='pre'"),
        ({"layer_style": "walkthrough", "norm_placement": "post", "mlp_bias": ["up"]}, "mlp_bias"),
        ({"layer_style": "parallel_heads", "hidden_dropout_places": []}, "hidden_dropout_places"),
    ],
)
def test_layers_of_reference_systems_refuse_what_they_do_not_have(fields, message):
    with pytest.raises(ValueError, match=message):
        RoFormerLiteModel(RoFormerLiteConfig(**fields))
