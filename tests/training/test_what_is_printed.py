"""A training prints lines of its progress and an honest summary."""

import os
import re
import subprocess

import pytest
from program import COLOURS, TINY, train, write_rows

from roformer_lite.training.results import predict_command


def test_lines_of_losses_and_of_evaluations(tmp_path, capsys):
    rows = [{"text": f"{colour} {colour}", "label": colour} for colour in COLOURS * 10]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    # The metrics read the logits alone, although the model returns its hidden states as well.
    command = f"classify {TINY} --config output_hidden_states=true --num_train_epochs 3"
    train(f"{command} --join_baseline false", data, tmp_path / "m", validation_file=data)
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("Epoch")]
    assert all(re.search(r": .*loss \d", line) for line in lines)
    evaluations = [line for line in lines if "validation loss" in line]
    assert len(evaluations) == 3 < len(lines)
    assert all("accuracy" in line for line in evaluations)
    for noise in ("{", "it/s", "%|", "examples/s"):
        assert noise not in said


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
