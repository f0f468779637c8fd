"""The pair and its two stacks: what is given to one of them reaches the other, or is refused."""

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from transformers import AutoModelForSeq2SeqLM

from hf_roformer_lite import (
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForMaskedLM,
    RoFormerLiteSeq2SeqConfig,
)
from hf_roformer_lite.model import modeling_roformer_lite_seq2seq

IDS = torch.tensor([[5, 6, 7, 3]])


@pytest.mark.parametrize(
    "fields",
    [
        {"share_embeddings": True},
        {"share_embeddings": False},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": False, "lm_head_bias": True},
        {"lm_head_bias": True},
    ],
)
def test_resized_embeddings_come_back(fields, tmp_path):
    config = RoFormerLiteSeq2SeqConfig.from_preset("tiny", vocab_size=50, num_hidden_layers=1, **fields)
    model = build(RoFormerLiteForConditionalGeneration, config)
    before = model(IDS, decoder_input_ids=IDS).logits
    model.resize_token_embeddings(60)
    assert model.config.encoder.vocab_size == model.config.decoder.vocab_size == 60
    new = torch.tensor([[55, 59]])
    after = model(torch.cat((IDS, new), 1), decoder_input_ids=new).logits
    assert after.shape == (1, 2, 60)
    torch.testing.assert_close(model(IDS, decoder_input_ids=IDS).logits[..., :50], before)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(torch.cat((IDS, new), 1), decoder_input_ids=new).logits, after)


def test_two_vocabularies_get_one_size(monkeypatch):
    model, warnings = build(RoFormerLiteForConditionalGeneration, seq2seq_config()), []
    monkeypatch.setattr(modeling_roformer_lite_seq2seq.logger, "warning_once", warnings.append)
    model.resize_token_embeddings(200)
    assert "are two vocabularies; both get the new size" in warnings[0]
    assert model(torch.tensor([[150]]), decoder_input_ids=torch.tensor([[199]])).logits.shape == (1, 1, 200)


def test_token_ids_and_initial_range_reach_the_stacks():
    config = RoFormerLiteSeq2SeqConfig.from_preset("tiny", vocab_size=50, pad_token_id=1, initializer_range=0.07)
    assert config.encoder.pad_token_id == config.decoder.pad_token_id == 1
    model = RoFormerLiteForConditionalGeneration(config)
    table = model.get_input_embeddings().weight
    assert (table[1] == 0).all() and (table[0] != 0).all()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.07, rel=0.1), name


def test_misplaced_fields_are_refused():
    with pytest.raises(TypeError, match="hidden_dropout.*encoder="):
        RoFormerLiteSeq2SeqConfig(hidden_dropout=0.3)


def test_outputs_asked_for_by_the_config():
    config = seq2seq_config()
    config.output_hidden_states = True
    output = build(RoFormerLiteForConditionalGeneration, config)(IDS, decoder_input_ids=IDS)
    assert len(output.encoder_hidden_states) == 2 and len(output.decoder_hidden_states) == 3
    config = stack_config()
    config.return_dict = False
    assert isinstance(build(RoFormerLiteForMaskedLM, config)(IDS), tuple)


def test_masks_that_cannot_be_meant():
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    with pytest.raises(ValueError, match="attention_mask"):
        model(IDS, torch.ones(1, 1, 4, 4), decoder_input_ids=IDS)
    with pytest.raises(ValueError, match="does not attend to encoder_hidden_states"):
        build(RoFormerLiteForMaskedLM, stack_config())(IDS, encoder_hidden_states=torch.zeros(1, 2, 32))
