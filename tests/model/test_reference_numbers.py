"""The golden numbers of the five reference systems."""

import json
import math
from pathlib import Path

import pytest
import torch

from hf_roformer_lite import RoFormerLiteForConditionalGeneration
from hf_roformer_lite.conversion import convert

REFERENCE = Path(__file__).parent / "data" / "reference"


def filled(shape: list[int], key: int, scale: float = 0.3) -> torch.Tensor:
    """The weights and inputs of `small_cases.json`, which stores their shapes alone."""
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    return (scale * torch.sin(1.7 * i + 0.9 * key + 0.5 * (i % 7))).reshape(shape)


def weights_of(case: dict) -> dict[str, torch.Tensor]:
    weights = {name: filled(case["weights"][name], key) for key, name in enumerate(sorted(case["weights"]))}
    for name, tensor in weights.items():
        if "relu" in name:
            weights[name] = torch.full_like(tensor, 0.15)
        elif name.endswith((".gamma", "norm.weight", "norm_1.weight", "norm_2.weight")):
            weights[name] = 1 + tensor / 3
    return weights


def load(name: str, source: str) -> tuple:
    case = json.loads((REFERENCE / "small_cases.json").read_text())["cases"][name]
    inputs = {
        key: filled(value["shape"], value["key"], 1.0) if isinstance(value, dict) else torch.tensor(value)
        for key, value in case["inputs"].items()
    }
    model = convert(source, weights_of(case), case["config"])
    assert model.dtype == torch.float64
    return model, inputs, torch.tensor(case["output"], dtype=torch.float64)


def assert_same(ours: torch.Tensor, golden: torch.Tensor, bound: float = 1e-12) -> None:
    torch.testing.assert_close(ours, golden, rtol=0, atol=bound)


def test_deeplotx():
    model, inputs, golden = load("deeplotx_encoder", "deeplotx")
    assert_same(model(inputs_embeds=inputs["x"]).last_hidden_state, golden)
    model, inputs, golden = load("deeplotx_encoder_causal_mask", "deeplotx")
    mask = inputs["mask"].bool().expand(2, 1, 5, 5)
    assert_same(model(inputs_embeds=inputs["x"], attention_mask=mask).last_hidden_state, golden)


def test_prenorm_layers():
    model, inputs, golden = load("prenorm_encoder_layer", "prenorm-encoder-layer")
    real = inputs["ids"] != inputs["pad"]
    assert_same(model(inputs_embeds=inputs["x"], attention_mask=real).last_hidden_state[real], golden[real])
    everywhere = model(inputs_embeds=inputs["x"], attention_mask=real[:, None, None])  # padding's own outputs too
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
    src_real, tgt_real = inputs["src"] != 0, inputs["tgt"] != 0
    logits = model(inputs["src"], src_real, inputs["tgt"], tgt_real).logits
    assert_same(logits[tgt_real], golden[tgt_real], 1e-6)
    causal = torch.ones(3, 3, dtype=torch.bool).tril() & tgt_real[:, None, None]
    assert_same(model(inputs["src"], src_real, inputs["tgt"], causal).logits, golden, 1e-6)


def test_walkthrough():
    """Every printed stage, read off the modules of the model as the numbers pass through."""
    walk = json.loads((REFERENCE / "numeric_walkthrough.json").read_text())
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in walk["inputs"].items()}
    states = tensors.pop("input_x")
    model = convert("walkthrough", tensors, {})
    model.set_attn_implementation("eager")
    layer, stages = model.layers[0], {}

    def watch(module, name, read=lambda given, made: made):
        module.register_forward_hook(lambda _, given, made: stages.update({name: read(given, made)}))

    for name, side in (("Q", "q"), ("K", "k"), ("V", "v")):
        watch(getattr(layer.self_attn, f"{side}_proj"), name)
    watch(layer.self_attn.o_proj, "attn_out")
    watch(layer.self_attn.o_proj, "ctx", lambda given, made: given[0])
    watch(layer.self_attn_norm, "add1", lambda given, made: given[0])
    watch(layer.self_attn_norm, "norm1")
    watch(layer.mlp_proj, "ff_lin")
    watch(layer.act_fn, "relu")
    watch(layer.mlp_inner_norm, "norm2")
    watch(layer.mlp_norm, "add2", lambda given, made: given[0])
    watch(layer.mlp_norm, "norm3")
    output = model(inputs_embeds=states[None], output_attentions=True)
    stages["probs"] = output.attentions[0]
    stages["scores_raw"] = stages["Q"] @ stages["K"].transpose(-1, -2)
    stages["scores"] = stages["scores_raw"] / 2
    for k, name in enumerate(("add1", "relu", "add2"), 1):
        stages[f"mean{k}"], stages[f"std{k}"] = stages[name].mean(-1, keepdim=True), stages[name].std(-1, keepdim=True)
    assert walk["printed"].keys() == stages.keys()
    bound = walk["recommended_atol"]["end_to_end"]
    for name, printed in walk["printed"].items():
        assert_same(stages[name].reshape(5, -1), torch.tensor(printed, dtype=torch.float64), bound)
    for name, exact in walk["float64_end_to_end_as_printed"].items():
        # The eps beside σₙ₋₁ counts where σ is small, as it is behind the activation.
        assert_same(stages[name].reshape(5, -1), torch.tensor(exact, dtype=torch.float64), 5e-5)
