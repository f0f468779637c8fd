"""Saved here, loaded in a fresh process that only imports the package: equal outputs to the bit."""

import json
import subprocess
import sys

import pytest
import torch
from conftest import VOCAB, build, stack_config
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

import hf_roformer_lite as rl
from hf_roformer_lite.model.configuration_roformer_lite import PRESETS

STACK_CLASSES = {
    "AutoModel": rl.RoFormerLiteModel,
    "AutoModelForMaskedLM": rl.RoFormerLiteForMaskedLM,
    "AutoModelForCausalLM": rl.RoFormerLiteForCausalLM,
    "AutoModelForSequenceClassification": rl.RoFormerLiteForSequenceClassification,
    "AutoModelForTokenClassification": rl.RoFormerLiteForTokenClassification,
    "AutoModelForQuestionAnswering": rl.RoFormerLiteForQuestionAnswering,
    "AutoModelForMultipleChoice": rl.RoFormerLiteForMultipleChoice,
}
PAIR_CLASSES = {
    "AutoModel": rl.RoFormerLiteSeq2SeqModel,
    "AutoModelForSeq2SeqLM": rl.RoFormerLiteForConditionalGeneration,
}
IDS = torch.tensor([[2, 17, 33, 90, 3], [2, 45, 3, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])

LOAD_ELSEWHERE = """
import json, sys, torch, transformers
import hf_roformer_lite
from safetensors.torch import load_file, save_file
for directory, auto, class_name in json.loads(sys.argv[1]):
    model = getattr(transformers, auto).from_pretrained(directory)
    assert type(model).__name__ == class_name, (type(model), class_name)
    inputs = load_file(directory + "/inputs.safetensors")
    with torch.no_grad():
        output = model(**inputs)[0]
    save_file({"output": output.contiguous()}, directory + "/output.safetensors")
"""


def inputs_for(auto: str, is_pair: bool) -> dict[str, torch.Tensor]:
    if auto == "AutoModelForMultipleChoice":
        return {"input_ids": IDS[None], "attention_mask": MASK[None]}
    return {"input_ids": IDS, "attention_mask": MASK} | ({"decoder_input_ids": IDS.flip(0)} if is_pair else {})


@pytest.mark.parametrize(
    "preset", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("small", "base"))) for name in PRESETS]
)
def test_every_class_and_preset(preset, tmp_path):
    jobs, expected = [], {}
    for is_pair, classes in ((False, STACK_CLASSES), (True, PAIR_CLASSES)):
        for auto, model_class in classes.items():
            config_class = rl.RoFormerLiteSeq2SeqConfig if is_pair else rl.RoFormerLiteConfig
            model = build(model_class, config_class.from_preset(preset, vocab_size=VOCAB))
            directory = tmp_path / model_class.__name__
            model.save_pretrained(directory)
            inputs = inputs_for(auto, is_pair)
            save_file(inputs, directory / "inputs.safetensors")
            with torch.no_grad():
                expected[str(directory)] = model(**inputs)[0]
            jobs.append((str(directory), auto, model_class.__name__))
            weights = [path.name for path in directory.glob("*.safetensors") if path.name != "inputs.safetensors"]
            assert weights == ["model.safetensors"]
            with safe_open(directory / "model.safetensors", "pt") as file:
                names = set(file.keys())
            assert "lm_head.weight" not in names and not any("rotary" in name for name in names)
            if is_pair:
                assert len([name for name in names if "word_embeddings" in name]) == 1
            del model
    subprocess.run([sys.executable, "-c", LOAD_ELSEWHERE, json.dumps(jobs)], check=True)
    for directory, output in expected.items():
        assert torch.equal(load_file(f"{directory}/output.safetensors")["output"], output), directory


@pytest.mark.parametrize("tied", [True, False])
def test_sharded(tied, tmp_path):
    config = rl.RoFormerLiteSeq2SeqConfig.from_preset("tiny", vocab_size=500, tie_word_embeddings=tied)
    model = build(rl.RoFormerLiteForConditionalGeneration, config)
    model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    state, state_again = model.state_dict(), again.state_dict()
    assert state.keys() == state_again.keys()
    assert all(torch.equal(state[name], state_again[name]) for name in state)
    assert (again.lm_head.weight is again.model.decoder.embeddings.word_embeddings.weight) == tied
    assert (again.lm_head.weight is again.model.encoder.embeddings.word_embeddings.weight) == tied


def test_a_trained_encoder_becomes_the_encoder_of_a_pair(tmp_path):
    masked = build(rl.RoFormerLiteForMaskedLM, stack_config())
    masked.save_pretrained(tmp_path)
    encoder = rl.RoFormerLiteModel.from_pretrained(tmp_path)
    pair = rl.RoFormerLiteSeq2SeqModel(rl.RoFormerLiteSeq2SeqConfig(encoder=encoder.config, decoder=stack_config()))
    pair.encoder.load_state_dict(encoder.state_dict())
    assert torch.equal(pair.eval().encoder(IDS, MASK)[0], masked.model(IDS, MASK)[0])


def test_half_precision_keeps_the_rotary_frequencies():
    model = build(rl.RoFormerLiteModel, stack_config())
    frequencies = model.rotary_emb.inv_freq.clone()
    assert torch.equal(model.bfloat16().rotary_emb.inv_freq, frequencies)
    assert model.embeddings.word_embeddings.weight.dtype == torch.bfloat16
    assert torch.equal(model.double().rotary_emb.inv_freq, frequencies)
