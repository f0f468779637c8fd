"""Tests of the golden numbers of the five reference systems."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import assert_close
from program import read_json

from hf_roformer_lite import RoFormerLiteForConditionalGeneration
from hf_roformer_lite.conversion import convert

assert_same = partial(assert_close, atol=1e-12)
REFERENCE = Path(__file__).parent / "data" / "reference"


def filled(shape: list[int], key: int, scale: float = 0.3) -> torch.Tensor:
    """Compute weights and inputs of `small_cases.json`, which stores only their shapes."""
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    return (scale * torch.sin(1.7 * i + 0.9 * key + 0.5 * (i % 7))).reshape(shape)


def weights_of(case: dict) -> dict[str, torch.Tensor]:
    weights = {}
    for key, (name, shape) in enumerate(sorted(case["weights"].items())):
        weights[name] = filled(shape, key)
    for name, tensor in weights.items():
        if "relu" in name:
            weights[name] = torch.full_like(tensor, 0.15)
        elif name.endswith((".gamma", "norm.weight", "norm_1.weight", "norm_2.weight")):
            weights[name] = 1 + tensor / 3
    return weights


def load(name: str, source: str) -> tuple:
    case = read_json(REFERENCE / "small_cases.json")["cases"][name]
    inputs = {}
    for name_of_input, value in case["inputs"].items():
        if isinstance(value, dict):
            inputs[name_of_input] = filled(value["shape"], value["key"], scale=1.0)
        else:
            inputs[name_of_input] = torch.tensor(value)
    model = convert(source, weights_of(case), case["config"])
    assert model.dtype == torch.float64
    return model, inputs, torch.tensor(case["output"], dtype=torch.float64)


def test_deeplotx():
    model, inputs, golden = load("deeplotx_encoder", "deeplotx")
    assert_same(model(inputs_embeds=inputs["x"]).last_hidden_state, golden)
    model, inputs, golden = load("deeplotx_encoder_causal_mask", "deeplotx")
    mask = inputs["mask"].bool().expand(2, 1, 5, 5)
    assert_same(model(inputs_embeds=inputs["x"], attention_mask=mask).last_hidden_state, golden)


def test_prenorm_layers():
    model, inputs, golden = load("prenorm_encoder_layer", "prenorm-encoder-layer")
    real = inputs["ids"] != inputs["pad"]
    assert_same(
        model(inputs_embeds=inputs["x"], attention_mask=real).last_hidden_state[real], golden[real]
    )
    # The outputs of padding are the same, too, if the mask has four dimensions.
    everywhere = model(inputs_embeds=inputs["x"], attention_mask=real[:, None, None])
    assert_same(everywhere.last_hidden_state, golden)
    model, inputs, golden = load("prenorm_decoder_layer", "prenorm-decoder-layer")
    output = model(
        inputs_embeds=inputs["x"],
        encoder_hidden_states=inputs["memory"],
        encoder_attention_mask=inputs["src_ids"] != inputs["pad"],
    )
    assert_same(output.last_hidden_state, golden)


@pytest.mark.parametrize("name", ["bert_like_encoder", "bert_like_encoder_masked"])
def test_bert_like(name):
    model, inputs, golden = load(name, "bert-like")
    mask = inputs["mask"].bool()[:, None] if "mask" in inputs else None
    assert_same(model(inputs["ids"], attention_mask=mask).last_hidden_state, golden)


def test_scratch_seq2seq():
    model, inputs, golden = load("scratch_seq2seq", "scratch-seq2seq")
    assert isinstance(model, RoFormerLiteForConditionalGeneration)
    src_real = inputs["src"] != 0
    tgt_real = inputs["tgt"] != 0
    logits = model(inputs["src"], src_real, inputs["tgt"], tgt_real).logits
    assert_same(logits[tgt_real], golden[tgt_real], atol=1e-6)
    causal = torch.ones(3, 3, dtype=torch.bool).tril() & tgt_real[:, None, None]
    assert_same(model(inputs["src"], src_real, inputs["tgt"], causal).logits, golden, atol=1e-6)


def test_walkthrough():
    """Each stage of a layer has the printed numbers."""
    walk = read_json(REFERENCE / "numeric_walkthrough.json")
    tensors = {
        name: torch.tensor(value, dtype=torch.float64) for name, value in walk["inputs"].items()
    }
    states = tensors.pop("input_x")
    model = convert("walkthrough", tensors, {})
    model.set_attn_implementation("eager")
    layer = model.layers[0]
    modules = {
        "Q": layer.self_attn.q_proj,
        "K": layer.self_attn.k_proj,
        "V": layer.self_attn.v_proj,
        "attn_out": layer.self_attn.o_proj,
        "norm1": layer.self_attn_norm,
        "ff_lin": layer.mlp_proj,
        "relu": layer.act_fn,
        "norm2": layer.mlp_inner_norm,
        "norm3": layer.mlp_norm,
    }
    stages = {}
    for name, module in modules.items():
        module.register_forward_hook(lambda _, given, made, name=name: stages.update({name: made}))
    stages["probs"] = model(inputs_embeds=states[None], output_attentions=True).attentions[0]
    for name, found in stages.items():
        printed = torch.tensor(walk["printed"][name], dtype=torch.float64)
        atol = walk["recommended_atol"]["end_to_end"]
        assert_same(found.reshape(5, -1), printed, atol=atol)
