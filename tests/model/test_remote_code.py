"""Tests of bundles, folders that hold the code of a model as well as its weights."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from conftest import build, seq2seq_config, stack_config

import hf_roformer_lite as rl
from roformer_lite.cli import main

SESSION = Path(__file__).with_name("session_without_package.py")
TEXTS = ["a house", "今天天气非常好 and the dog"]
STACK = {
    "attention",
    "batch",
    "compatibility",
    "configuration_roformer_lite",
    "groups",
    "heads_roformer_lite",
    "hub",
    "layers",
    "masks",
    "losses",
    "modeling_roformer_lite",
    "outputs",
    "parallel",
    "plan",
    "serving",
}
PAIR = STACK | {"modeling_roformer_lite_seq2seq"}
TOKENIZER = {"hub", "tokenization_roformer_lite"}
# These files are imported, and copied into a bundle, only for models that use them.
OPTIONAL = {
    "reference_layers": {"layer_style": "parallel_heads"},
}


def site_packages() -> list[str]:
    """List the folders of the libraries, for a process that starts without them (`python -S`)."""
    return [path for path in sys.path if path.endswith("site-packages")]


def code_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory) -> Path:
    """Make bundles in every possible way, and save the outputs of the installed classes."""
    folder = tmp_path_factory.mktemp("bundles")
    tokenizer = rl.RoFormerLiteTokenizer.train(
        [*TEXTS, "the houses"] * 5, vocab_size=300, show_progress=False
    )
    encoder = build(rl.RoFormerLiteForMaskedLM, stack_config(vocab_size=300))
    encoder.save_pretrained(folder / "encoder", remote_code=True)
    tokenizer.save_pretrained(folder / "encoder", remote_code=True)

    config = seq2seq_config()
    config.encoder.vocab_size = config.decoder.vocab_size = 300
    pair = build(rl.RoFormerLiteForConditionalGeneration, config)
    plain_folder = tmp_path_factory.mktemp("plain")
    pair.save_pretrained(plain_folder)
    tokenizer.remote_code = False
    tokenizer.save_pretrained(plain_folder)
    (plain_folder / "results.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in plain_folder.iterdir()}
    (plain_folder / ".git").mkdir()
    assert main(["bundle", str(plain_folder), str(folder / "pair")]) == 0
    files = [path for path in plain_folder.iterdir() if path.is_file()]
    assert {path.name: path.read_bytes() for path in files} == before
    for name, auto_class in (
        ("config.json", "AutoConfig"),
        ("tokenizer_config.json", "AutoTokenizer"),
    ):
        after = json.loads((folder / "pair" / name).read_text())
        assert auto_class in after["auto_map"]
        assert {**json.loads(before[name]), "auto_map": after["auto_map"]} == after
    assert {path.name for path in (folder / "pair").iterdir()} >= {*before, "README.md"}
    assert not (folder / "pair" / ".git").exists()

    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "今天",
        "天气",
        "非",
        "常",
        "好",
        "dog",
        "a",
        "the",
    ]
    words = rl.RoFormerLiteJiebaTokenizer({token: i for i, token in enumerate(vocabulary)})
    words.save_pretrained(folder / "words", remote_code=True)

    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        answers = {
            "encoder": encoder(**inputs).logits.tolist(),
            "pair": pair.generate(**inputs, max_new_tokens=6, num_beams=2).tolist(),
            "words": words(TEXTS)["input_ids"],
        }
        for file, fields in OPTIONAL.items():
            model = build(
                rl.RoFormerLiteForSequenceClassification,
                stack_config(vocab_size=300, num_labels=3, **fields),
            )
            for part in (model, tokenizer):
                part.save_pretrained(folder / file, remote_code=True)
            answers[file] = model(**inputs).logits.tolist()
    (folder / "expected.json").write_text(json.dumps({"texts": TEXTS, "answers": answers}), "utf-8")
    return folder


def test_only_what_is_needed_is_there(bundles):
    assert code_in(bundles / "encoder") == STACK | TOKENIZER
    assert code_in(bundles / "pair") == PAIR | TOKENIZER
    assert code_in(bundles / "words") == TOKENIZER | {"tokenization_jieba"}
    for file in OPTIONAL:
        needed = STACK | {file}
        assert code_in(bundles / file) & {*STACK, *OPTIONAL} == needed
        config = transformers.AutoConfig.from_pretrained(bundles / file)
        config.layer_style = "standard"
        assert not {*OPTIONAL} & {path.partition(".")[0] for path in config.classes().values()}
    for path in bundles.glob("*/*.py"):
        code = path.read_text("utf-8")
        imported = set(re.findall(r"^\s*from \.(\S*) import", code, re.MULTILINE))
        # `from . import` would be an empty name here. transformers does not find such imports.
        assert imported <= code_in(path.parent), path
        packages = re.findall(r"^\s*(?:from|import) (\w+)", code, re.MULTILINE)
        assert "hf_roformer_lite" not in packages


@pytest.mark.parametrize("name", ["encoder", "pair"])
def test_every_auto_class_is_named(bundles, name):
    """The map of Auto classes has exactly those that the package registers."""
    config = transformers.AutoConfig.from_pretrained(bundles / name)
    registered = {"AutoConfig": type(config).__name__}
    auto_models = [auto for auto in dir(transformers) if auto.startswith("AutoModel")]
    for auto in auto_models:
        try:
            model = getattr(transformers, auto).from_config(config)
        except ValueError:
            # This Auto class is for heads that the model does not have.
            continue
        registered[auto] = type(model).__name__
    assert len(registered) > 2
    assert {auto: path.partition(".")[2] for auto, path in config.auto_map.items()} == registered


def test_opens_without_the_package(bundles):
    """Without the package, bundles give the same numbers, and can be saved again."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", SESSION, "saved", bundles, *site_packages()],
        env={**os.environ, "HF_MODULES_CACHE": str(bundles / "modules")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_with_the_package_no_code_is_asked_for(bundles, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.get_cached_module_file",
        lambda *a, **k: pytest.fail("ran"),
    )
    encoder = transformers.AutoModelForTokenClassification.from_pretrained(bundles / "encoder")
    pair = transformers.AutoModelForSeq2SeqLM.from_pretrained(bundles / "pair")
    words = transformers.AutoTokenizer.from_pretrained(bundles / "words")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundles / "pair")
    assert [type(part) for part in (pair, words, tokenizer)] == [
        rl.RoFormerLiteForConditionalGeneration,
        rl.RoFormerLiteJiebaTokenizer,
        rl.RoFormerLiteTokenizer,
    ]
    parts_with_code = [
        (encoder, STACK),
        (pair, PAIR),
        (words, TOKENIZER | {"tokenization_jieba"}),
        (tokenizer, TOKENIZER),
    ]
    for number, (part, code) in enumerate(parts_with_code):
        part.save_pretrained(tmp_path / f"{number}")
        assert code_in(tmp_path / f"{number}") == code
        # The second call does not repeat the option, because the tokenizer or model keeps it.
        for name, options in (
            (f"{number}-plain", {"remote_code": False}),
            (f"{number}-plain-again", {}),
        ):
            part.save_pretrained(tmp_path / name, **options)
            assert not code_in(tmp_path / name)
            for path in (tmp_path / name).glob("*config.json"):
                assert "auto_map" not in path.read_text()


def test_the_card_of_a_bundle_says_how_it_is_opened(bundles, tmp_path):
    """The card of a training is kept, and the section on bundles is added to it once."""
    card = (bundles / "pair" / "README.md").read_text("utf-8")
    for auto in ("AutoModelForSeq2SeqLM", "AutoTokenizer"):
        assert f'{auto}.from_pretrained("pair", trust_remote_code=True)' in card
    source = tmp_path / "model"
    build(rl.RoFormerLiteForMaskedLM, stack_config()).save_pretrained(source)
    (source / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    for before, after in (("model", "once"), ("once", "twice")):
        assert main(["bundle", str(tmp_path / before), str(tmp_path / after)]) == 0
    card = (tmp_path / "once" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n---\n\n# Mine\n\n## Use without the package\n")
    assert (tmp_path / "twice" / "README.md").read_text() == card


def test_command_refuses_what_is_no_model(bundles, tmp_path, capsys):
    transformers.BertConfig().save_pretrained(tmp_path / "bert")
    assert main(["bundle", str(tmp_path / "bert"), str(tmp_path / "out")]) == 2
    assert "bert holds neither a model nor a tokenizer" in capsys.readouterr().err
    config = json.loads((bundles / "encoder" / "config.json").read_text())
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "config.json").write_text(json.dumps({**config, "architectures": ["os"]}))
    (tmp_path / "unknown").mkdir()
    (tmp_path / "unknown" / "config.json").write_text('{"model_type": "unheard_of"}')
    for source, out, message in (
        ("code", "out", "architectures"),
        ("code", "bert", "exists already"),
        ("nothing", "out", "there is no such directory"),
        ("bert", "bert/out", "choose another directory"),
        ("unknown", "out", "config.json: cannot be loaded"),
    ):
        assert main(["bundle", str(tmp_path / source), str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
