"""`--help` and a mistake are answered without importing what takes seconds."""

import subprocess
import sys

import pytest

from roformer_lite.cli import COMMANDS

HEAVY = {"torch", "transformers", "hf_roformer_lite", "huggingface_hub", "numpy", "datasets"}
CODE = """
import sys
from roformer_lite.cli import main
try:
    status = main(sys.argv[1:])
except SystemExit as ended:
    status = ended.code
print(status, *sys.modules)
"""
MISTAKES = {
    "predict": ["nowhere/at/all", "--batch_size", "0"],
    "evaluate": ["model", "--dataset_name", "x", "--lable_column", "y"],
    "export": ["model", "out", "--format", "tflite"],
    "bundle": ["model"],
    "demo": ["--sed", "1"],
    "train": ["classify", "--train_file", "nowhere.csv", "--output_dir", "m"],
    "convert": ["model"],
}


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--help"], 0),
        *(([command, "--help"], 0) for command in COMMANDS),
        (["train", "classify", "--help"], 0),
        *(([command, *mistake], 2) for command, mistake in MISTAKES.items()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nothing_heavy_is_imported(arguments, status):
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, timeout=60)
    ended, *modules = done.stdout.splitlines()[-1].split()
    assert ended == str(status), done.stderr
    assert not HEAVY & set(modules)
    assert "usage: " in done.stdout if status == 0 else done.stderr.startswith("roformer-lite ")
