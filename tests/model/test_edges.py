"""Inputs at the edge, each of which once gave other numbers in silence or failed far from its cause."""

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from peft import PrefixTuningConfig, get_peft_model
from transformers import DynamicCache

from hf_roformer_lite import (
    RoFormerLiteForCausalLM,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteModel,
)
from hf_roformer_lite.model.padding import pool

IDS = torch.randint(6, 40, (2, 6), generator=torch.Generator().manual_seed(0))
CLOSE = {"rtol": 0, "atol": 1e-5}


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_decoder_prompt_of_a_pair(side, cache):
    """The row with padding goes on as it does alone."""
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    prompt, mask = IDS[:, :4].clone(), torch.ones(2, 4, dtype=torch.long)
    mask[1, slice(0, 2) if side == "left" else slice(2, 4)] = 0
    options = {"max_new_tokens": 4, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    options |= {"cache_implementation": cache} if cache == "static" else {}
    together = model.generate(IDS, decoder_input_ids=prompt, decoder_attention_mask=mask, **options).scores
    alone = model.generate(IDS[1:], decoder_input_ids=prompt[1:, mask[1] != 0], **options).scores
    for step, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(step[1:], expected, **CLOSE)


def test_refused_in_place_of_wrong():
    model = build(RoFormerLiteForCausalLM, stack_config(is_decoder=True))
    right = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]])
    with pytest.raises(ValueError, match="prefill_chunk_size"):
        model.generate(IDS, attention_mask=right, prefill_chunk_size=3, max_new_tokens=2, do_sample=False)
    cache = DynamicCache(config=model.config)
    model(IDS, past_key_values=cache)
    with pytest.raises(ValueError, match="attention_mask"):  # too many columns: which are the new ones?
        model(IDS[:, :1], attention_mask=torch.ones(2, 12), past_key_values=cache)
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(IDS[:1], cu_seq_lens_q=torch.tensor([0, 2, 6]), past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="token_dropout_mask_id"):  # each token would know how many masks follow
        RoFormerLiteForCausalLM(stack_config(token_dropout_mask_id=4))
    pair = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    packed = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with pytest.raises(ValueError, match="documents"):
        pair(IDS[:1], position_ids=packed, decoder_input_ids=IDS[:1])
    stack = build(RoFormerLiteModel, stack_config(is_decoder=True, add_cross_attention=True))
    with pytest.raises(ValueError, match="encoder_attention_mask"):
        stack(IDS, encoder_hidden_states=torch.randn(2, 5, 32), encoder_attention_mask=torch.ones(1, 5))


def test_pooling():
    model = build(RoFormerLiteForSequenceClassification, stack_config(classifier_pooling="cls", num_labels=3))
    everything = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    torch.testing.assert_close(model(IDS[:1], attention_mask=everything).logits, model(IDS[:1]).logits, **CLOSE)
    prepared = everything.expand(2, 1, 6, 6)
    for mask in (prepared, {"full_attention": prepared}):  # says nothing of padding, so that a row is one document
        logits = model(IDS, attention_mask=mask, position_ids=torch.arange(6)[None]).logits
        torch.testing.assert_close(logits, model(IDS).logits, **CLOSE)
    states = torch.full((1, 2000, 4), 60.0, dtype=torch.float16)  # whose sum half precision can't hold
    assert torch.equal(pool(states, "mean", None, torch.ones(1, 2000)), states[:, 0])


def test_shapes():
    model = build(RoFormerLiteModel, stack_config(type_vocab_size=2))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    for more in ({}, {"output_hidden_states": True}):
        states = model(IDS, token_type_ids=segments, **more).last_hidden_state
        torch.testing.assert_close(states, model(IDS, token_type_ids=segments.expand(2, 6)).last_hidden_state, **CLOSE)
        one = model(IDS[:, :1], attention_mask=torch.tensor([[1], [0]]), **more).last_hidden_state
        assert not one[1].any()
    model.config.num_hidden_layers = 1
    del model.layers[1:]
    assert model(IDS).last_hidden_state.isfinite().all()


def test_cross_attention_of_a_single_stack():
    source = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    fields = {"is_decoder": True, "add_cross_attention": True}
    stack = build(RoFormerLiteModel, stack_config(**fields))
    borders = {"cu_seq_lens_q": torch.tensor([0, 2, 6])}
    flat = stack(IDS[:1], encoder_hidden_states=source[:1], use_cache=False)
    assert flat.last_hidden_state.shape == (1, 6, 32)
    with pytest.raises(ValueError, match="documents"):
        stack(IDS[:1], encoder_hidden_states=source[:1], output_hidden_states=True, **borders)
    model = build(RoFormerLiteForCausalLM, stack_config(**fields))
    ids = model.generate(IDS, encoder_hidden_states=source, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    again = IDS
    for _ in range(3):  # the same by hand, without a cache
        logits = model(again, encoder_hidden_states=source, use_cache=False).logits[:, -1]
        again = torch.cat([again, logits.argmax(-1, keepdim=True)], 1)
    assert torch.equal(ids, again)


def test_prefix_tuning_of_a_classifier():
    model = build(RoFormerLiteForSequenceClassification, stack_config(num_labels=3, is_decoder=True))
    tuned = get_peft_model(model, PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=3))
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    together = tuned(IDS, attention_mask=mask).logits
    alone = tuned(IDS[1:, :3], attention_mask=mask[1:, :3]).logits
    torch.testing.assert_close(together[1:], alone, **CLOSE)
