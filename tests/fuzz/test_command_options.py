"""Options of every command with values that no command can use: a sentence that names them, and
nothing left behind.

The options are those of the commands' own parsers. Where a value is accepted, the command ends
before its work, or in the slow tests does it.
"""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from saved_models import save_model
from transformers.utils.logging import disable_progress_bar

from hf_roformer_lite import conversion
from roformer_lite import saved_model
from roformer_lite.cli import COMMANDS, main
from roformer_lite.commands import serve
from roformer_lite.commands.command_parser import CommandParser, switch
from roformer_lite.predict.predictor import Predictor
from roformer_lite.tasks.task_arguments import TASK_ARGUMENTS
from roformer_lite.train import seeds
from roformer_lite.train import train as training

SMALL = (
    "--output_dir out --size tiny --vocab_size 300 --config hidden_size=16 num_attention_heads=2 intermediate_size=16 "
    "num_hidden_layers=1 --max_steps 1 --disable_tqdm true --use_cpu true --baselines false"
)
# Commands that are right in the directory of the fixture `place`.
RIGHT = {
    **{
        f"train {task}": f"--train_file {'tags.jsonl' if task == 'tag' else 'rows.csv'} {SMALL}"
        for task in TASK_ARGUMENTS
    },
    "predict": "classify --input_file rows.csv --text_column text --prefix its_",
    "evaluate": "classify --test_file rows.csv",
    "export": "mlm out",
    "convert": "mlm out --to roformer",
    "verify": "roformer --from roformer",
    "bundle": "mlm out",
    "demo": "",
    "serve": "mlm",
    "app": "mlm",
}
LONG = "m" * 5000
WRONG = {
    int: ["x", "", "1.5", "nan", "-1", "0", str(2**31), str(10**30), "9" * 400],
    float: ["x", "", "nan", "inf", "-inf", "-1", "0", "1e308", "1e-320"],
    switch: ["perhaps", "2", ""],
    str: [
        "",
        "nowhere/x",
        "folder",
        "other.csv",
        "other.csv/x",
        LONG,
        "a\nb",
        "\udcff",
        "-5",
        "{",
        "[]",
    ],
}
# Words of the sentences that refuse an option, or its company, whatever its value.
WHATEVER_THE_VALUE = [
    "has no effect",
    "give either",
    "exactly one of",
    " is for ",
    "is not for",
    "needs",
]
WHATEVER_THE_VALUE += ["only be set", "can't be combined"]


class Begun(Exception):
    """The command has found nothing wrong with its options."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Models and data that are right, and a directory that is neither."""
    disable_progress_bar()
    folder = tmp_path_factory.mktemp("options")
    save_model("classify", folder / "classify")
    save_model("roformer", folder / "mlm")
    conversion.export_checkpoint("roformer", folder / "mlm", folder / "roformer")
    rows = "one two,a,one,two\nthree four,b,three,four\n" * 8
    for name in ("rows.csv", "other.csv"):  # the latter may be written
        (folder / name).write_text("text,label,source,target\n" + rows)
    (folder / "tags.jsonl").write_text('{"tokens": ["one", "two"], "tags": ["A", "B"]}\n' * 16)
    (folder / "folder").mkdir()
    return folder


@pytest.fixture(autouse=True)
def in_place(place, monkeypatch) -> None:
    """Commands run in `place`."""
    monkeypatch.chdir(place)


@pytest.fixture
def only_options(monkeypatch) -> None:
    """Commands end where their work begins."""

    def begin(*args, **kwargs):
        raise Begun

    works = [
        (training, "train"),
        (seeds, "train_seeds"),
        (Predictor, "load"),
        (saved_model, "load_model"),
    ]
    works += [
        (serve, "serve"),
        *((conversion, f"{name}_checkpoint") for name in ("convert", "export")),
    ]
    works.append((conversion, "verify"))
    for owner, name in works:
        monkeypatch.setattr(owner, name, begin)
    monkeypatch.setattr("roformer_lite.commands.demo.unique_examples", begin)


def options_of(command: str) -> list[argparse.Action]:
    """All that a command's parser takes, positional arguments too."""
    found: list[argparse.Action] = []

    def spy(parser: CommandParser, *words: list[str]) -> None:
        found.extend(action for action in parser._actions if action.nargs != 0)
        raise Begun

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Begun):
        patch.setattr(CommandParser, "parse", spy)
        main([*command.split(), *RIGHT[command].split()])
    return found


def cases(command: str, option: argparse.Action) -> Iterator[tuple[str, list[str]]]:
    """Wrong values of one option, each with the whole command."""
    right = RIGHT[command].split()
    for value in ["nonsense", ""] if option.choices else WRONG.get(option.type, WRONG[str]):
        if option.option_strings:
            yield value, [*command.split(), *right, f"{option.option_strings[0]}={value}"]
        elif not value.startswith("-"):  # which is an option then
            place = {"out": 1}.get(option.dest, 0)
            yield value, [*command.split(), *right[:place], value, *right[place + 1 :]]


def problem(
    option: argparse.Action, value: str, argv: list[str], place: Path, capsys
) -> str | None:
    """What is wrong with the end of a command; None if it was refused well, or accepted."""
    before = {path.name for path in place.iterdir()}
    capsys.readouterr()
    try:
        status = main(argv)
    except Begun:
        status = 0
    except SystemExit as ended:
        status = ended.code
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    message = capsys.readouterr().err
    left = {path.name for path in place.iterdir()} - before
    for name in left:
        shutil.rmtree(place / name) if (place / name).is_dir() else (place / name).unlink()
    if status == 0:
        return None
    errors = [
        line
        for line in message.splitlines()
        if line.startswith("roformer-lite ") and ": error: " in line
    ]
    names = [option.dest, *option.option_strings] if option.option_strings else [value]
    forms = {value[:100], value.partition("\n")[0][:100], ascii(value)[1:-1]}
    if option.type is float and value not in ("x", ""):
        forms.add(str(float(value)))
    if status != 2 or len(errors) != 1 or "Traceback" in message:
        return f"status {status}: {message[-300:]}"
    if left:
        return f"left {left}"
    if not any(form and form in message for form in forms) and not any(
        w in message for w in WHATEVER_THE_VALUE
    ):
        return f"names no value: {message[:300]}" if value else None
    refers_to_data = (
        any(form in message for form in forms if len(form) > 1) or "rows.csv" in message
    )
    return (
        None
        if any(name in message for name in names) or refers_to_data
        else f"names no option: {message[:300]}"
    )


def problems(command: str, place: Path, capsys, seen: set[str]) -> list[str]:
    """The problems of a command's options that are not `seen` yet; tasks share most of those of
    `train`."""
    found = []
    for option in options_of(command):
        if option.dest in seen:
            continue
        if command.startswith("train"):
            seen.add(option.dest)
        for value, argv in cases(command, option):
            if told := problem(option, value, argv, place, capsys):
                found.append(f"{command} {option.dest}={value[:30]!r}: {told}")
    return found


def test_every_command_is_here():
    assert {command.split()[0] for command in RIGHT} == set(COMMANDS)


def test_wrong_values_of_every_option(place, only_options, capsys):
    seen: set[str] = set()
    # most options of which are transformers' own
    commands = [command for command in RIGHT if command != "serve"]
    assert (
        "\n".join(told for command in commands for told in problems(command, place, capsys, seen))
        == ""
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ["predict", "evaluate", "convert", "verify", "bundle"])
def test_what_is_accepted_ends_in_a_result(command, place, capsys):
    """With the work that follows the options."""
    assert main([command, *RIGHT[command].split()]) == 0
    shutil.rmtree("out", ignore_errors=True)
    assert "\n".join(problems(command, place, capsys, set())) == ""


CONTRADICTIONS = [
    ("predict", "--greedy --beams 2"),
    ("predict", "--output_file rows.csv/x.csv"),
    ("evaluate", "--dataset_name x"),
    ("export", "--format torch --quantization int8"),
    ("export", "--format gguf --embeddings"),
    ("train mlm", "--model_name_or_path classify"),
    ("train mlm", "--validation_file rows.csv --validation_fraction 0.5"),
    ("train seq2seq", "--encoder_name_or_path mlm"),
    ("train tag", "--token_column tags --tag_column tags"),
]


@pytest.mark.parametrize(("command", "more"), CONTRADICTIONS)
def test_contradictions(command, more, place, only_options, capsys):
    before = {path.name for path in place.iterdir()}
    assert main([*command.split(), *RIGHT[command].split(), *more.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"roformer-lite {command.split()[0]}: error: ")
    assert any(part in line for part in more.split() if part.startswith("--"))
    assert {path.name for path in place.iterdir()} == before
