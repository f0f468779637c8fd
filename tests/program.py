"""Commands of the program as a user runs them, and the files that they read and write."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from conftest import assert_equal
from safetensors.torch import load_file

from roformer_lite import evaluate
from roformer_lite.cli import main
from roformer_lite.training.callbacks import TrainingClock
from roformer_lite.training.pairs import PAIRS_FOLDER

Files = Path | list[Path]
COLOURS = ["red", "green", "blue", "white"]
# Options of trainings that take about a second.
TINY = (
    "--size tiny --vocab_size 300 --use_cpu "
    "--config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1"
)


def run(command: str, *words: object, status: int = 0, **options: object) -> None:
    """Run a command, and check its status.

    Args:
        command: The command, with options that have no spaces in their values.
        words: Further words.
        status: The status with which the command must end.
        options: Options by their names. The items of a list are the values of one option.
    """
    typed = [*command.split(), *map(str, words)]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        typed += [f"--{name}", *map(str, values)]
    assert main(typed) == status


def refused(command: str, *words: object, **options: object) -> str:
    """Run a command that must be refused, and return its message."""
    with redirect_stderr(StringIO()) as messages:
        run(command, *words, status=2, **options)
    return messages.getvalue()


def in_new_process(
    *words: object, status: int = 0, timeout: int = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a process of its own, and check its status.

    Args:
        words: The arguments of the interpreter.
        status: The status with which the process must end.
        timeout: The seconds that it may take.
        options: Further options of `subprocess.run`.
    """
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        **options,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


def train(command: str, data: Files, out: Path, **options: object) -> dict[str, Any]:
    """Run `train` with a task and its options, and return the results."""
    run(f"train {command}", train_file=data, output_dir=out, **options)
    return results_of(out)


def evaluated(model: Path, data: Files, **options: object) -> dict[str, Any]:
    """Evaluate a model, and return the results."""
    return evaluate(model, test_file=data, device="cpu", **options)


def predicted(model: Path, data: Path, **options: object) -> list[dict[str, Any]]:
    """Run `predict` on a table, and return its rows with the answers."""
    answers = model.with_name(f"{model.name}-answers.jsonl")
    run("predict", model, input_file=data, output_file=answers, device="cpu", **options)
    return read_rows(answers)


def answered(model: Path, lines: list[str], **options: object) -> list[str]:
    """Run `predict` on lines of text, and return the lines of its answers."""
    asked = model.with_name(f"{model.name}-lines.txt")
    answers = model.with_name(f"{model.name}-answers.txt")
    asked.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    run("predict", model, input_file=asked, output_file=answers, device="cpu", **options)
    return answers.read_text("utf-8").split("\n")[:-1]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), "utf-8")


def change_fields(path: Path, **fields: Any) -> None:
    """Write a file of JSON again, with other values of some fields."""
    write_json(path, {**read_json(path), **fields})


def interrupted(command: str, step: int, event: str = "on_step_begin", **options: object) -> None:
    """Run a training that is interrupted at an event of a step, but not in the stage of pairs."""

    def interrupt(clock, args, state, control, **kwargs) -> None:
        if state.global_step == step and Path(args.output_dir).name != PAIRS_FOLDER:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingClock, event, interrupt)
        run(command, status=130, **options)


def results_of(directory: Path) -> dict[str, Any]:
    return read_json(directory / "results.json")


def config_of(directory: Path) -> dict[str, Any]:
    return read_json(directory / "config.json")


def card_of(directory: Path) -> str:
    return (directory / "README.md").read_text("utf-8")


def assert_same_models(one: Path, other: Path) -> None:
    """Two trainings have the same metrics and, bit by bit, the same weights."""
    assert results_of(one)["metrics"] == results_of(other)["metrics"]
    weights = [load_file(model / "model.safetensors") for model in (one, other)]
    assert_equal(*weights)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows as lines of JSON."""
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
