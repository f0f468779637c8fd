"""A training prints lines of its progress and an honest summary."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from roformer_lite.cli import main
from roformer_lite.training.results import predict_command, print_summary

COLOURS = ["red", "green", "blue", "white"]
OPTIONS = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 num_hidden_layers=1 --vocab_size 300 "
    "--learning_rate 3e-3 --use_cpu"
)


def train(folder: Path, options: str, **shifts: int) -> dict:
    """Train a classifier and return its results.

    The label of a text is its colour. A shift makes the labels of a split wrong.
    """
    command = ["train", "classify", "--output_dir", str(folder / "m"), *OPTIONS.split()]
    for split, shift in shifts.items():
        rows = [
            f"{colour} {colour}\t{COLOURS[(number + shift) % 4]}"
            for number, colour in enumerate(COLOURS * 10)
        ]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
        command += [f"--{split}_file", str(folder / f"{split}.tsv")]
    assert main([*command, *options.split()]) == 0
    return json.loads((folder / "m" / "results.json").read_text())


@pytest.mark.parametrize("bars", ["", " --disable_tqdm"])
def test_lines_of_losses_and_of_evaluations(tmp_path, capsys, bars):
    """Two batches make an epoch."""
    train(tmp_path, f"--num_train_epochs 3 --join_baseline false{bars}", train=0, validation=0)
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("Epoch")]
    assert all(re.search(r": .*loss \d", line) for line in lines)
    losses = [line for line in lines if "validation loss" not in line]
    assert [line.split("/")[0] for line in losses[-2:]] == ["Epoch 2.5", "Epoch 3"]
    assert all(line.endswith(" left") for line in losses)
    evaluations = [line for line in lines if "validation loss" in line]
    assert [line.split(":")[0] for line in evaluations] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]
    assert all("accuracy" in line for line in evaluations)
    for noise in ("{", "it/s", "%|", "examples/s"):
        assert noise not in said


@pytest.mark.parametrize(
    ("options", "evaluated"),
    [("eval_strategy=no", []), ("eval_strategy=steps eval_steps=4", [4, 8, 12])],
)
def test_steps_and_evaluations(tmp_path, capsys, options, evaluated):
    common = "--max_steps 12 --training_arguments save_strategy=no "
    train(tmp_path, common + options, train=0, validation=0)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Step")]
    losses = [line.split(":")[0] for line in said if "validation loss" not in line]
    assert losses == [f"Step {step}/12" for step in range(1, 13)]
    lines = [line.split(":")[0] for line in said if "validation loss" in line]
    assert lines == [f"Step {step}/12" for step in evaluated]


def test_the_card_says_which_answer_is_joined(tmp_path):
    """Without validation data, encoder and baseline have the same weight."""
    results = train(tmp_path, "--max_steps 1 --validation_fraction 0", train=0, test=0)
    (note,) = (note for note in results["notes"] if "joins" in note)
    assert note.count("(weight 0.50)") == 2
    assert "AutoModelForSequenceClassification" in note and "the encoder alone" in note
    card = (tmp_path / "m" / "README.md").read_text()
    assert note in card
    alone = results["parts"]["its encoder alone"]["test"]["accuracy"]
    assert f"| its encoder alone | {alone:.4g} |" in card


@pytest.mark.parametrize("shift", [0, 1])
def test_the_summary_says_that_scores_are_no_probabilities(tmp_path, capsys, shift):
    """If the labels of the test data are wrong, confident answers are wrong."""
    options = (
        "--validation_fraction 0 --learning_rate 1e-2 --num_train_epochs 40 --join_baseline false"
    )
    results = train(tmp_path, options, train=0, test=shift)
    assert (results["metrics"]["test"]["accuracy"] < 0.5) == bool(shift)
    printed = capsys.readouterr().out
    assert ("probabilities" in printed) == bool(shift)
    assert ".png" not in printed


@pytest.mark.parametrize("width", [40, 80])
def test_the_tables_fit_the_terminal(tmp_path, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    splits = ("validation", "test")
    metrics = {
        split: {"exact_match": 0.25, "ndcg@10_of_rankings_by_the_first_64_numbers": 61.5432}
        for split in splits
    }
    baselines = {"linear SVM on n-grams of characters": {split: metrics[split] for split in splits}}
    results = train(tmp_path, "--max_steps 1", train=0, validation=0)
    results |= {"metrics": metrics, "main_metric": "exact_match", "baselines": baselines}
    results |= {"parts": {}, "rows": {"validation": 1234567, "test": 1}}
    capsys.readouterr()
    print_summary(results, Path("[folder]"))
    printed = capsys.readouterr().out
    table = [line for line in printed.splitlines() if line.startswith(("│", "┃", "┏", "└"))]
    assert table and max(map(len, table)) <= width
    assert printed.count("61.5432") == 2
    assert printed.count("0.2500") == 6
    assert "1,234,567" in printed and "[folder]" in printed


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


def test_a_pretrained_start_is_recommended_for_few_rows(tmp_path, capsys):
    train(tmp_path, "--max_steps 1 --join_baseline false --validation_fraction 0", train=0)
    assert "--model_name_or_path" in capsys.readouterr().err
    start = f"--model_name_or_path {tmp_path / 'm'} --max_steps 1 --overwrite_output_dir"
    (tmp_path / "other").mkdir()
    command = ["train", "classify", "--train_file", str(tmp_path / "train.tsv"), *start.split()]
    assert main([*command, "--output_dir", str(tmp_path / "other" / "m"), "--use_cpu"]) == 0
    assert "--model_name_or_path" not in capsys.readouterr().err
