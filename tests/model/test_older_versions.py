"""What version 0.1.0 saved, a checkpoint and a bundle, opens and gives the numbers that it gave then."""

import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_roformer_lite import RoFormerLiteForConditionalGeneration
from hf_roformer_lite.cli import main

pytestmark = pytest.mark.slow

TEXTS = ["a house", "the dog and the houses"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(Path(__file__).parent / "data" / "version-0.1.0.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "version-0.1.0"


@pytest.fixture(scope="module")
def expected(saved) -> dict[str, torch.Tensor]:
    return load_file(saved / "expected.safetensors")


def inputs_of(expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: expected[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def test_checkpoint(saved, expected):
    model = AutoModelForSequenceClassification.from_pretrained(saved / "classifier")
    tokenizer = AutoTokenizer.from_pretrained(saved / "classifier")
    assert tokenizer(TEXTS, padding=True)["input_ids"] == expected["input_ids"].tolist()
    torch.testing.assert_close(model(**inputs_of(expected)).logits, expected["classes"], rtol=0, atol=1e-5)


@torch.no_grad()
def test_bundle_with_the_package(saved, expected, tmp_path):
    """Its own classes open it, without asking for trust, and write today's code beside it when they save it again."""
    model = AutoModelForSeq2SeqLM.from_pretrained(saved / "pair")
    assert type(model) is RoFormerLiteForConditionalGeneration
    inputs = inputs_of(expected)
    logits = model(**inputs, decoder_input_ids=inputs["input_ids"]).logits
    torch.testing.assert_close(logits, expected["logits"], rtol=0, atol=1e-5)
    assert model.generate(**inputs, num_beams=3, max_new_tokens=8).tolist() == expected["beams"].tolist()
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(saved / "pair").save_pretrained(tmp_path)
    assert open_elsewhere(tmp_path) == expected["beams"].tolist()


def test_bundle_written_again(saved, expected, tmp_path):
    """`roformer-lite bundle` replaces the code of the older version, and leaves none of it."""
    folder = tmp_path / "pair"
    shutil.copytree(saved / "pair", folder)
    (folder / "own.py").write_text("# the user's\n")
    assert main(["bundle", str(folder)]) == 0
    imported = {path.stem for path in (ROOT / "hf_roformer_lite" / "model").glob("*.py")} | {"own"}
    assert {path.stem for path in folder.glob("*.py")} <= imported
    assert (folder / "own.py").is_file()
    assert open_elsewhere(folder) == expected["beams"].tolist()


def test_bundle_without_the_package(saved, expected):
    assert open_elsewhere(saved / "pair") == expected["beams"].tolist()


def open_elsewhere(folder: Path) -> list[list[int]]:
    """What the bundle generates where this package is not installed."""
    code = f"""
import sys
sys.path += {[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]}
sys.modules["hf_roformer_lite"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained({str(folder)!r}, trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained({str(folder)!r}, trust_remote_code=True)
inputs = tokenizer({TEXTS}, padding=True, return_tensors="pt")
print(model.generate(**inputs, num_beams=3, max_new_tokens=8).tolist())
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
