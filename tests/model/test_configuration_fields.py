"""Fields that a configuration does not have: refused where they are written, read over where they were saved."""

import json

import pytest
import transformers
from transformers import AutoConfig, PreTrainedConfig

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMaskedLM, RoFormerLiteSeq2SeqConfig

WRITTEN = [
    ({"hiden_size": 32}, "'hiden_size'; did you mean 'hidden_size'"),
    ({"n_layers": 3}, "'n_layers'"),
    ({"num_attention_head": 3}, "did you mean 'num_attention_heads'"),
    ({"d_model": 32}, "d_model"),
    ({"hidden_dropout_prob": 0.2}, "hidden_dropout"),
    ({"dropout": 0.2}, "'dropout'"),
    ({"layer_norm_eps": 1e-5}, "layer_norm_eps"),
    ({"pad_token": 0}, "did you mean 'pad_token_id'"),
    ({"banana": 3}, "RoFormerLiteConfig has no field 'banana'."),
]


@pytest.mark.parametrize(("fields", "message"), WRITTEN)
def test_written_by_hand(fields, message):
    for make in (
        RoFormerLiteConfig,
        lambda **fields: RoFormerLiteConfig.from_preset("tiny", **fields),
        lambda **fields: RoFormerLiteSeq2SeqConfig(encoder=fields),
        lambda **fields: RoFormerLiteSeq2SeqConfig(decoder=fields),
        lambda **fields: RoFormerLiteSeq2SeqConfig.from_preset("tiny", **fields),
        lambda **fields: AutoConfig.for_model("roformer_lite", **fields),
    ):
        with pytest.raises(TypeError, match=message):
            make(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encodr": {}}, "'encodr'; did you mean 'encoder'"),
        ({"share_embedding": True}, "did you mean 'share_embeddings'"),
        ({"decoder_start_token": 3}, "did you mean 'decoder_start_token_id'"),
        ({"n_layers": 3}, "n_layers"),
        ({"banana": 3}, "RoFormerLiteSeq2SeqConfig has no field 'banana'."),
    ],
)
def test_written_of_the_pair(fields, message):
    with pytest.raises(TypeError, match=message):
        RoFormerLiteSeq2SeqConfig(**fields)


OF_TRANSFORMERS = {
    **{"num_labels": 3, "torch_dtype": "float32", "attn_implementation": "eager", "output_attentions": False},
    **{"name_or_path": "x", "auto_map": {}, "quantization_config": {"quant_method": "x"}, "_commit_hash": "x"},
    **{"num_beams": 4, "max_length": 30, "forced_bos_token_id": 3, "finetuning_task": "x", "pruned_heads": {}},
    **{"torchscript": False, "gradient_checkpointing": False, "sep_token_id": 3, "tokenizer_class": "x"},
}


@pytest.mark.parametrize("config_class", [RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig])
def test_what_transformers_passes(config_class):
    for name, value in OF_TRANSFORMERS.items():
        config_class(**{name: value})
    for name in PreTrainedConfig.__dataclass_fields__:
        config_class(**{name: getattr(config_class(), name, None)})
    assert config_class(num_labels=3).num_labels == 3
    rope = {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.5}
    assert RoFormerLiteConfig(**rope).rope_parameters["partial_rotary_factor"] == 0.5


@pytest.mark.parametrize("config_class", [RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig])
def test_what_was_saved_goes_on_loading(config_class, tmp_path):
    """Fields of other versions and programs, at any depth."""
    config = config_class()
    config.tag_of_somebody = 7
    config.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    for part in [written, *(written[side] for side in ("encoder", "decoder") if side in written)]:
        part |= {"field_of_tomorrow": [1], "embedding_norm_epss": 1e-5, "rope_theta": 20000.0}
    (tmp_path / "config.json").write_text(json.dumps(written))
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.tag_of_somebody == 7 and loaded.field_of_tomorrow == [1]
    again = config_class(**loaded.to_dict())  # as programs copy a config
    assert again.field_of_tomorrow == [1]
    assert transformers.AutoConfig.from_pretrained(tmp_path, num_labels=5).num_labels == 5


def test_a_model_remembers_what_its_config_was_given(tmp_path):
    config = RoFormerLiteConfig.from_preset("tiny", vocab_size=30)
    config.my_own = "note"
    RoFormerLiteForMaskedLM(config).save_pretrained(tmp_path)
    assert RoFormerLiteForMaskedLM.from_pretrained(tmp_path).config.my_own == "note"
