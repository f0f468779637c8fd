"""Damaged saved models: every command ends in one sentence that names the file, or in a right result."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import build, seq2seq_config, stack_config
from damage import Damage, bit_flips, field_damage, header_damage, not_json, tensor_damage, truncations
from transformers.utils.logging import disable_progress_bar

import hf_roformer_lite as rl
from roformer_lite.cli import main

pytestmark = pytest.mark.slow

LINES = ["one two three", "", "four five"]
TEXTS = ["one two three four five six seven"] * 8
MODELS = {
    "seq2seq": (rl.RoFormerLiteForConditionalGeneration, {}),
    "mlm": (rl.RoFormerLiteForMaskedLM, {}),
    "causal": (rl.RoFormerLiteForCausalLM, {}),
    "classify": (
        rl.RoFormerLiteForSequenceClassification,
        {"pairs": False, "label_separator": ",", "label_column": "label", "max_length": 16},
    ),
    "tag": (rl.RoFormerLiteForTokenClassification, {"unit": "words"}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A directory for every task, with all files that a training leaves and `predict` reads."""
    disable_progress_bar()
    folder = tmp_path_factory.mktemp("saved")
    tokenizer = rl.RoFormerLiteTokenizer.train(TEXTS, vocab_size=300)
    for task, (model_class, settings) in MODELS.items():
        fields = {"vocab_size": len(tokenizer), "num_hidden_layers": 1, "hidden_size": 16}
        config = stack_config(**fields)
        if task == "seq2seq":
            config = seq2seq_config()
            config = type(config)(encoder=stack_config(**fields), decoder=stack_config(**fields))
        model = build(model_class, config)
        if model.can_generate():
            model.generation_config.max_length = 6
        model.save_pretrained(folder / task)
        tokenizer.save_pretrained(folder / task)
        (folder / task / "results.json").write_text(json.dumps({"task": task, "settings": settings}))
    (folder / "lines.txt").write_text("".join(line + "\n" for line in LINES))
    return folder


def predict(folder: Path, model: Path, capsys: pytest.CaptureFixture) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["predict", str(model), "--input_file", str(folder / "lines.txt"), "--device", "cpu"])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def check(folder: Path, task: str, damages: list[tuple[str, Damage]], tmp_path: Path, capsys, same: bool) -> list[str]:
    """Predict with every damage; returns what was refused.

    Args:
        same: Whether a result, where there is one, must be that of the undamaged model.
    """
    _, expected, _ = predict(folder, folder / task, capsys)
    assert expected.count("\n") == len(LINES)
    refused, wrong = [], []
    for number, (name, damage) in enumerate(damages):
        copy = tmp_path / str(number)
        shutil.copytree(folder / task, copy)
        damage(copy)
        try:
            status, output, errors = predict(folder, copy, capsys)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            wrong.append(f"{name}: {type(error).__name__}: {error}")
            continue
        if status == 2:
            refused.append(name)
            if "roformer-lite predict: error: " not in errors.splitlines()[-1] or str(copy) not in errors:
                wrong.append(f"{name}: {errors}")
        elif status or output.count("\n") != len(LINES) or (same and output != expected):
            wrong.append(f"{name}: {status} {output!r} {errors}")
        shutil.rmtree(copy)
    assert not wrong, "\n".join(wrong)
    return refused


def every_damage(file: str, fields: dict[str, Any], each: int, seed: int) -> list[tuple[str, Damage]]:
    """Of a JSON file: cut off, other contents, and wrong `fields`."""
    return [*truncations(file), *not_json(file), *field_damage(file, fields, each, seed)]


@pytest.mark.parametrize("task", MODELS)
def test_weights(task, saved, tmp_path, capsys):
    damages = [*truncations("model.safetensors"), *header_damage(20, seed=1), *tensor_damage(seed=2)]
    refused = check(saved, task, damages, tmp_path, capsys, same=True)
    assert {name for name, _ in tensor_damage(0)} <= set(refused)
    assert len(refused) > 0.8 * len(damages)


GENERATION = {"num_beams": 2, "temperature": 1.0, "top_p": 1.0, "cache_implementation": None, "do_sample": False}
GENERATION |= {"num_return_sequences": 1, "min_length": 0}


@pytest.mark.parametrize(
    ("task", "file", "each", "seed", "more"),
    [
        ("seq2seq", "config.json", 1, 3, {}),
        ("classify", "config.json", 1, 3, {}),
        ("causal", "tokenizer.json", 3, 4, {}),
        ("tag", "tokenizer_config.json", 3, 4, {}),
        ("seq2seq", "generation_config.json", 5, 5, GENERATION),
        ("causal", "generation_config.json", 5, 5, GENERATION),
        ("classify", "results.json", 9, 6, {}),
    ],
)
def test_json_files(task, file, each, seed, more, saved, tmp_path, capsys):
    fields = json.loads((saved / task / file).read_text()) | more
    (saved / task / file).write_text(json.dumps(fields))
    damages = every_damage(file, fields, each, seed)
    damages = [(name, damage) for name, damage in damages if "pairs=" not in name]  # right for lines with a tab
    refused = check(saved, task, damages, tmp_path, capsys, same=False)
    if file == "generation_config.json":
        assert {name for name, _ in [*truncations(file), *not_json(file)]} <= set(refused)


TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"一二三四五六七", "one", "two", "three", "##r", "f"]


@pytest.mark.parametrize(
    ("task", "file", "number"),
    [
        ("tag", "tokenizer.json", 40),
        ("tag", "tokenizer_config.json", 30),
        ("mlm", "special_tokens_map.json", 20),
        ("mlm", "vocab.txt", 30),
    ],
)
def test_bit_flips_in_tokenizers(task, file, number, saved, tmp_path, capsys):
    """A vocabulary that is sound but another one cannot be told from the right one; everything else is refused."""
    shutil.copytree(saved / task, tmp_path / task)
    shutil.copy(saved / "lines.txt", tmp_path)
    if file == "special_tokens_map.json":  # as older versions of transformers write it
        names = {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "mask", "unk")}
        (tmp_path / task / file).write_text(json.dumps(names))
    if file == "vocab.txt":
        tokenizer = rl.RoFormerLiteJiebaTokenizer({token: number for number, token in enumerate(TOKENS)})
        tokenizer.save_pretrained(tmp_path / task)
        tokenizer.save_vocabulary(tmp_path / task)
        (tmp_path / task / "tokenizer.json").unlink()
    check(tmp_path, task, list(bit_flips(file, number, seed=7)), tmp_path / "copies", capsys, same=False)
