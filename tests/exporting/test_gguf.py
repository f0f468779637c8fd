"""Encoders for llama.cpp have the ids and the embeddings of the original for lines of text, and a
model that llama.cpp cannot run is refused."""

import json
from copy import deepcopy
from pathlib import Path

import gguf
import httpx
import numpy as np
import pytest
import torch
import xllamacpp
from conftest import build, data_beside, noisy, stack_config

import hf_roformer_lite as rl
from hf_roformer_lite.conversion import ConversionError
from hf_roformer_lite.conversion.gguf import export_gguf

LINES = [
    "It is a truth universally acknowledged, that a single man in possession of a good fortune,",
    "“My dear Mr. Bennet,” said his lady, “have you heard that Netherfield Park is let at last?”",
    "Café, naïve, Straße, ŁÓDŹ; e-mail: a_b@c.org – 3.14 % of 1,000 (about $31)…",
    "第一回　甄士隐梦幻识通灵，贾雨村风尘怀闺秀。",
    "此開卷第一回也。作者自云：曾歷過一番夢幻之後，abc123，故將真事隱去。",
    "東京で３時に…\u3000ｶﾀｶﾅ ελληνικά Привет",
    "two  spaces\tand a tab",
    # Diacritics as characters of their own.
    "cafe\u0301 Hokkaido\u0304 E\u0301ire",
    "not in the vocabulary: 한국어 Zyxwvq ℵ 🙂 end",
]
FILE = data_beside(__file__)
KINDS: dict[str, dict] = FILE["kinds"]


@pytest.fixture(scope="module", params=[True, False], ids=["lower", "cased"])
def tokenizer(request) -> rl.RoFormerLiteTokenizer:
    options = {"algorithm": "wordpiece", "lowercase": request.param, "show_progress": False}
    return rl.RoFormerLiteTokenizer.train(LINES[:-1] * 3, vocab_size=400, **options)


def model_of(kind: str, tokenizer, **fields):
    sizes = {
        "vocab_size": len(tokenizer) + 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
    }
    config = stack_config(**{**sizes, **KINDS[kind], **fields})
    return noisy(build(rl.RoFormerLiteForMaskedLM, config))


def server_of(directory: Path) -> xllamacpp.Server:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(directory / "model.gguf")
    parameters.embedding = True
    parameters.n_gpu_layers = 0
    parameters.n_ctx = 512
    parameters.warmup = False
    # Flash attention would round to half precision.
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.cpuparams.n_threads = 1
    return xllamacpp.Server(parameters)


def embed(server: xllamacpp.Server, text: str) -> np.ndarray:
    reply = server.handle_embeddings({"input": [text], "encoding_format": "float"})
    if isinstance(reply, (str, bytes)):
        reply = json.loads(reply)
    return np.array(reply["data"][0]["embedding"])


def ids_of(server: xllamacpp.Server, text: str) -> list[int]:
    request = {"content": text, "add_special": True, "parse_special": True}
    reply = httpx.post(f"{server.listening_address}/tokenize", json=request, timeout=60)
    return reply.json()["tokens"]


def expected_embedding(model, tokenizer, text: str) -> np.ndarray:
    with torch.no_grad():
        states = model.model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
    pooled = states[0] if model.config.classifier_pooling == "cls" else states.mean(0)
    return (pooled / pooled.norm()).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_and_ids(kind, tokenizer, tmp_path):
    model = model_of(kind, tokenizer)
    assert export_gguf(model, tokenizer, tmp_path) == kind
    server = server_of(tmp_path)
    for line in LINES:
        assert ids_of(server, line) == tokenizer(line)["input_ids"], line
    for line in LINES[:4]:
        assert embed(server, line) @ expected_embedding(model, tokenizer, line) >= 0.99999, line


def test_quantized(tokenizer, tmp_path):
    """The file holds each weight within half a step of its block.

    Processors multiply int8 with different exactness (cosines from 0.9988 to 0.9998 were seen), so
    each served vector must only be nearest to the exact vector of its own line.
    """
    model = model_of("eurobert", tokenizer)
    for name in (None, "q8_0"):
        (tmp_path / str(name)).mkdir()
        export_gguf(model, tokenizer, tmp_path / str(name), quantization=name)
    exact = gguf.GGUFReader(tmp_path / "None" / "model.gguf").tensors
    quantized = gguf.GGUFReader(tmp_path / "q8_0" / "model.gguf").tensors
    assert sum(tensor.tensor_type == gguf.GGMLQuantizationType.Q8_0 for tensor in quantized) > 10
    for expected, tensor in zip(exact, quantized, strict=True):
        assert expected.name == tensor.name
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(-1, 32)
        blocks = np.asarray(expected.data, np.float32).reshape(-1, 32)
        # The step is stored in half precision, so it is rounded to 11 bits.
        step = np.abs(blocks).max(axis=1, keepdims=True) / 127
        assert (np.abs(values - blocks) <= step * (0.5 + 127 / 2048)).all(), tensor.name
    server = server_of(tmp_path / "q8_0")
    expected = np.stack([expected_embedding(model, tokenizer, line) for line in LINES])
    found = np.stack([embed(server, line) for line in LINES])
    assert ((expected @ found.T).argmax(axis=0) == np.arange(len(LINES))).all()


@pytest.mark.parametrize("case", FILE["refused"], ids=lambda case: case["message"])
def test_refusals(case, tokenizer, tmp_path):
    model = model_of(case["kind"], tokenizer, **case["fields"])
    with pytest.raises(ConversionError, match=case["message"]):
        export_gguf(model, tokenizer, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("part", "setting", "value"),
    [
        ("model", "max_input_chars_per_word", 99),
        ("normalizer", "clean_text", False),
        ("normalizer", "handle_chinese_chars", False),
    ],
)
def test_refused_settings_of_tokenizers(part, setting, value, tokenizer, tmp_path):
    model = build(rl.RoFormerLiteModel, stack_config(vocab_size=400, **KINDS["eurobert"]))
    other = deepcopy(tokenizer)
    setattr(getattr(other.backend_tokenizer, part), setting, value)
    with pytest.raises(ConversionError, match=f"{setting}={value}"):
        export_gguf(model, other, tmp_path)
    more = deepcopy(tokenizer)
    more.add_tokens(["c++"])
    with pytest.raises(ConversionError, match=r"'c\+\+' was added"):
        export_gguf(model, more, tmp_path)
    assert not any(tmp_path.iterdir())


def test_refused_tokenizers_and_models(tokenizer, tmp_path):
    fields = {"vocab_size": 400, **KINDS["eurobert"]}
    model = build(rl.RoFormerLiteModel, stack_config(**fields))
    for lines, algorithm, message in (
        (LINES, "bpe", "of the kind BPE"),
        (["한국어 문장"] * 9, "wordpiece", "'ᄀ'.*Korean"),
        (["पानी का घर"] * 9, "wordpiece", "'ा'.*vowel signs"),
    ):
        other = rl.RoFormerLiteTokenizer.train(
            lines, vocab_size=400, algorithm=algorithm, show_progress=False
        )
        with pytest.raises(ConversionError, match=message):
            export_gguf(model, other, tmp_path)
    causal = build(rl.RoFormerLiteForCausalLM, stack_config(is_decoder=True, **fields))
    classifier = build(rl.RoFormerLiteForSequenceClassification, stack_config(**fields))
    for refused in (causal, classifier):
        with pytest.raises(ConversionError, match=f"{type(refused).__name__}: "):
            export_gguf(refused, tokenizer, tmp_path)
    assert not any(tmp_path.iterdir())
