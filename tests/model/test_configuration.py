"""Tests of configurations: which are refused, which fields are derived, and which can be saved."""

import pytest
from conftest import data_beside, stack_config
from huggingface_hub.errors import StrictDataclassError
from program import config_of, write_json
from transformers import AutoConfig, AutoModel

import hf_roformer_lite as rl

IMPOSSIBLE = {
    kind: [(case["fields"], case["message"]) for case in cases]
    for kind, cases in data_beside(__file__).items()
}


def raises(message: str):
    return pytest.raises((StrictDataclassError, ValueError), match=f"(?s){message}")


@pytest.mark.parametrize(
    ("fields", "message"), IMPOSSIBLE["stacks"], ids=lambda value: str(value)[:40]
)
def test_impossible_stacks_are_refused_when_made_and_when_loaded(fields, message, tmp_path):
    with raises(message):
        rl.RoFormerLiteModel(rl.RoFormerLiteConfig(**fields))
    written = {
        **rl.RoFormerLiteConfig().to_dict(),
        "layer_types": None,
        "head_dim": None,
        "num_key_value_heads": None,
        "embedding_size": None,
        "rope_parameters": None,
        **fields,
    }
    write_json(tmp_path / "config.json", written)
    with raises(message):
        AutoModel.from_config(AutoConfig.from_pretrained(tmp_path))


@pytest.mark.parametrize(("fields", "message"), IMPOSSIBLE["pairs"])
def test_impossible_pairs_are_refused(fields, message):
    with raises(message):
        rl.RoFormerLiteSeq2SeqConfig(**fields)


def test_pair_copies_its_stacks_and_fits_the_decoder_to_the_encoder():
    encoder = rl.RoFormerLiteConfig(hidden_size=64)
    decoder = rl.RoFormerLiteConfig(num_hidden_layers=2)
    pair = rl.RoFormerLiteSeq2SeqConfig(encoder=encoder, decoder=decoder)
    assert not decoder.is_decoder and decoder.cross_attention_hidden_size is None
    assert pair.decoder.is_decoder and pair.decoder.add_cross_attention
    assert pair.decoder.cross_attention_hidden_size == 64
    assert (pair.num_hidden_layers, pair.hidden_size, pair.vocab_size) == (2, 256, 8192)


def test_derived_fields():
    assert rl.RoFormerLiteConfig(attention_bias=["o", "v", "k", "q"]).attention_bias is True
    assert stack_config("sliding").layer_types == ["sliding_attention", "full_attention"]
    linear = {"rope_type": "linear", "factor": 2.0}
    for given, wanted in (
        ({}, {"partial_rotary_factor": 1.0}),
        # Older versions of transformers have these two fields.
        ({"rope_theta": 500.0, "rope_scaling": linear}, {"rope_theta": 500.0, **linear}),
        # The parameters may be nested by the type of layer.
        ({"rope_parameters": {"full_attention": {"rope_theta": 500.0}}}, {"rope_theta": 500.0}),
    ):
        found = rl.RoFormerLiteConfig(**given).rope_parameters
        assert {name: found[name] for name in wanted} == wanted
    assert stack_config("modern").rope_parameters["full_attention"]["partial_rotary_factor"] == 1.0


def test_token_ids_and_initial_range_reach_the_stacks():
    config = rl.RoFormerLiteSeq2SeqConfig.from_preset(
        "tiny", vocab_size=50, pad_token_id=1, initializer_range=0.07
    )
    assert config.encoder.pad_token_id == config.decoder.pad_token_id == 1
    model = rl.RoFormerLiteForConditionalGeneration(config)
    table = model.get_input_embeddings().weight
    assert (table[1] == 0).all() and (table[0] != 0).all()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.07, rel=0.1), name


# Unknown fields are refused where somebody writes them, and kept where a file has them.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hiden_size": 32}, "'hiden_size'; did you mean 'hidden_size'"),
        ({"hidden_dropout_prob": 0.2}, "hidden_dropout"),
        ({"banana": 3}, "RoFormerLiteConfig has no field 'banana'."),
    ],
)
def test_unknown_fields(fields, message):
    for make in (
        rl.RoFormerLiteConfig,
        lambda **fields: rl.RoFormerLiteConfig.from_preset("tiny", **fields),
        lambda **fields: rl.RoFormerLiteSeq2SeqConfig(encoder=fields),
        lambda **fields: rl.RoFormerLiteSeq2SeqConfig.from_preset("tiny", **fields),
    ):
        with pytest.raises(TypeError, match=message):
            make(**fields)
    for of_pair, similar in (
        ({"encodr": {}}, "'encoder'"),
        ({"hidden_dropout": 0.3}, "hidden_dropout.*encoder="),
    ):
        with pytest.raises(TypeError, match=similar):
            rl.RoFormerLiteSeq2SeqConfig(**of_pair)


@pytest.mark.parametrize("config_class", [rl.RoFormerLiteConfig, rl.RoFormerLiteSeq2SeqConfig])
def test_what_was_saved_goes_on_loading(config_class, tmp_path):
    """Files with fields of other versions and programs can be loaded, at any depth."""
    config = config_class()
    config.tag_of_somebody = 7
    config.save_pretrained(tmp_path)
    written = config_of(tmp_path)
    sides = [written[side] for side in ("encoder", "decoder") if side in written]
    for part in [written, *sides]:
        part |= {"field_of_tomorrow": [1], "embedding_norm_epss": 1e-5, "rope_theta": 20000.0}
    write_json(tmp_path / "config.json", written)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.tag_of_somebody == 7 and loaded.field_of_tomorrow == [1]
    # Programs copy a configuration in this way.
    assert config_class(**loaded.to_dict()).field_of_tomorrow == [1]
    assert AutoConfig.from_pretrained(tmp_path, num_labels=5).num_labels == 5
