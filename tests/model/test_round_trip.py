"""Saved here, loaded in a fresh process that only imports the package, in shards, on the disk, in int8, resized."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import VOCAB, build, stack_config
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchao.quantization import Int8WeightOnlyConfig
from toy_training import make_batch, make_model
from transformers import AutoModelForSeq2SeqLM, TorchAoConfig

import hf_roformer_lite as rl
from hf_roformer_lite.model.tokenization_roformer_lite import ALGORITHMS, SPECIAL_TOKENS

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
from transformers import AutoModel, AutoTokenizer, pipeline  # before the package: the order of imports is no matter
import hf_roformer_lite
import json, sys, torch, transformers
from safetensors.torch import load_file, save_file
for directory, auto, class_name in json.load(sys.stdin):
    part = getattr(transformers, auto).from_pretrained(directory)
    assert type(part).__name__ == class_name, (type(part), class_name)
    if auto == "AutoTokenizer":
        outputs = {name: torch.tensor(ids) for name, ids in part("我们 the 龘 [SEP]", text_target="dog 我").items()}
    else:
        with torch.no_grad():
            outputs = {"output": part(**load_file(directory + "/inputs.safetensors"))[0].contiguous()}
    save_file(outputs, directory + "/output.safetensors")
"""


def saved_model(auto: str, preset: str, folder: Path) -> dict[str, torch.Tensor]:
    """Save a model with the inputs of a call beside it; returns what the call gives."""
    is_pair = auto in PAIR_CLASSES and "pair" in folder.name
    config_class = rl.RoFormerLiteSeq2SeqConfig if is_pair else rl.RoFormerLiteConfig
    model_class = (PAIR_CLASSES if is_pair else STACK_CLASSES)[auto]
    model = build(model_class, config_class.from_preset(preset, vocab_size=VOCAB))
    model.save_pretrained(folder)
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "lm_head.weight" not in names and not any("rotary" in name for name in names)
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    if auto == "AutoModelForMultipleChoice":
        inputs = {name: value[None] for name, value in inputs.items()}
    if is_pair:
        assert len([name for name in names if "word_embeddings" in name]) == 1
        inputs["decoder_input_ids"] = IDS.flip(0)
    save_file(inputs, folder / "inputs.safetensors")
    with torch.no_grad():
        return {"output": model(**inputs)[0]}


@pytest.mark.parametrize(
    "presets", [("tiny", "mini"), pytest.param(("small", "base"), marks=pytest.mark.slow)], ids=" ".join
)
def test_a_fresh_process(presets, tmp_path):
    """Every class and preset, and every tokenizer: equal to the bit."""
    jobs, expected = [], {}
    for preset in presets:
        for kind, classes in (("stack", STACK_CLASSES), ("pair", PAIR_CLASSES)):
            for auto, model_class in classes.items():
                folder = tmp_path / f"{preset}-{kind}-{auto}"
                expected[folder] = saved_model(auto, preset, folder)
                jobs.append((str(folder), auto, model_class.__name__))
    corpus = ["the quick brown fox, 我们老师", "the lazy dog 今天"] * 6
    tokenizers = [
        rl.RoFormerLiteTokenizer.train(corpus, vocab_size=500, algorithm=algorithm, show_progress=False)
        for algorithm in ALGORITHMS
    ]
    vocabulary = [*SPECIAL_TOKENS, *"我们dogthe", "the", "dog", "我们"]
    tokenizers.append(rl.RoFormerLiteJiebaTokenizer({t: n for n, t in enumerate(dict.fromkeys(vocabulary))}))
    for number, tokenizer in enumerate(tokenizers):
        folder = tmp_path / f"tokenizer-{number}"
        tokenizer.save_pretrained(folder)
        encoded = tokenizer("我们 the 龘 [SEP]", text_target="dog 我")
        expected[folder] = {name: torch.tensor(ids) for name, ids in encoded.items()}
        jobs.append((str(folder), "AutoTokenizer", type(tokenizer).__name__))
    subprocess.run([sys.executable, "-c", LOAD_ELSEWHERE], input=json.dumps(jobs), text=True, check=True)
    for folder, outputs in expected.items():
        found = load_file(folder / "output.safetensors")
        assert found.keys() == outputs.keys() and all(torch.equal(found[name], outputs[name]) for name in found)


def test_weights_on_the_disk(tmp_path):
    """`device_map`, of a model in shards: weights that come from memory or disk when they are needed."""
    whole, inputs = make_model("seq2seq"), make_batch("seq2seq")
    whole.save_pretrained(tmp_path / "model", max_shard_size="20kB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2
    room = sum(p.numel() * 4 for p in whole.parameters()) // 2
    model = type(whole).from_pretrained(
        tmp_path / "model", device_map="auto", max_memory={"cpu": room}, offload_folder=tmp_path / "disk"
    )
    assert "disk" in model.hf_device_map.values() and any(p.is_meta for p in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits, whole(**inputs).logits, rtol=0, atol=1e-6)
    model.save_pretrained(tmp_path / "again")
    again = type(whole).from_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in whole.state_dict().items())


@pytest.mark.parametrize("fields", [{}, {"share_embeddings": False}, {"tie_word_embeddings": False}])
def test_resized_embeddings_come_back(fields, tmp_path):
    """Both sides get one size, whatever is tied."""
    config = rl.RoFormerLiteSeq2SeqConfig.from_preset("tiny", vocab_size=50, num_hidden_layers=1, **fields)
    model, ids = build(rl.RoFormerLiteForConditionalGeneration, config), torch.tensor([[5, 6, 7, 3]])
    before = model(ids, decoder_input_ids=ids).logits
    model.resize_token_embeddings(60)
    assert model.config.encoder.vocab_size == model.config.decoder.vocab_size == 60
    new = torch.tensor([[55, 59]])
    after = model(torch.cat((ids, new), 1), decoder_input_ids=new).logits
    torch.testing.assert_close(model(ids, decoder_input_ids=ids).logits[..., :50], before)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(torch.cat((ids, new), 1), decoder_input_ids=new).logits, after)


def test_half_precision_keeps_the_rotary_frequencies():
    model = build(rl.RoFormerLiteModel, stack_config())
    frequencies = model.rotary_emb.inv_freq.clone()
    assert torch.equal(model.bfloat16().rotary_emb.inv_freq, frequencies)
    assert model.embeddings.word_embeddings.weight.dtype == torch.bfloat16
    assert torch.equal(model.double().rotary_emb.inv_freq, frequencies)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@torch.no_grad()
def test_int8(kind, tmp_path):
    """By torchao: each matrix but that of the embeddings is rounded, and nothing else differs."""
    model, batch = make_model(kind), make_batch(kind)
    model.save_pretrained(tmp_path / "float")
    config = TorchAoConfig(Int8WeightOnlyConfig())
    quantised = type(model).from_pretrained(tmp_path / "float", quantization_config=config)
    for name, layer in quantised.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            assert type(layer.weight).__name__ == "Int8Tensor", name
            model.get_submodule(name).weight.copy_(layer.weight.dequantize())
    found, expected = (each.eval()(**batch).logits for each in (quantised, model))
    torch.testing.assert_close(found / found.abs().max(), expected / found.abs().max(), rtol=0, atol=1e-5)
    quantised.save_pretrained(tmp_path / "int8")
    assert torch.equal(type(model).from_pretrained(tmp_path / "int8").eval()(**batch).logits, found)
