"""What `predict` writes is complete or not there, and no file is lost, not even when it is read at the same time."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from roformer_lite.cli import main
from roformer_lite.predict.predictor import Predictor

LINES = ["a fine film", "", "a dull film"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "a.csv").write_text("text,label\na fine film,good\na dull film,bad\n" + "fine,good\ndull,bad\n" * 8)
    options = "--size tiny --config hidden_size=32 num_attention_heads=2 num_hidden_layers=1 --vocab_size 300"
    files = ["--train_file", str(folder / "a.csv"), "--output_dir", str(folder / "model"), "--use_cpu", "true"]
    assert main(["train", "classify", *files, *options.split(), "--max_steps", "2", "--disable_tqdm", "true"]) == 0
    return folder / "model"


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("".join(line + "\n" for line in LINES))
    return tmp_path


def predict(model: Path, source: str, target: str, status: int = 0) -> None:
    assert main(["predict", str(model), "--input_file", source, "--output_file", target]) == status


def answers(path: Path | str) -> list[str]:
    return [line.partition("\t")[0] for line in Path(path).read_text().split("\n")[:-1]]


def check(found: list[str]) -> None:
    assert len(found) == 3 and found[1] == "" and {found[0], found[2]} <= {"good", "bad"}


def test_input_and_output_may_be_the_same_file(model, place):
    (place / "link.txt").symlink_to("x.txt")
    Path("x.txt").chmod(0o640)
    predict(model, "x.txt", "link.txt")
    check(answers("x.txt"))
    assert Path("link.txt").is_symlink() and stat.S_IMODE(Path("x.txt").stat().st_mode) == 0o640
    predict(model, "x.txt", "x.txt")
    check(answers("x.txt"))
    assert sorted(os.listdir()) == ["link.txt", "x.txt"]


def test_a_mistake_in_the_input_leaves_the_output_as_it_was(model, place, capsys):
    Path("bad.txt").write_bytes(b"a fine film\n" * 2000 + b"b\xe4d\n")
    Path("answers.txt").write_text("kept")
    predict(model, "bad.txt", "answers.txt", status=2)
    assert "bad.txt:2001: byte 2" in capsys.readouterr().err and Path("answers.txt").read_text() == "kept"
    predict(model, "bad.txt", "new.txt", status=2)
    assert sorted(os.listdir()) == ["answers.txt", "bad.txt", "x.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interruption_or_a_full_disk_leaves_the_output_as_it_was(model, place, capsys, monkeypatch, error):
    def failing(*arguments):
        raise error

    Path("answers.txt").write_text("kept")
    monkeypatch.setattr(Predictor, "answer", failing)
    monkeypatch.setattr(Predictor, "_try", lambda *arguments: None)  # the model is right
    predict(model, "x.txt", "answers.txt", status=130 if isinstance(error, KeyboardInterrupt) else 2)
    said = capsys.readouterr().err
    assert isinstance(error, KeyboardInterrupt) or "--output_file answers.txt: no space left on the disk" in said
    assert Path("answers.txt").read_text() == "kept" and sorted(os.listdir()) == ["answers.txt", "x.txt"]


def test_a_disk_that_is_really_full(model, place, capsys):
    """/dev/full takes nothing; it is no regular file, so that it is written directly."""
    predict(model, "x.txt", "/dev/full", status=2)
    assert "--output_file /dev/full: no space left on the disk" in capsys.readouterr().err


@pytest.mark.slow
def test_standard_output_by_its_name(model, place):
    """Here a pipe, whose name under /proc is none that a file could be made beside."""
    command = [sys.executable, "-m", "roformer_lite.cli", "predict", str(model), "--input_file", "x.txt"]
    done = subprocess.run([*command, "--output_file", "/dev/stdout"], capture_output=True, text=True, timeout=120)
    check([line.partition("\t")[0] for line in done.stdout.splitlines()])


def test_what_a_killed_process_left_is_replaced(model, place):
    Path(".y.txt.unfinished").write_text("half")
    predict(model, "x.txt", "y.txt")
    assert sorted(os.listdir()) == ["x.txt", "y.txt"]


def test_a_pipe_is_written_directly(model, place):
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(answers("pipe")))
    reader.start()
    predict(model, "x.txt", "pipe")
    reader.join(timeout=30)
    check(read[0])
    assert stat.S_ISFIFO(Path("pipe").stat().st_mode)


def test_mistakes_are_found_before_the_model_is_loaded(place, capsys, monkeypatch):
    monkeypatch.setattr(Predictor, "load", lambda *arguments: pytest.fail("the model was loaded"))
    for source, target, message in (
        ("nowhere.txt", "y.txt", "--input_file nowhere.txt: No such file or directory"),
        ("x.txt", "nowhere/y.txt", "--output_file nowhere/y.txt cannot be written: No such file or directory"),
        ("x.txt", ".", "--output_file . is a directory"),
        ("x.txt", "y" * 250, "cannot be written: File name too long"),
    ):
        assert main(["predict", "m", "--input_file", source, "--output_file", target]) == 2
        assert message in capsys.readouterr().err
    assert os.listdir() == ["x.txt"]


def test_a_write_protected_file_is_refused(place, capsys, monkeypatch):
    Path("y.txt").write_text("kept")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # for root every file can be written
    assert main(["predict", "m", "--input_file", "x.txt", "--output_file", "y.txt"]) == 2
    assert "--output_file y.txt: the file is write-protected" in capsys.readouterr().err


def test_nothing_else_is_written(model, place):
    before = {path.name: path.stat().st_mtime_ns for path in model.iterdir()}
    predict(model, "x.txt", "y.txt")
    assert {path.name: path.stat().st_mtime_ns for path in model.iterdir()} == before
    assert json.loads((model / "results.json").read_text("utf-8"))["task"] == "classify"
