"""Packed documents stay apart however the model is asked: with its default cache, with a mask, with hidden states."""

import pytest
import torch
from conftest import build, seq2seq_config, stack_config

from hf_roformer_lite import (
    RoFormerLiteForCausalLM,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)

FIRST, SECOND = torch.tensor([[7, 8, 9, 10]]), torch.tensor([[11, 12, 13]])
PACKED = torch.cat((FIRST, SECOND), 1)
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2]])
BORDERS = torch.tensor([0, 4, 7], dtype=torch.int32)


@pytest.mark.parametrize("told", [{"position_ids": POSITIONS}, {"cu_seq_lens_q": BORDERS, "cu_seq_lens_k": BORDERS}])
@pytest.mark.parametrize("more", [{}, {"use_cache": True}, {"output_hidden_states": True}])
def test_decoder(told, more):
    model = build(RoFormerLiteForCausalLM, stack_config())
    output = model(PACKED, **told, **more)
    assert output.past_key_values is None
    expected = torch.cat((model(FIRST).logits, model(SECOND).logits), 1)
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="seq_idx alone"):
        model(PACKED, seq_idx=torch.tensor([[0, 0, 0, 0, 1, 1, 1]]))


def test_pair():
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    logits = model(PACKED, position_ids=POSITIONS, decoder_input_ids=PACKED, decoder_position_ids=POSITIONS).logits
    alone = [model(ids, decoder_input_ids=ids).logits for ids in (FIRST, SECOND)]
    torch.testing.assert_close(logits, torch.cat(alone, 1), rtol=0, atol=1e-5)
    plain = model(FIRST, position_ids=torch.arange(4)[None], decoder_input_ids=FIRST, output_hidden_states=True)
    torch.testing.assert_close(plain.logits, alone[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("more", [{}, {"output_hidden_states": True}])
def test_mask_beside_positions(more):
    """Padding between the documents, with any number as its position."""
    model = build(RoFormerLiteModel, stack_config(add_pooling_layer=True))
    ids = torch.cat((FIRST, torch.tensor([[0, 0]]), SECOND), 1)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 3, 9, 9, 0, 1, 2]])
    output = model(ids, mask, position_ids=positions, **more)
    first, second = model(FIRST), model(SECOND)
    expected = torch.cat((first.last_hidden_state, second.last_hidden_state), 1)
    torch.testing.assert_close(output.last_hidden_state[:, mask[0].bool()], expected, rtol=0, atol=1e-5)
    pooled = torch.cat((first.pooler_output, second.pooler_output))
    torch.testing.assert_close(output.pooler_output, pooled, rtol=0, atol=1e-5)
    hole = torch.tensor([[0, 1, 9, 9, 2, 3, 4, 5, 6]])  # one document around a hole
    holed = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 1, 1]])
    joined = model(ids[:, holed[0].bool()]).last_hidden_state
    states = model(ids, holed, position_ids=hole, **more).last_hidden_state[:, holed[0].bool()]
    torch.testing.assert_close(states, joined, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_one_row_a_document(pooling):
    model = build(RoFormerLiteForSequenceClassification, stack_config(classifier_pooling=pooling, num_labels=3))
    expected = torch.cat((model(FIRST).logits, model(SECOND).logits))
    for more in ({}, {"output_hidden_states": True}):
        logits = model(PACKED, position_ids=POSITIONS, **more).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
