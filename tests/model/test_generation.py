"""Tests of decoding: with every cache and without, greedy and with beams, padded on either side."""

import pytest
import torch
from conftest import STACKS, STYLES, assert_close, build, random_ids, seq2seq_config, stack_config
from transformers import DynamicCache, StaticCache

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration

CACHES = {
    "no cache": lambda config: {"use_cache": False},
    "dynamic": lambda config: {"cache_implementation": "dynamic"},
    "static": lambda config: {"cache_implementation": "static"},
    "own dynamic": lambda config: {"past_key_values": DynamicCache(config=config)},
    "own static": lambda config: {"past_key_values": StaticCache(config, max_cache_len=40)},
}


def causal_model(name: str = "default", **fields) -> RoFormerLiteForCausalLM:
    return build(RoFormerLiteForCausalLM, stack_config(name, **fields))


def pair_model(name: str = "default") -> RoFormerLiteForConditionalGeneration:
    return build(RoFormerLiteForConditionalGeneration, seq2seq_config(name))


def logits_of_steps(model, inputs, ids, steps, past=None, mask=None) -> torch.Tensor:
    """Compute the logits `(B, L, vocab)` of `ids` in calls whose numbers of tokens are `steps`.

    Args:
        inputs: Arguments of every call.
        past: The cache of the first call.
        mask: The mask of `ids`, of which each call gets the columns up to its last token.
    """
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    pieces = []
    end = 0
    # The argument has two names, and transformers 5.24 uses `cache`.
    name_of_cache = "past_key_values" if max(steps) == 1 else "cache"
    for piece in ids.split(steps, 1):
        end += piece.shape[1]
        if mask is not None:
            inputs = {"attention_mask": mask[:, :end]}
        output = model(**inputs, **{name: piece, name_of_cache: past}, use_cache=True)
        past = output.past_key_values
        pieces.append(output.logits)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize("steps", [[1] * 9, [4, 1, 3, 1]], ids=["single", "several"])
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("name", [*STACKS, *STYLES])
@torch.no_grad()
def test_steps_equal_one_pass(name, rows, steps, ragged_input):
    ids = random_ids(rows, 9)
    model = causal_model(name)
    whole = model(ids, use_cache=False).logits
    assert_close(logits_of_steps(model, {}, ids, steps), whole)
    if name in STYLES:
        return
    model = pair_model(name)
    inputs = {key: value[:rows] for key, value in ragged_input.items()}
    whole = model(**inputs, decoder_input_ids=ids, use_cache=False).logits
    assert_close(logits_of_steps(model, inputs, ids, steps), whole)


def test_loss_beside_a_given_cache():
    """Prefix tuning gives a cache, with which training and evaluation must have the same loss."""
    model = pair_model()
    ids = random_ids(2, 6)
    losses = []
    for is_training in (True, False):
        with torch.no_grad():
            past = model.eval()(ids, decoder_input_ids=ids[:, :3]).past_key_values
            losses.append(model.train(is_training)(ids, labels=ids, past_key_values=past).loss)
    assert_close(*losses)


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("padding_free", "default"),
        ("padding_free", "modern"),
        ("eager", "sliding"),
        ("sdpa", "modern"),
    ],
)
def test_any_mask_beside_a_cache(name, backend, generator):
    """Any mask, and any division of the tokens into calls, gives the numbers without a cache."""
    model = build(RoFormerLiteForCausalLM, stack_config(name, backend, is_decoder=True))
    for kind in range(6):
        ids = random_ids(3, 12, seed=kind)
        mask = (torch.rand(3, 12, generator=generator) < 0.3 + 0.1 * kind).long()
        if kind % 3 == 0:
            # Sorted masks have their padding on the left.
            mask = mask.sort(dim=1).values
        expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        for steps in ([1] * 12, [5, 5, 2]):
            for cache in (None, DynamicCache(), DynamicCache(config=model.config)):
                found = logits_of_steps(model, {}, ids, steps, cache, mask)
                assert_close(found[mask == 1], expected[mask == 1])


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize(
    "name", "default post-sinusoidal learned-typed sliding partial-rotary-value".split()
)
@pytest.mark.parametrize("mode", [{"do_sample": False}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_padded_prompts(name, cache, mode):
    """Padding on either side of a prompt does not change its continuation, with any cache."""
    model = causal_model(name, eos_token_id=None)
    options = {**mode, "max_new_tokens": 6, "min_new_tokens": 6}
    prompts = [random_ids(length, seed=length) for length in (3, 7, 5)]
    alone = [
        model.generate(prompt[None], **options, use_cache=False)[0, -6:].tolist()
        for prompt in prompts
    ]
    assert len(set(map(tuple, alone))) > 1
    for side in ("left", "right"):
        ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_side=side)
        of_cache = CACHES[cache](model.config)
        padded = model.generate(ids, attention_mask=(ids != 0).long(), **options, **of_cache)
        assert padded[:, -6:].tolist() == alone, side


@pytest.mark.parametrize("side", ["left", "right"])
def test_generation_follows_the_last_real_token(side):
    """Padding is skipped, whichever logits are kept, and with an assistant too. On the left, it may
    be longer than the parts in which a prompt is read."""
    model = causal_model()
    ids = random_ids(1, 5)
    sides = (4, 0) if side == "left" else (0, 4)
    padded = {
        "input_ids": torch.nn.functional.pad(ids, sides),
        "attention_mask": torch.nn.functional.pad(torch.ones_like(ids), sides),
    }
    options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    expected = model.generate(ids, **options)[:, 5:].tolist()
    for more in ({"logits_to_keep": 0}, {"assistant_model": model}):
        assert model.generate(**padded, **options, **more)[:, 9:].tolist() == expected
    in_parts = {"prefill_chunk_size": 3}
    if side == "left":
        assert model.generate(**padded, **options, **in_parts)[:, 9:].tolist() == expected
    else:
        with pytest.raises(ValueError, match="prefill_chunk_size"):
            model.generate(**padded, **options, **in_parts)
