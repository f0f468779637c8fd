"""Quantised weights by transformers' own configs: int8 of torchao, on a CPU."""

import copy

import pytest
import torch
from conftest import build, stack_config
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    TorchAoConfig,
)

import hf_roformer_lite as rl

IDS = torch.tensor([[2, 17, 33, 90, 3], [2, 45, 3, 0, 0], [2, 8, 9, 3, 0]])
MASK = (IDS > 0).long()
WIDE = {"hidden_size": 128, "intermediate_size": 256}  # so that the linear layers are most of the file
MODELS = {
    "walkthrough": (
        rl.RoFormerLiteForSequenceClassification,
        AutoModelForSequenceClassification,
        {"name": "walkthrough", **WIDE},
    ),
    "causal": (rl.RoFormerLiteForCausalLM, AutoModelForCausalLM, {"name": "grouped-gated-rms", **WIDE}),
    "pair": (rl.RoFormerLiteForConditionalGeneration, AutoModelForSeq2SeqLM, None),
}
METHODS = {"weights": Int8WeightOnlyConfig, "weights and activations": Int8DynamicActivationInt8WeightConfig}


def logits_of(model: PreTrainedModel) -> torch.Tensor:
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    inputs |= {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model.eval()(**inputs).logits


def linear_layers(model: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """All but the LM head, which transformers leaves as it is: it is the embedding table."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {name: layer for name, layer in layers.items() if name != "lm_head"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", MODELS)
def test_int8(kind, method, tmp_path):
    model_class, auto, fields = MODELS[kind]
    encoder_only = stack_config(**fields) if fields else None
    model = build(model_class, encoder_only or rl.RoFormerLiteSeq2SeqConfig.from_preset("tiny", vocab_size=99))
    model.save_pretrained(tmp_path / "float")
    quantised = auto.from_pretrained(tmp_path / "float", quantization_config=TorchAoConfig(METHODS[method]()))
    layers = linear_layers(quantised)
    assert layers.keys() == linear_layers(model).keys()
    assert {type(layer.weight).__name__ for layer in layers.values()} == {"Int8Tensor"}

    plain, found = logits_of(model), logits_of(quantised)
    assert 0 < (found - plain).norm() / plain.norm() < 0.1  # of weights that are random and large
    if method == "weights":  # a layer that took its weight from elsewhere would differ here
        rounded = copy.deepcopy(model)
        for name, layer in linear_layers(rounded).items():
            layer.weight.data = layers[name].weight.dequantize()
        scale = found.abs().max()
        torch.testing.assert_close(found / scale, logits_of(rounded) / scale, rtol=0, atol=1e-5)

    quantised.save_pretrained(tmp_path / "int8")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("int8", "float")]
    assert sizes[0] < 0.45 * sizes[1]
    reloaded = auto.from_pretrained(tmp_path / "int8")
    assert torch.equal(logits_of(reloaded), found)
