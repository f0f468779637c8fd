"""Tests that every command refuses wrong values of its options, and leaves no files behind.

The error is one sentence that names the option. The options are read from the parsers of the
commands. A command ends where its work would begin.
"""

import os
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from program import refused, run
from saved_models import save_model
from transformers.utils.logging import disable_progress_bar

from hf_roformer_lite import conversion
from roformer_lite.cli import COMMANDS
from roformer_lite.options.parser import CommandParser
from roformer_lite.options.tasks import TASK_ARGUMENTS

SMALL = (
    "--output_dir out --size tiny --vocab_size 300 --config hidden_size=16 num_attention_heads=2 "
    "intermediate_size=16 num_hidden_layers=1 --max_steps 1 --use_cpu true "
    "--baselines false"
)
# These commands are right in the directory of the fixture `place`.
RIGHT = {
    **{
        f"train {task}": f"--train_file {'tags.jsonl' if task == 'tag' else 'rows.csv'} {SMALL}"
        for task in TASK_ARGUMENTS
    },
    "predict": "classify --input_file rows.csv --text_column text --prefix its_",
    "evaluate": "classify --test_file rows.csv",
    "export": "mlm out",
    "convert": "mlm out --to roformer",
    "app": "mlm",
}
WRONG = {
    int: ["x", "1.5"],
    float: ["x"],
    bool: ["perhaps"],
}
# These options name a file or a directory that must exist.
READ = "train_file validation_file test_file input_file model_name_or_path tokenizer".split()


class Begun(Exception):
    """Raised where the work of a command begins, after its options were accepted."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Make models and data that are right, and a directory that is neither."""
    disable_progress_bar()
    folder = tmp_path_factory.mktemp("options")
    save_model("classify", folder / "classify")
    save_model("roformer", folder / "mlm")
    conversion.export_checkpoint("roformer", folder / "mlm", folder / "roformer")
    rows = "one two,a,one,two\nthree four,b,three,four\n" * 8
    for name in ("rows.csv", "other.csv"):
        (folder / name).write_text("text,label,source,target\n" + rows)
    (folder / "tags.jsonl").write_text('{"tokens": ["one", "two"], "tags": ["A", "B"]}\n' * 16)
    (folder / "folder").mkdir()
    return folder


@pytest.fixture(autouse=True)
def in_place(place, monkeypatch) -> None:
    """Run commands in `place`."""
    monkeypatch.chdir(place)


@pytest.fixture
def only_options(monkeypatch) -> None:
    """End commands where their work begins."""

    def begin(*args, **kwargs):
        raise Begun

    works = "train train_seeds open_model load_model convert_checkpoint export_checkpoint".split()
    for command in "train predict evaluate export convert app".split():
        module = import_module(f"roformer_lite.commands.{command}")
        for name in set(works) & set(dir(module)):
            monkeypatch.setattr(module, name, begin)


def options_of(command: str) -> dict[str, Any]:
    """Return the type hints of all options of the parser of a command."""
    found: dict[str, Any] = {}

    def spy(parser: CommandParser, *given: Any) -> None:
        found.update(parser.hints)
        raise Begun

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Begun):
        patch.setattr(CommandParser, "parse", spy)
        run(f"{command} {RIGHT[command]}")
    return found


def wrong_values(name: str, hint: Any) -> list[str]:
    if name in READ:
        return ["./nowhere/x"]
    kind = get_args(hint)[0] if NoneType in get_args(hint) else hint
    if get_origin(kind) is Literal:
        return ["nonsense"]
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    return WRONG.get(kind, [])


def assert_refused(command: str, more: list[str], parts: list[str]) -> None:
    """Run a command that must end with one sentence that has all `parts`, and leave no files."""
    before = set(os.listdir())
    (line,) = refused(f"{command} {RIGHT[command]}", *more).splitlines()
    assert line.startswith(f"roformer-lite {command.split()[0]}: error: ")
    assert all(part in line for part in parts), line
    assert set(os.listdir()) == before


def test_every_command_is_here():
    assert {command.split()[0] for command in RIGHT} == set(COMMANDS)


# The options of `convert` are names of systems, which it asks the registry for, and that of `app`
# is a device.
@pytest.mark.parametrize("command", [name for name in RIGHT if name not in ("convert", "app")])
def test_wrong_values_of_every_option(command, only_options):
    tried = 0
    for option, hint in options_of(command).items():
        for value in wrong_values(option, hint):
            tried += 1
            assert_refused(command, [f"--{option}={value}"], [f"--{option}"])
    assert tried > 0


# Values that an option refuses, and options that exclude each other or need another model.
CONTRADICTIONS = [
    ("predict", "--seed 0 --beams 2"),
    ("predict", "--output_file rows.csv/x.csv"),
    ("predict", "--output_file nowhere/x.csv"),
    ("predict", "--output_file folder"),
    ("predict", f"--output_file {'x' * 250}.csv"),
    ("predict", "--output_file x.txt"),
    ("predict", "--output_file x"),
    ("export", "--format torch --quantization int8"),
    ("export", "--format gguf --padded"),
    ("train mlm", "--model_name_or_path classify"),
    ("train mlm", "--validation_file rows.csv --validation_fraction 0.5"),
    ("train seq2seq", "--model_name_or_path mlm"),
    ("train tag", "--token_column tags --tag_column tags"),
    ("train tag", "--training_arguments eval_strategy"),
    ("train mlm", "--tokenizer classify"),
    ("train mlm", "--word_dropout 0.1"),
    ("train classify", "--max_length 2"),
    ("train classify", "--label_column text"),
    ("train classify", "--seeds 1"),
    ("train classify", "--learning_rate nan"),
    ("train classify", "--ema_decay 1"),
    ("train classify", "--test_split dev"),
    ("train classify", "--tokenizer ./nowhere"),
    ("train embed", "--max_tokens_per_batch 99"),
]


@pytest.mark.parametrize(("command", "more"), CONTRADICTIONS)
def test_contradictions(command, more, only_options):
    words = more.split()
    assert_refused(command, words, [word for word in words if word.startswith("--")])
