"""The tutorials run unchanged, at a small size, on data that the tests make."""

import re
import runpy
import sys

import pytest
import torch
from conftest import ROOT
from program import in_new_process
from saved_models import save_bert
from toy_training import date_lines
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BertForMaskedLM

from roformer_lite.cli import main

TUTORIALS = ROOT / "tutorials"
# This program runs a script in a process that can import none of these three packages.
ALONE = """
import runpy, sys
sys.modules |= dict.fromkeys(("torch", "transformers", "hf_roformer_lite"))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def run(monkeypatch, capsys, current_folder):
    """A function that runs a tutorial in an empty directory, and returns its printed text."""

    def run(name: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *options])
        capsys.readouterr()
        runpy.run_path(str(TUTORIALS / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_train_from_scratch(run, tmp_path):
    paragraphs = [f"one two three {'four ' * (n % 5)}\n\n" for n in range(400)]
    (tmp_path / "book.txt").write_text("".join(paragraphs), "utf-8")
    options = [*"--size tiny --vocab_size 280 --epochs 4 --prompt".split(), "one two"]
    out = run("train_from_scratch.py", "book.txt", "model", *options)
    assert out.rstrip().splitlines()[-1].startswith("one two three")
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_finetune_converted(run, tmp_path):
    save_bert(tmp_path / "bert", "a dull fine film".split(), BertForMaskedLM)
    rows = "a dull film,bad\na fine film,good\n" * 100
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows, "utf-8")
    options = ["--learning_rate", "3e-3"]
    out = run("finetune_converted.py", "bert", "reviews.csv", "classifier", *options)
    assert "accuracy 1.000" in out and "'label': " in out


def test_long_text(run, tmp_path):
    documents = [
        " ".join(f"{n} and {n + 1}" for n in range(length)) for length in (5, 9, 300, 40) * 4
    ]
    (tmp_path / "books.txt").write_text("\n\n".join(documents), "utf-8")
    options = "--size tiny --vocab_size 400 --window 8 --epochs 1 --longest 1000".split()
    out = run("long_text.py", "books.txt", "model", *options)
    lengths = re.search(r"16 documents of (\d+) to (\d+) tokens", out)
    assert int(lengths[1]) < 40 and int(lengths[2]) > 600
    assert f"long, and seven short: (8, {lengths[2]})" in out


@pytest.mark.slow
def test_translate_and_its_exports(run, tmp_path):
    """Both engines return the tokens of `generate`, in processes that can import neither torch nor
    transformers."""
    table = date_lines()
    sources = [line.partition("\t")[0] for line in table[1:]]
    (tmp_path / "pairs.tsv").write_text("".join(table), "utf-8")
    options = "--size tiny --vocab_size 400 --epochs 12".split()
    out = run("translate.py", "pairs.tsv", "translator", *options, "--test", sources[0])
    assert re.search(r"BLEU \d+\.\d on 30 unseen pairs", out) and f"{sources[0]} → " in out

    lines = [
        sources[0],
        "x",
        sources[1] + ", " + sources[2],
        *sources[3:9],
    ]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "translator")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "translator")
    inputs = tokenizer(lines, padding=True, return_tensors="pt")
    with torch.inference_mode():
        outputs = model.generate(
            **inputs, num_beams=1, do_sample=False, max_new_tokens=20, max_length=None
        )
    expected = tokenizer.batch_decode(outputs, skip_special_tokens=True)
    assert len(set(expected)) > 1
    for format, script in (
        ("onnx", "translate_onnx.py"),
        ("ctranslate2", "translate_ctranslate2.py"),
    ):
        folders = [str(tmp_path / "translator"), str(tmp_path / format)]
        assert main(["export", *folders, "--format", format]) == 0
        command = ["-c", ALONE, TUTORIALS / script, format, "--max_new_tokens", "20"]
        text = "\n".join(lines) + "\n"
        done = in_new_process(*command, timeout=120, cwd=tmp_path, input=text)
        assert done.stdout.splitlines() == expected, format
