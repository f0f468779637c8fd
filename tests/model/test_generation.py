"""Decoding: with and without cache, greedy, sampled and with beams, padded on either side."""

import pytest
import torch
from conftest import STACKS, STYLES, VOCAB, build, seq2seq_config, stack_config
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration

TOLERANCE = {"rtol": 0, "atol": 1e-5}
MODES = {
    "greedy": {"do_sample": False},
    "beams": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.7},
    "constrained": {"num_beams": 3, "min_new_tokens": 6, "max_new_tokens": 7, "no_repeat_ngram_size": 2},
}
ROPE_SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_cached_steps_equal_one_pass(name, generator):
    model = build(RoFormerLiteForCausalLM, stack_config(name))
    ids = torch.randint(5, VOCAB, (2, 13), generator=generator)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        past, pieces = None, []
        for start, end in ((0, 5), (5, 6), (6, 9), (9, 13)):
            output = model(ids[:, start:end], past_key_values=past, use_cache=True)
            past = output.past_key_values
            pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, **TOLERANCE)


@pytest.mark.parametrize("name", STACKS)
def test_cached_decoder_steps_equal_one_pass(name, ragged_input, generator):
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config(name))
    target = torch.randint(5, VOCAB, (6, 10), generator=generator)
    with torch.no_grad():
        whole = model(**ragged_input, decoder_input_ids=target, use_cache=False)
        caches = (DynamicCache(config=model.config.decoder) for _ in range(2))  # as `generate` makes them
        past = EncoderDecoderCache(*caches)
        encoder_outputs, pieces = model.get_encoder()(**ragged_input), []
        torch.testing.assert_close(encoder_outputs[0], whole.encoder_last_hidden_state, **TOLERANCE)
        for start, end in ((0, 4), (4, 5), (5, 10)):
            output = model(
                attention_mask=ragged_input["attention_mask"],
                encoder_outputs=encoder_outputs,
                decoder_input_ids=target[:, start:end],
                past_key_values=past,
            )
            pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole.logits, **TOLERANCE)
    assert past.is_updated == dict.fromkeys(range(2), True)


@pytest.mark.parametrize("mode", MODES)
def test_generation_with_and_without_cache(mode, ragged_input):
    options = {"max_new_tokens": 8, **MODES[mode]}
    seq2seq = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    left_padded = {key: value[[0, 2]] for key, value in ragged_input.items()}
    causal = build(RoFormerLiteForCausalLM, stack_config())
    for model, inputs in ((seq2seq, ragged_input), (causal, left_padded)):
        cached = model.generate(**inputs, **options)
        assert torch.equal(cached, model.generate(**inputs, **options, use_cache=False))
        if mode == "constrained":
            start = 1 if model is seq2seq else inputs["input_ids"].shape[1]
            assert cached.shape[1] - start in (6, 7)
            assert (cached[:, start : start + 6] != model.config.eos_token_id).all()


@pytest.mark.parametrize("implementation", ["static", "dynamic"])
@pytest.mark.parametrize("name", ["default", "grouped-gated-rms", "sliding"])
def test_other_caches(implementation, name, ragged_input):
    seq2seq = build(RoFormerLiteForConditionalGeneration, seq2seq_config(name))
    causal = build(RoFormerLiteForCausalLM, stack_config(name))
    left_padded = {key: value[[0, 2]] for key, value in ragged_input.items()}
    options = {"max_new_tokens": 6, "do_sample": False, "disable_compile": True}
    for model, inputs in ((seq2seq, ragged_input), (causal, left_padded)):
        expected = model.generate(**inputs, **options, use_cache=False)
        assert torch.equal(model.generate(**inputs, **options, cache_implementation=implementation), expected)


def test_sampling_is_seeded_and_encoder_outputs_are_used(ragged_input):
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    options = {"do_sample": True, "top_k": 20, "max_new_tokens": 12}
    samples = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        samples.append(model.generate(**ragged_input, **options))
    assert torch.equal(samples[0], samples[1]) and not torch.equal(samples[0], samples[2])
    encoder_outputs = model.get_encoder()(**ragged_input)
    given = model.generate(
        encoder_outputs=encoder_outputs, attention_mask=ragged_input["attention_mask"], max_new_tokens=8
    )
    assert torch.equal(given, model.generate(**ragged_input, max_new_tokens=8))
    encoder_outputs.last_hidden_state = encoder_outputs.last_hidden_state.roll(1, 0)
    rolled = model.generate(
        encoder_outputs=encoder_outputs,
        attention_mask=ragged_input["attention_mask"].roll(1, 0),
        max_new_tokens=8,
    )
    assert torch.equal(rolled, given.roll(1, 0))


@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_left_padding_equals_right_padding_and_none(name, generator):
    model = build(RoFormerLiteForCausalLM, stack_config(name))
    ids = torch.randint(5, VOCAB, (1, 8), generator=generator)
    padding, ones = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)
    left = {"input_ids": torch.cat([padding, ids], 1), "attention_mask": torch.cat([padding, ones], 1)}
    right = {"input_ids": torch.cat([ids, padding], 1), "attention_mask": torch.cat([ones, padding], 1)}
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        for use_cache in (False, True):
            torch.testing.assert_close(model(**left, use_cache=use_cache).logits[:, 4:], expected, **TOLERANCE)
            torch.testing.assert_close(model(**right, use_cache=use_cache).logits[:, :8], expected, **TOLERANCE)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(**left, **options)[:, 12:], model.generate(ids, **options)[:, 8:])


@pytest.mark.parametrize("scaling", ROPE_SCALINGS)
def test_rope_scalings_change_the_model_and_decode(scaling, generator):
    plain = build(RoFormerLiteForCausalLM, stack_config(max_position_embeddings=16))
    scaled = build(
        RoFormerLiteForCausalLM,
        stack_config(rope_parameters=ROPE_SCALINGS[scaling], max_position_embeddings=16),
    )
    ids = torch.randint(5, VOCAB, (2, 40), generator=generator)
    with torch.no_grad():
        assert (plain(ids).logits - scaled(ids).logits).abs().max() > 1e-3
        if scaling == "dynamic":  # by its definition the frequencies follow the length, so cached keys keep older ones
            torch.testing.assert_close(plain(ids[:, :15]).logits, scaled(ids[:, :15]).logits, **TOLERANCE)
            return
        prefix = scaled(ids[:, :30], use_cache=True)
        rest = scaled(ids[:, 30:], past_key_values=prefix.past_key_values).logits
        torch.testing.assert_close(rest, scaled(ids, use_cache=False).logits[:, 30:], **TOLERANCE)


def test_logits_to_keep(generator):
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.randint(5, VOCAB, (2, 9), generator=generator)
    full = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, full[:, -2:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([1, 4])).logits, full[:, [1, 4]])
    mask = torch.ones_like(ids)
    mask[0, 6:] = mask[1, 3] = 0
    padded = model(ids, mask).logits
    torch.testing.assert_close(model(ids, mask, logits_to_keep=2).logits, padded[:, -2:])  # as transformers means it
    of_real = model(ids, mask, logits_to_keep=2, count_real_tokens=True).logits
    torch.testing.assert_close(of_real, padded[[[0], [1]], [[4, 5], [7, 8]]])
    of_real = model(ids, mask, logits_to_keep=7, count_real_tokens=True).logits
    torch.testing.assert_close(of_real, padded[[[0], [1]], [[8, 0, 1, 2, 3, 4, 5], [1, 2, 4, 5, 6, 7, 8]]])


def test_generation_follows_the_last_real_token(generator):
    """Of prompts padded on the right, whatever logits are asked for, and where an assistant proposes the tokens."""
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.randint(5, VOCAB, (1, 5), generator=generator)
    padded = {"input_ids": torch.nn.functional.pad(ids, (0, 4)), "attention_mask": torch.tensor([[1] * 5 + [0] * 4])}
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(ids, **options)[:, 5:].tolist()
    assert model.generate(**padded, **options)[:, 9:].tolist() == expected
    assert model.generate(**padded, **options, logits_to_keep=0)[:, 9:].tolist() == expected
    assert model.generate(**padded, **options, assistant_model=model)[:, 9:].tolist() == expected
    assert model.generate(**padded, **options, prompt_lookup_num_tokens=2)[:, 9:].tolist() == expected


def test_logits_to_keep_in_the_pair(generator):
    """The same positions as of all logits, all with labels; `generate` computes one position a step, and follows the
    last real token of a padded target."""
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    source, target = torch.randint(5, VOCAB, (2, 2, 9), generator=generator)
    target[:, 0] = model.config.decoder_start_token_id  # else `generate` puts it in front
    mask = torch.ones_like(target)
    mask[0, 6:] = 0
    inputs = {"input_ids": source, "decoder_input_ids": target, "use_cache": False}
    full = model(**inputs).logits
    for keep, expected in ((1, full[:, -1:]), (2, full[:, -2:]), (torch.tensor([1, 4]), full[:, [1, 4]])):
        torch.testing.assert_close(model(**inputs, logits_to_keep=keep).logits, expected, **TOLERANCE)
    padded = model(**inputs, decoder_attention_mask=mask, logits_to_keep=1, count_real_tokens=True).logits
    torch.testing.assert_close(padded[:, 0], full[[0, 1], [5, 8]], **TOLERANCE)
    with_labels = model(**inputs, labels=target, logits_to_keep=1)
    torch.testing.assert_close(with_labels.logits, full, **TOLERANCE)
    lengths = []
    model.lm_head.register_forward_hook(lambda module, args, logits: lengths.append(logits.shape[1]))
    tokens = model.generate(source, decoder_input_ids=target, max_new_tokens=3)
    assert lengths[0] == 1 and set(lengths) == {1}
    assert tokens[:, 9].tolist() == full[:, -1].argmax(-1).tolist()
    tokens = model.generate(source, decoder_input_ids=target, decoder_attention_mask=mask, max_new_tokens=1)
    assert tokens[:, 9].tolist() == full[[0, 1], [5, 8]].argmax(-1).tolist()


def test_decoder_input_is_required():
    model = build(RoFormerLiteForConditionalGeneration, seq2seq_config())
    with pytest.raises(ValueError, match="decoder_input_ids"):
        model(torch.full((1, 3), 5))


CACHES = {
    "no cache": lambda config: {"use_cache": False},
    "dynamic": lambda config: {"cache_implementation": "dynamic"},
    "static": lambda config: {"cache_implementation": "static"},
    "own dynamic": lambda config: {"past_key_values": DynamicCache(config=config)},
    "own static": lambda config: {"past_key_values": StaticCache(config, max_cache_len=40)},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", ["default", "post-sinusoidal", "learned-typed", "sliding", "partial-rotary-value"])
@pytest.mark.parametrize("mode", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_prompts_padded_on_any_side(name, cache, mode):
    """The same tokens from a prompt alone and padded on the left or the right, with every form of cache."""
    model = build(RoFormerLiteForCausalLM, stack_config(name, eos_token_id=None))
    options = {**mode, "max_new_tokens": 6, "min_new_tokens": 6}
    prompts = [torch.randint(5, VOCAB, (n,), generator=torch.Generator().manual_seed(n)) for n in (3, 7, 5)]
    alone = [model.generate(prompt[None], **options)[0, -6:].tolist() for prompt in prompts]
    assert len(set(map(tuple, alone))) > 1
    for side in ("left", "right"):
        ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_side=side)
        of_cache = CACHES[cache](model.config)
        padded = model.generate(ids, attention_mask=(ids != 0).long(), **options, **of_cache)
        assert padded[:, -6:].tolist() == alone, side


@pytest.mark.parametrize("cache", CACHES)
def test_from_vectors(cache):
    """`inputs_embeds` in place of the prompt's ids: the same tokens."""
    model = build(RoFormerLiteForCausalLM, stack_config(eos_token_id=None))
    ids = torch.randint(5, VOCAB, (3, 6), generator=torch.Generator().manual_seed(0))
    expected = model.generate(ids, max_new_tokens=5, do_sample=False)[:, 6:]
    vectors = model.get_input_embeddings()(ids)
    of_cache = CACHES[cache](model.config)
    assert model.generate(inputs_embeds=vectors, max_new_tokens=5, do_sample=False, **of_cache).equal(expected)
