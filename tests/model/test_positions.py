"""Learned positions can be resized, and all RoPE types know partial rotation."""

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForMaskedLM,
    RoFormerLiteModel,
)

IDS = torch.randint(5, VOCAB, (2, 70), generator=torch.Generator().manual_seed(0))


def learned_pair():
    config = seq2seq_config("learned-typed")
    encoder = stack_config("learned-typed", hidden_size=24, num_hidden_layers=1)
    return type(config)(encoder=encoder, decoder=config.decoder)


@pytest.mark.parametrize("model_class", [RoFormerLiteModel, RoFormerLiteForMaskedLM])
def test_resized_positions(model_class, tmp_path):
    model = build(model_class, stack_config("learned-typed"))
    table, expected = model.get_position_embeddings().weight.clone(), model(IDS[:, :60])[0]
    with pytest.raises(ValueError, match="max_position_embeddings"):
        model(IDS)
    model.resize_position_embeddings(74)
    assert model.config.max_position_embeddings == len(model.get_position_embeddings().weight) == 74
    assert torch.equal(model.get_position_embeddings().weight[:64], table) and model(IDS)[0].isfinite().all()
    torch.testing.assert_close(model(IDS[:, :60])[0], expected)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(model_class.from_pretrained(tmp_path)(IDS)[0], model(IDS)[0])
    model.resize_position_embeddings(60)
    torch.testing.assert_close(model(IDS[:, :60])[0], expected)
    with pytest.raises(ValueError, match="new_num_position_embeddings=0"):
        model.resize_position_embeddings(0)


def test_resized_positions_of_the_pair(tmp_path):
    model = build(RoFormerLiteForConditionalGeneration, learned_pair())
    model.resize_position_embeddings(74)
    assert [len(table.weight) for table in model.get_position_embeddings()] == [74, 74]
    assert model.config.encoder.max_position_embeddings == model.config.decoder.max_position_embeddings == 74
    model.save_pretrained(tmp_path)
    again = RoFormerLiteForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(
        again(IDS, decoder_input_ids=IDS).logits, model(IDS, decoder_input_ids=IDS).logits, rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ["default", "post-sinusoidal", "factorised-no-position"])
def test_no_table_to_resize(name):
    model = build(RoFormerLiteModel, stack_config(name))
    for call in (model.get_position_embeddings, lambda: model.resize_position_embeddings(9)):
        with pytest.raises(ValueError, match="position_embedding_type='learned' has a table"):
            call()


ROPE = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 32},
    "llama3": {
        **{"factor": 2.0, "original_max_position_embeddings": 32},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "longrope": {
        **{"factor": 2.0, "original_max_position_embeddings": 32},
        **{"short_factor": [1.0] * 2, "long_factor": [2.0] * 2},
    },
}


@pytest.mark.parametrize("rope_type", ROPE)
def test_partial_rotation(rope_type):
    """Only the first half of the channels turns: the tables are half as wide, at short and at long inputs."""
    rope = {"rope_type": rope_type, "partial_rotary_factor": 0.5, **ROPE[rope_type]}
    model = build(RoFormerLiteModel, stack_config(rope_parameters=rope))
    assert len(model.rotary_emb.inv_freq) == 2  # heads of 8 channels
    for ids in (IDS[:, :10], IDS):
        assert model(ids)[0].isfinite().all()
        assert len(model.rotary_emb.inv_freq) == 2


def test_default_rope_parameters_say_how_much_is_rotated():
    assert RoFormerLiteConfig().rope_parameters["partial_rotary_factor"] == 1.0
    assert RoFormerLiteConfig(partial_rotary_factor=0.5).rope_parameters["partial_rotary_factor"] == 0.5
    assert RoFormerLiteConfig(rope_theta=500.0).rope_parameters["rope_theta"] == 500.0
