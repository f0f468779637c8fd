"""Tests of bundles, folders that hold the code of a model as well as its weights."""

import os
import re
from pathlib import Path

import pytest
import torch
import transformers
from conftest import LIBRARIES, build, seq2seq_config, stack_config
from program import in_new_process, write_json

import hf_roformer_lite as rl

SESSION = Path(__file__).with_name("session_without_package.py")
TEXTS = ["a house", "今天天气非常好 and the dog"]
# This file is imported, and copied into a bundle, only for models that use it.
OPTIONAL = "reference_layers"


def code_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")}


def bundle(folder: Path, *parts) -> None:
    """Save models and tokenizers with their code."""
    for part in parts:
        part.save_pretrained(folder, remote_code=True)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> Path:
    """Make bundles in every possible way, and save the outputs of the installed classes."""
    folder = tmp_path_factory.mktemp("bundles")
    tokenizer = rl.RoFormerLiteTokenizer.train([*TEXTS, "the houses"] * 5, vocab_size=300)
    encoder = build(rl.RoFormerLiteForMaskedLM, stack_config(vocab_size=300))
    bundle(folder / "encoder", encoder, tokenizer)

    config = seq2seq_config()
    config.encoder.vocab_size = config.decoder.vocab_size = 300
    pair = build(rl.RoFormerLiteForConditionalGeneration, config)
    bundle(folder / "pair", pair, tokenizer)

    vocabulary = "[PAD] [UNK] [CLS] [SEP] [MASK] 今天 天气 非 常 好 dog a the".split()
    words = rl.RoFormerLiteJiebaTokenizer({token: i for i, token in enumerate(vocabulary)})
    bundle(folder / "words", words)

    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        answers = {
            "encoder": encoder(**inputs).logits.tolist(),
            "pair": pair.generate(**inputs, max_new_tokens=6, num_beams=2).tolist(),
            "words": words(TEXTS)["input_ids"],
        }
        config = stack_config("parallel-heads", vocab_size=300, num_labels=3)
        model = build(rl.RoFormerLiteForSequenceClassification, config)
        bundle(folder / OPTIONAL, model, tokenizer)
        answers[OPTIONAL] = model(**inputs).logits.tolist()
    write_json(folder / "expected.json", {"texts": TEXTS, "answers": answers})
    return folder


def test_only_what_is_needed_is_there(bundles):
    tokenizer = {"hub", "tokenization_roformer_lite"}
    assert code_in(bundles / "words") == tokenizer | {"tokenization_jieba"}
    assert OPTIONAL in code_in(bundles / OPTIONAL) - code_in(bundles / "encoder")
    assert code_in(bundles / "pair") - code_in(bundles / "encoder") == {
        "configuration_roformer_lite_seq2seq",
        "modeling_roformer_lite_seq2seq",
    }
    for path in bundles.glob("*/*.py"):
        code = path.read_text("utf-8")
        imported = set(re.findall(r"^\s*from \.(\S*) import", code, re.MULTILINE))
        # `from . import` would be an empty name here. transformers does not find such imports.
        assert imported <= code_in(path.parent), path
        packages = re.findall(r"^\s*(?:from|import) (\w+)", code, re.MULTILINE)
        assert "hf_roformer_lite" not in packages


def test_opens_without_the_package(bundles):
    """Without the package, bundles give the same numbers, and can be saved again."""
    # `python -S` starts without the folders of the libraries.
    environment = {**os.environ, "HF_MODULES_CACHE": str(bundles / "modules")}
    in_new_process("-I", "-S", SESSION, bundles, *LIBRARIES, env=environment)


def test_with_the_package_no_code_is_asked_for(bundles, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", pytest.fail)
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.get_cached_module_file",
        lambda *a, **k: pytest.fail("ran"),
    )
    parts = (
        ("AutoModelForTokenClassification", "encoder"),
        ("AutoModelForSeq2SeqLM", "pair"),
        ("AutoTokenizer", "words"),
    )
    for number, (auto, name) in enumerate(parts):
        part = getattr(transformers, auto).from_pretrained(bundles / name)
        assert type(part) is getattr(rl, type(part).__name__)
        part.save_pretrained(tmp_path / f"{number}")
        assert code_in(bundles / name) >= code_in(tmp_path / f"{number}") != set()
        # The second call does not repeat the option, because the tokenizer or model keeps it.
        for name, options in (
            (f"{number}-plain", {"remote_code": False}),
            (f"{number}-plain-again", {}),
        ):
            part.save_pretrained(tmp_path / name, **options)
            assert not code_in(tmp_path / name)
            for path in (tmp_path / name).glob("*config.json"):
                assert "auto_map" not in path.read_text()
