"""Damaged models are refused before a training starts from them, only a head may be new, and
nothing is unpickled."""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from conftest import build, stack_config
from safetensors.torch import load_file, save_file

import hf_roformer_lite as rl
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE
from roformer_lite.cli import main

pytestmark = pytest.mark.slow

TEXTS = ["one two three four five six seven"] * 8


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A masked language model that RoFormer can express, with its tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    tokenizer = rl.RoFormerLiteTokenizer.train(TEXTS, vocab_size=300)
    fields = {
        **EXPRESSIBLE,
        "lm_head_transform": True,
        "lm_head_bias": True,
        "vocab_size": len(tokenizer),
    }
    build(rl.RoFormerLiteForMaskedLM, stack_config(**fields)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved, tmp_path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


def commands(model: Path, out: Path) -> dict[str, list[str]]:
    (out / "lines.txt").write_text("one two\n")
    (out / "rows.csv").write_text("text,label\n" + "one two,a\nthree four,b\n" * 8)
    files = ["--train_file", str(out / "rows.csv"), "--output_dir", str(out / "trained")]
    options = "--max_steps 1 --disable_tqdm true --use_cpu true --max_length 16".split()
    start = ["--model_name_or_path", str(model)]
    return {
        "predict": ["predict", str(model), "--input_file", str(out / "lines.txt")],
        "train": ["train", "classify", *files, *start, *options],
    }


def refusal(command: str, model: Path, out: Path, capsys) -> str:
    """Return the sentence with which a command ends."""
    assert main(commands(model, out)[command]) == 2
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if "error: " in line]
    assert captured.err.splitlines()[-1] == line and "Traceback" not in captured.err
    assert not (out / "trained").exists()
    return line


def change_tensors(model: Path, change) -> None:
    tensors = load_file(model / "model.safetensors")
    change(tensors)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


NAME = "model.layers.0.self_attn.q_proj.weight"
DAMAGES = {
    "missing": (lambda tensors: tensors.pop(NAME), NAME),
    "unknown": (lambda tensors: tensors.update({"model.strange": torch.ones(1)}), "model.strange"),
    "nan": (
        lambda tensors: tensors[NAME].fill_(float("nan")),
        rf"NaN or infinite numbers in {NAME}",
    ),
    "shape": (lambda tensors: tensors.update({NAME: tensors[NAME][:3].clone()}), NAME),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_training_starts_on_random_weights(damage, model, tmp_path, capsys):
    """Neither does one start on weights that are not numbers. (Other commands: see tests/fuzz.)"""
    change, message = DAMAGES[damage]
    change_tensors(model, change)
    assert re.search(f"{model}.*{message}", refusal("train", model, tmp_path, capsys))


def test_nothing_is_unpickled(model, tmp_path, capsys):
    """Only tensors are read from a file of torch, so that no code in it is run."""
    (model / "model.safetensors").unlink()
    torch.save({NAME: Bomb(tmp_path / "ran")}, model / "pytorch_model.bin")
    assert f"{model}/pytorch_model.bin: cannot be read" in refusal(
        "predict", model, tmp_path, capsys
    )
    assert not (tmp_path / "ran").exists()


class Bomb:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_the_tokenizer_of_a_larger_model(model, tmp_path, capsys):
    texts = ["many different words of text " * 3]
    rl.RoFormerLiteTokenizer.train(texts, vocab_size=320).save_pretrained(model)
    assert "the tokenizer has" in refusal("predict", model, tmp_path, capsys)


def test_only_the_head_may_be_new(model, tmp_path, capsys):
    """Fine-tuning from another task says in one line that the head is new."""
    assert main(commands(model, tmp_path)["train"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "new head" in line]
    assert len(lines) == 1 and "RoFormerLiteForMaskedLM has no head for classify" in lines[0]
    change_tensors(model, lambda tensors: tensors.pop(NAME))
    shutil.rmtree(tmp_path / "trained")
    assert NAME in refusal("train", model, tmp_path, capsys)


def test_fields_that_change_shapes_are_refused(model, tmp_path, capsys):
    """Layers for which the file has no weights would be random without a warning."""
    arguments = commands(model, tmp_path)["train"]
    assert main([*arguments, "--config", "num_hidden_layers=3", "layer_types=null"]) == 2
    message = "does not fit the requested configuration; give only --config fields"
    assert message in capsys.readouterr().err


def test_models_of_transformers(saved, tmp_path, capsys):
    """Models of transformers predict and are fine-tuned as ours are, with the same checks."""
    model = tmp_path / "bert"
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    config = transformers.BertConfig(vocab_size=300, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(model)
    transformers.AutoTokenizer.from_pretrained(saved).save_pretrained(model)
    arguments = commands(model, tmp_path)
    assert main(arguments["predict"]) == 0
    assert main(arguments["train"]) == 0
    message = "BertForMaskedLM has no head for classify; the training starts with a new head"
    assert message in capsys.readouterr().err
    name = "bert.encoder.layer.0.output.dense.weight"
    change_tensors(model, lambda tensors: tensors.pop(name))
    shutil.rmtree(tmp_path / "trained")
    for command in ("predict", "train"):
        assert name in refusal(command, model, tmp_path, capsys)
