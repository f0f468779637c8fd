"""Steps of decoding, token by token, give what one pass over all tokens gives."""

import pytest
import torch
from conftest import STACKS, VOCAB, build, seq2seq_config, stack_config

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration


def logits_of_steps(model, inputs, ids, past=None) -> torch.Tensor:
    """Logits `(B, L, vocab)`, token by token."""
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    pieces = []
    for place in range(ids.shape[1]):
        output = model(**inputs, **{name: ids[:, place : place + 1]}, past_key_values=past, use_cache=True)
        past = output.past_key_values
        pieces.append(output.logits)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("is_pair", [False, True], ids=["causal", "pair"])
def test_steps_equal_one_pass(is_pair, name, rows, generator, ragged_input):
    ids = torch.randint(5, VOCAB, (rows, 9), generator=generator)
    inputs = {key: value[:rows] for key, value in ragged_input.items()} if is_pair else {}
    if is_pair:
        model = build(RoFormerLiteForConditionalGeneration, seq2seq_config(name))
        whole = model(**inputs, decoder_input_ids=ids, use_cache=False).logits
    else:
        model = build(RoFormerLiteForCausalLM, stack_config(name))
        whole = model(ids, use_cache=False).logits
    with torch.no_grad():
        torch.testing.assert_close(logits_of_steps(model, inputs, ids), whole, rtol=0, atol=1e-5)


def test_weights_that_change_while_a_cache_lives(generator):
    """A cache that is emptied and used again, after training steps for example, has the new weights, all of them."""
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.randint(5, VOCAB, (2, 4), generator=generator)
    with torch.no_grad():
        past = model(ids[:, :3]).past_key_values
        model(ids[:, 3:], past_key_values=past)
        for weight in model.parameters():
            weight.mul_(1.25)
        past.crop(-4)
        expected = model(ids, use_cache=False).logits
        torch.testing.assert_close(logits_of_steps(model, {}, ids, past), expected, rtol=0, atol=1e-5)


def test_cache_of_one_row_repeated(generator):
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.randint(5, VOCAB, (4, 5), generator=generator)
    with torch.no_grad():
        past = model(ids[:1, :3]).past_key_values
        past.batch_repeat_interleave(4)
        repeated = model(ids[:, 3:4], past_key_values=past).logits[:, -1]
        alone = model(torch.cat((ids[:1, :3].expand(4, -1), ids[:, 3:4]), 1)).logits[:, -1]
    torch.testing.assert_close(repeated, alone, rtol=0, atol=1e-5)


def test_a_mask_has_a_column_for_each_token_in_the_cache(generator):
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.randint(5, VOCAB, (2, 8), generator=generator)
    with torch.no_grad():
        past = model(ids[:, :5]).past_key_values
        with pytest.raises(ValueError, match="attention_mask"):
            model(ids[:, 5:], attention_mask=torch.ones(2, 3), past_key_values=past)


def test_loss_beside_a_given_cache(generator):
    """As with prefix tuning: training and evaluation, without dropout, give the same loss."""
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    ids, losses = torch.randint(5, VOCAB, (2, 6), generator=generator), []
    for is_training in (True, False):
        with torch.no_grad():
            past = model.eval()(ids, decoder_input_ids=ids[:, :3]).past_key_values
            losses.append(model.train(is_training)(ids, labels=ids, past_key_values=past).loss)
    torch.testing.assert_close(*losses)
