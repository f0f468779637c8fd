"""Tests of saving and loading: in a fresh process, in shards, from disk, in int8, and resized."""

import json

import pytest
import torch
from conftest import assert_close, assert_equal, build, stack_config
from program import in_new_process
from safetensors.torch import load_file, save_file
from torchao.quantization import Int8WeightOnlyConfig
from toy_training import make_batch, make_model
from transformers import AutoModelForSeq2SeqLM, TorchAoConfig

import hf_roformer_lite as rl
from hf_roformer_lite.model.tokenization_roformer_lite import SPECIAL_TOKENS

AUTO_CLASSES = {
    "mlm": "MaskedLM",
    "causal": "CausalLM",
    "single": "SequenceClassification",
    "token": "TokenClassification",
    "question": "QuestionAnswering",
    "choice": "MultipleChoice",
    "seq2seq": "Seq2SeqLM",
}
LOAD_ELSEWHERE = """
# The package also works if it is imported after transformers.
from transformers import AutoModel, AutoTokenizer, pipeline
import hf_roformer_lite
import json, sys, torch, transformers
from safetensors.torch import load_file, save_file
for directory, auto, class_name in json.load(sys.stdin):
    part = getattr(transformers, auto).from_pretrained(directory)
    assert type(part).__name__ == class_name, (type(part), class_name)
    if auto == "AutoTokenizer":
        encoded = part("我们 the 龘 [SEP]", text_target="dog 我")
        outputs = {name: torch.tensor(ids) for name, ids in encoded.items()}
    else:
        outputs = {"loss": part(**load_file(directory + "/inputs.safetensors")).loss}
    save_file(outputs, directory + "/output.safetensors")
"""


def test_a_fresh_process(tmp_path):
    """Every head and each class of tokenizers gives exactly the same numbers in another process."""
    jobs = []
    expected = {}
    for kind, auto in AUTO_CLASSES.items():
        model = make_model(kind)
        inputs = make_batch(kind)
        folder = tmp_path / kind
        model.save_pretrained(folder)
        saved_names = load_file(folder / "model.safetensors").keys()
        assert saved_names.isdisjoint({"lm_head.weight", "rotary_emb.all_layers.inv_freq"})
        save_file(inputs, folder / "inputs.safetensors")
        expected[folder] = {"loss": model(**inputs).loss}
        jobs.append((str(folder), f"AutoModelFor{auto}", type(model).__name__))
    corpus = ["the quick brown fox, 我们老师", "the lazy dog 今天"] * 6
    tokens = dict.fromkeys([*SPECIAL_TOKENS, *"我们dogthe", "the", "dog", "我们"])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizers = [
        rl.RoFormerLiteTokenizer.train(corpus, vocab_size=500),
        rl.RoFormerLiteJiebaTokenizer(vocabulary),
    ]
    for number, tokenizer in enumerate(tokenizers):
        folder = tmp_path / f"tokenizer-{number}"
        tokenizer.save_pretrained(folder)
        encoded = tokenizer("我们 the 龘 [SEP]", text_target="dog 我")
        expected[folder] = {name: torch.tensor(ids) for name, ids in encoded.items()}
        jobs.append((str(folder), "AutoTokenizer", type(tokenizer).__name__))
    in_new_process("-c", LOAD_ELSEWHERE, input=json.dumps(jobs))
    for folder, outputs in expected.items():
        assert_equal(load_file(folder / "output.safetensors"), outputs)


def test_weights_on_the_disk(tmp_path):
    """With `device_map`, weights of a model in shards are read from the disk when needed."""
    whole = make_model("seq2seq")
    inputs = make_batch("seq2seq")
    whole.save_pretrained(tmp_path / "model", max_shard_size="20kB")
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 2
    room = sum(p.numel() * 4 for p in whole.parameters()) // 2
    model = type(whole).from_pretrained(
        tmp_path / "model",
        device_map="auto",
        max_memory={"cpu": room},
        offload_folder=tmp_path / "disk",
    )
    assert "disk" in model.hf_device_map.values()
    assert any(parameter.is_meta for parameter in model.parameters())
    with torch.no_grad():
        assert_close(model(**inputs).logits, whole(**inputs).logits, atol=1e-6)
    model.save_pretrained(tmp_path / "again")
    again = type(whole).from_pretrained(tmp_path / "again")
    assert_equal(again.state_dict(), whole.state_dict())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"share_embeddings": False},
        {"tie_word_embeddings": False},
        {"tie_word_embeddings": False, "share_embeddings": True},
    ],
)
def test_resized_embeddings_come_back(fields, tmp_path):
    """Both sides get the same size, whichever embeddings are tied."""
    config = rl.RoFormerLiteSeq2SeqConfig.from_preset(
        "tiny", vocab_size=50, num_hidden_layers=1, **fields
    )
    model = build(rl.RoFormerLiteForConditionalGeneration, config)
    ids = torch.tensor([[5, 6, 7, 3]])
    before = model(ids, decoder_input_ids=ids).logits
    model.resize_token_embeddings(60)
    assert model.config.encoder.vocab_size == model.config.decoder.vocab_size == 60
    new = torch.tensor([[55, 59]])
    after = model(torch.cat((ids, new), 1), decoder_input_ids=new).logits
    assert_close(model(ids, decoder_input_ids=ids).logits[..., :50], before)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert_close(loaded(torch.cat((ids, new), 1), decoder_input_ids=new).logits, after)


def test_half_precision_keeps_the_rotary_frequencies():
    model = build(rl.RoFormerLiteModel, stack_config())
    frequencies = model.rotary_emb["all_layers"].inv_freq.clone()
    assert torch.equal(model.bfloat16().rotary_emb["all_layers"].inv_freq, frequencies)
    assert model.embeddings.word_embeddings.weight.dtype == torch.bfloat16
    assert torch.equal(model.double().rotary_emb["all_layers"].inv_freq, frequencies)


@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
@torch.no_grad()
def test_int8(kind, tmp_path):
    """torchao rounds every matrix except the embeddings, and changes nothing else."""
    model = make_model(kind)
    batch = make_batch(kind)
    model.save_pretrained(tmp_path / "float")
    config = TorchAoConfig(Int8WeightOnlyConfig())
    quantised = type(model).from_pretrained(tmp_path / "float", quantization_config=config)
    for name, layer in quantised.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            assert type(layer.weight).__name__ == "Int8Tensor", name
            model.get_submodule(name).weight.copy_(layer.weight.dequantize())
    found = quantised.eval()(**batch).logits
    expected = model.eval()(**batch).logits
    scale = found.abs().max()
    assert_close(found / scale, expected / scale)
    quantised.save_pretrained(tmp_path / "int8")
    loaded = type(model).from_pretrained(tmp_path / "int8").eval()
    assert torch.equal(loaded(**batch).logits, found)
