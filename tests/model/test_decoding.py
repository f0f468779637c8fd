"""Steps of decoding: the short way gives what the layers give, and is taken only where it may be."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from conftest import STACKS, VOCAB, build, seq2seq_config, stack_config
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration
from hf_roformer_lite.model import decoding
from hf_roformer_lite.model.fast_linear import MIN_PACKED_ROWS, PackedProduct
from hf_roformer_lite.model.growing_cache import FIRST_CAPACITY, GrowingBuffer

START = 2


@pytest.fixture
def steps(monkeypatch) -> list[int]:
    """The numbers of rows of all steps that were computed the short way."""
    counted, call = [], decoding.DecodingStep.__call__
    monkeypatch.setattr(
        decoding.DecodingStep, "__call__", lambda self, *args: counted.append(self.rows) or call(self, *args)
    )
    return counted


def logits_of_steps(model, inputs, ids, **options) -> torch.Tensor:
    """Logits `(B, L, vocab)`, token by token."""
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    past, pieces = None, []
    for place in range(ids.shape[1]):
        output = model(**inputs, **{name: ids[:, place : place + 1]}, past_key_values=past, use_cache=True, **options)
        past = output.past_key_values
        pieces.append(output.logits)
    return torch.cat(pieces, 1)


@pytest.mark.parametrize("rows", [1, MIN_PACKED_ROWS + 1])
@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("is_pair", [False, True], ids=["causal", "pair"])
def test_the_short_way_equals_the_layers(is_pair, name, rows, steps, generator, ragged_input):
    ids = torch.randint(5, VOCAB, (rows, 9), generator=generator)
    if is_pair:
        model = build(RoFormerLiteForConditionalGeneration, seq2seq_config(name))
        inputs = {key: value[:rows] for key, value in ragged_input.items()}
    else:
        model, inputs = build(RoFormerLiteForCausalLM, stack_config(name)), {}
    with torch.no_grad():
        short = logits_of_steps(model, inputs, ids)
        expected_steps = [rows] * (8 if is_pair else 9)  # the first one of a pair fills the cache of the source
        assert steps == expected_steps
        handle = model.get_decoder().layers[0].mlp.up_proj.register_forward_hook(lambda *_: None)
        long = logits_of_steps(model, inputs, ids)
        handle.remove()
    assert steps == expected_steps  # a module with a hook is called
    torch.testing.assert_close(short, long, rtol=0, atol=1e-5)


def test_bfloat16(steps, generator):
    model = build(RoFormerLiteForCausalLM, stack_config()).bfloat16()
    ids = torch.randint(5, VOCAB, (5, 6), generator=generator)
    with torch.inference_mode():
        short, whole = logits_of_steps(model, {}, ids), model(ids, use_cache=False).logits
    assert steps == [5] * 6 and short.dtype == torch.bfloat16
    torch.testing.assert_close(short, whole, rtol=0.1, atol=0.1)


class Doubled(nn.Module):
    """An adapter around a linear map, which holds its attributes too."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 2 * self.base(states)


def test_only_where_it_may_be(steps, generator):
    ids = torch.randint(5, VOCAB, (2, 3), generator=generator)

    def long_way(model, **options) -> torch.Tensor:
        before = len(steps)
        logits = logits_of_steps(model, {}, ids, **options)
        assert len(steps) == before
        return logits.detach()

    model = build(RoFormerLiteForCausalLM, stack_config())
    plain = long_way(model)  # with gradients
    with torch.no_grad():
        assert long_way(build(RoFormerLiteForCausalLM, stack_config(backend="eager"))).shape == plain.shape
        watched = copy.deepcopy(model)  # transformers leaves hooks behind
        torch.testing.assert_close(long_way(watched, output_hidden_states=True), plain, rtol=0, atol=1e-5)
        adapted = copy.deepcopy(model)
        attention = adapted.model.layers[1].self_attn
        attention.v_proj = Doubled(attention.v_proj)
        assert (long_way(adapted) - plain).abs().max() > 1e-2
        with torch.autocast("cpu", torch.bfloat16):
            long_way(model)
        model.train()
        past = DynamicCache(config=model.config)
        model(ids[:, :1], past_key_values=past)
        assert not steps
        model.eval()(ids[:, 1:2], past_key_values=past)
    assert steps == [2]


def test_new_weights_and_other_rows(steps, generator):
    """A cache of another generation, and beams that become more rows, get a step of their own."""
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.randint(5, VOCAB, (4, 5), generator=generator)
    with torch.no_grad():
        first = logits_of_steps(model, {}, ids)
        model.model.layers[0].self_attn.v_proj.weight.data *= 1.5
        second, whole = logits_of_steps(model, {}, ids), model(ids, use_cache=False).logits
        torch.testing.assert_close(second, whole, rtol=0, atol=1e-5)
        assert (first - second).abs().max() > 1e-2
        past = model(ids[:1, :3]).past_key_values
        past.batch_repeat_interleave(4)
        steps.clear()
        repeated = model(ids[:, 3:4], past_key_values=past).logits[:, -1]
        alone = model(torch.cat((ids[:1, :3].expand(4, -1), ids[:, 3:4]), 1)).logits[:, -1]
    assert steps == [4]
    torch.testing.assert_close(repeated, alone, rtol=0, atol=1e-5)


def test_steps_of_many_caches(steps):
    """Of caches that are kept, only so many keep copies of the weights; the others are served by the layers."""
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        caches = [model(ids).past_key_values for _ in range(decoding.MAX_STEPS + 2)]
        again = [model(ids[:, :1], past_key_values=cache).logits for cache in (*caches, *caches)]
    assert len(steps) == 2 * decoding.MAX_STEPS == 2 * len(decoding._step_of_cache)
    whole = model(torch.tensor([[7, 8, 9, 7, 7]]), use_cache=False).logits[:, 3:]
    for place, logits in enumerate(again):
        torch.testing.assert_close(logits, whole[:, [place // len(caches)]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, MIN_PACKED_ROWS])
def test_weights_that_change_while_a_cache_lives(rows, steps, generator):
    """A cache that is emptied and used again, after training steps for example, has the new weights, all of them."""
    model = build(RoFormerLiteForCausalLM, stack_config())
    ids = torch.randint(5, VOCAB, (rows, 4), generator=generator)
    with torch.no_grad():
        past = model(ids[:, :3]).past_key_values
        model(ids[:, 3:], past_key_values=past)
        for weight in model.parameters():
            weight.mul_(1.25)
        past.crop(-4)
        logits = logits_of_steps_with(model, ids, past)
        expected = model(ids, use_cache=False).logits
    assert steps == [rows] * 5
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_hooks_are_seen_from_the_next_generation_on(steps, generator):
    model, seen = build(RoFormerLiteForCausalLM, stack_config()), []
    ids = torch.randint(5, VOCAB, (1, 4), generator=generator)
    with torch.no_grad():
        past = model(ids[:, :3]).past_key_values
        model(ids[:, 3:], past_key_values=past)
        model.model.layers[0].mlp.register_forward_hook(lambda *_: seen.append(1))
        past.crop(-4)
        model(ids[:, :3], past_key_values=past)
        model(ids[:, 3:], past_key_values=past)
    assert steps == [1] and len(seen) == 2


def logits_of_steps_with(model, ids, past) -> torch.Tensor:
    """Logits `(B, L, vocab)`, token by token, with a given cache."""
    return torch.cat([model(ids[:, [place]], past_key_values=past).logits for place in range(ids.shape[1])], 1)


def test_masks_of_each_head_and_changed_values(steps, generator):
    """A mask `(B, heads, 1, L)` with fewer key-value heads, and a cache whose values somebody replaced."""
    model = build(RoFormerLiteForCausalLM, stack_config("grouped-gated-rms"))
    ids, heads = torch.randint(5, VOCAB, (3, 6), generator=generator), model.config.num_attention_heads
    assert model.config.num_key_value_heads < heads
    mask = torch.rand(3, heads, 1, 7, generator=generator) > 0.3
    mask[..., -1] = True
    with torch.no_grad():
        pasts = [model(ids).past_key_values for _ in range(2)]
        for past in pasts:
            model(ids[:, :1], past_key_values=past)
            past.crop(-1)
            for layer in past.layers:
                layer.values = layer.values * 0.5
        short = model(ids[:, :1], past_key_values=pasts[0], attention_mask=mask).logits
        assert steps == [3] * 3
        model.model.layers[0].mlp.register_forward_hook(lambda *_: None)
        decoding._step_of_cache.clear()
        long = model(ids[:, :1], past_key_values=pasts[1], attention_mask=mask).logits
    assert steps == [3] * 3
    torch.testing.assert_close(short, long, rtol=0, atol=1e-5)


BFLOAT16 = """
import torch
from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM
model = RoFormerLiteForCausalLM(RoFormerLiteConfig.from_preset("tiny", vocab_size=50)).eval().bfloat16()
with torch.no_grad():
    model(torch.randint(5, 50, (4, 40)))
    assert model.generate(torch.randint(5, 50, (4, 9)), max_new_tokens=3, eos_token_id=None).shape == (4, 12)
"""


def test_bfloat16_on_processors_without_it():
    """oneDNN has no product for them, and torch's own has to do."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", BFLOAT16], env=environment, check=True)


@pytest.mark.parametrize("rows", [1, MIN_PACKED_ROWS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_packed_products(rows, dtype):
    torch.manual_seed(0)
    maps = [nn.Linear(24, 40, dtype=dtype), nn.Linear(24, 8, bias=False, dtype=dtype)]
    states, residual = torch.randn(rows, 24, dtype=dtype), torch.randn(rows, 48, dtype=dtype)
    tolerance = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {"rtol": 0, "atol": 1e-5}
    with torch.no_grad():
        expected = torch.cat([module(states) for module in maps], 1)
        torch.testing.assert_close(PackedProduct(maps, rows)(states), expected, **tolerance)
        sum_before = residual.clone()
        torch.testing.assert_close(PackedProduct(maps, rows)(states, residual), expected + residual, **tolerance)
        assert residual.equal(sum_before)
        product = PackedProduct(maps, rows, "gelu")
        activated = nn.functional.gelu(expected) if product.has_activation else expected
        torch.testing.assert_close(product(states), activated, **tolerance)


def test_the_growing_buffer_is_a_dynamic_layer():
    """Any order of additions, cuts and changes of rows, in inference mode and out of it; what was read stays."""
    torch.manual_seed(0)
    grown, plain, buffer = DynamicLayer(), DynamicLayer(), GrowingBuffer()

    def compare() -> None:
        torch.testing.assert_close(grown.keys, plain.keys, rtol=0, atol=0)
        torch.testing.assert_close(grown.values, plain.values, rtol=0, atol=0)
        assert grown.get_seq_length() == plain.get_seq_length()

    def both(name: str, *arguments) -> None:
        for layer in (grown, plain):
            getattr(layer, name)(*arguments)
        compare()

    def add(rows: int, length: int = 1) -> None:
        states = torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4)
        buffer.append(grown, *states)
        plain.update(*states)
        compare()

    def reorder(*beams: int) -> None:
        buffer.reorder(grown, torch.tensor(beams))
        plain.reorder_cache(torch.tensor(beams))
        compare()

    with torch.no_grad():
        both("update", torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 4))
        add(3)
        place = grown.keys.data_ptr()
        add(3)
        assert grown.keys.data_ptr() == place  # nothing was copied
        for beams in ((2, 2, 0), (1, 0, 0)):
            reorder(*beams)
            add(3)
        read, before = grown.keys, grown.keys.clone()
        both("crop", -2)
        add(3)
        assert read.equal(before)
        add(3, FIRST_CAPACITY)
        both("batch_repeat_interleave", 2)
        add(6)
        both("batch_select_indices", torch.tensor([0, 4]))
        reorder(1, 1)
        add(2)
    with torch.inference_mode():
        add(2)
        reorder(1, 0)
    with torch.no_grad():
        reorder(0, 0)
        add(2)


@pytest.mark.parametrize("is_pair", [False, True], ids=["causal", "pair"])
def test_generation_writes_in_place(is_pair, monkeypatch, ragged_input):
    """Greedy and with beams, the layers of the cache stay those of transformers, and a step copies none of them."""
    places, append = [], GrowingBuffer.append
    monkeypatch.setattr(
        GrowingBuffer,
        "append",
        lambda self, layer, *states: (
            places.append(append(self, layer, *states)[0].data_ptr())
            or (
                layer.keys,
                layer.values,
            )
        ),
    )
    name = RoFormerLiteForConditionalGeneration if is_pair else RoFormerLiteForCausalLM
    model = build(name, (seq2seq_config if is_pair else stack_config)("sliding"))
    inputs = {key: value[:1] for key, value in ragged_input.items()}
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "return_dict_in_generate": True}
    for beams, most in ((1, 1), (4, 2)):
        places.clear()
        cache = model.generate(**inputs, **options, num_beams=beams).past_key_values
        layers = (cache.self_attention_cache if is_pair else cache).layers
        assert [type(layer) for layer in layers] == [DynamicSlidingWindowLayer, DynamicLayer]
        assert 6 <= len(places) <= 7 and len(set(places)) <= most
