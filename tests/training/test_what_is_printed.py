"""A training prints lines of its progress and an honest summary."""

import os
import subprocess
from pathlib import Path

import pytest
from program import TINY, card_of, train, write_rows

from roformer_lite.training.results import predict_command

COLOURS = ["red", "green", "blue", "white"]


def trained(folder: Path, options: str, **shifts: int) -> dict:
    """Train a classifier and return its results.

    The label of a text is its colour. A shift makes the labels of a split wrong.
    """
    files = {}
    for split, shift in shifts.items():
        rows = []
        for number, colour in enumerate(COLOURS * 10):
            label = COLOURS[(number + shift) % 4]
            rows.append({"text": f"{colour} {colour}", "label": label})
        files[f"{split}_file"] = write_rows(folder / f"{split}.jsonl", rows)
    command = f"classify {TINY.replace('--disable_tqdm', '')} --learning_rate 3e-3 {options}"
    return train(command, files.pop("train_file"), folder / "m", **files)


def test_the_card_says_which_answer_is_joined(tmp_path):
    """Without validation data, encoder and baseline have the same weight."""
    results = trained(tmp_path, "--max_steps 1 --validation_fraction 0", train=0, test=0)
    (note,) = (note for note in results["notes"] if "joins" in note)
    assert note.count("(weight 0.50)") == 2 and note in card_of(tmp_path / "m")
    alone = results["parts"]["its encoder alone"]["test"]["accuracy"]
    assert f"| its encoder alone | {alone:.4g} |" in card_of(tmp_path / "m")


@pytest.mark.parametrize(
    "line", ["it's 5 %", "a question\tits answer", "100 %s\tit's \\n", "n\t$HOME `ls`"]
)
def test_the_printed_command_passes_the_line(line, tmp_path, monkeypatch):
    """It has no tab, which terminals copy as spaces."""
    folder = tmp_path / "my models"
    command = predict_command(line, str(folder))
    assert "\t" not in command
    program = tmp_path / "roformer-lite"
    program.write_text('#!/bin/sh\ncat\necho "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
    assert done.stdout == f"{line}\npredict {folder}\n"
