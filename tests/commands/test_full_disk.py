"""A disk that is full, for real: files may not grow beyond a limit, or the directory is a tiny file system."""

import json
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import build, stack_config

import hf_roformer_lite as rl
from roformer_lite.cli import main
from roformer_lite.commands import export
from roformer_lite.errors import InputError
from roformer_lite.output_directory import complete_directory, remove_left_overs, write_whole_file

pytestmark = pytest.mark.slow

OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--vocab_size 300 --disable_tqdm true --use_cpu true --max_steps 2"
).split()


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """What `ulimit -f` does: the kernel writes so many bytes of a file, and then refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)  # weights may still be mapped into memory


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    build(rl.RoFormerLiteForMaskedLM, stack_config(vocab_size=300)).save_pretrained(folder)
    rl.RoFormerLiteTokenizer.train(["a few words"] * 9, vocab_size=300).save_pretrained(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(disk: Path) -> None:
    """Leave 8 kB, enough for a small file."""
    with (disk / "filler").open("wb") as stream:
        stream.write(bytes(shutil.disk_usage(disk).free - 2**13))


def test_while_the_run_is_noted(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("source\ttarget\n" + "x y\ty x\n" * 8)
    command = ["train", "seq2seq", "--train_file", str(tmp_path / "a.tsv"), *OPTIONS]
    command += ["--output_dir", str(tmp_path / "m")]
    with files_limited_to(500):
        assert main(command) == 2
    assert "run.yaml cannot be written: File too large" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"a.tsv"}
    (tmp_path / "m.training").mkdir()
    (tmp_path / "m.training" / "run.yaml.unfinished").write_text('{"form')  # a kill instead
    (tmp_path / "m.training" / "lock").write_text("")
    assert main(command) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.tsv", "m"}


def test_a_training_on_a_small_disk(small_disk, tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("source\ttarget\n" + "x y\ty x\n" * 8)
    command = ["train", "seq2seq", "--train_file", str(tmp_path / "a.tsv"), *OPTIONS]
    command += ["--output_dir", str(small_disk / "m")]
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    assert main(command) == 2
    assert "no space left on" in capsys.readouterr().err.lower()
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).total - 2**16))
    assert main(command) == 2
    assert "no space left on the disk" in capsys.readouterr().err and not (small_disk / "m").exists()
    (small_disk / "filler").unlink()
    assert main(command) == 0


def test_bundle_changes_nothing(model, tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    before = contents(folder)
    with files_limited_to(6000):  # some files of code are smaller, some larger
        assert main(["bundle", str(folder)]) == 2
    assert f"{folder}: the code cannot be written: no space left" in capsys.readouterr().err
    assert contents(folder) == before and {path.name for path in folder.iterdir()} == set(before)
    (folder / ".bundle.unfinished-999999999").mkdir()  # of a process that was killed
    assert main(["bundle", str(folder)]) == 0
    assert not list(folder.glob(".*"))
    assert json.loads((folder / "config.json").read_text())["auto_map"]


@pytest.mark.parametrize(
    ("command", "format", "is_foreseen"),
    [("bundle", None, True), ("export", "torch", True), ("export", "onnx", True), ("export", "onnx", False)],
)
def test_commands_on_a_small_disk(model, small_disk, capsys, monkeypatch, command, format, is_foreseen):
    """Also where the graphs are larger than was thought, so that the disk is full while they are written. (torch's
    writer of archives ends the process then.)"""
    if not is_foreseen:
        monkeypatch.setattr(export, "require_space", lambda directory, size: None)
    folder = small_disk / "model"
    shutil.copytree(model, folder)
    fill(small_disk)
    before = contents(small_disk)
    more = [str(small_disk / "out"), "--format", format] if command == "export" else []
    assert main([command, str(folder), *more]) == 2
    assert "no space left on the disk" in capsys.readouterr().err
    assert contents(small_disk) == before and {path.name for path in small_disk.iterdir()} == {"model", "filler"}
    assert {path.name for path in folder.iterdir()} == {path.name for path in model.iterdir()}


def test_a_file_is_whole_or_as_before(tmp_path):
    path = tmp_path / "run.json"
    write_whole_file(path, "old")
    with files_limited_to(100), pytest.raises(InputError, match="run.json cannot be written: File too large"):
        write_whole_file(path, "new" * 100)
    assert contents(tmp_path) == {"run.json": b"old"}


def test_left_overs_of_killed_processes_only(tmp_path):
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        for number in (sleeper.pid, 999999999):
            (tmp_path / f".out.unfinished-{number}").mkdir()
        (tmp_path / ".outer.unfinished-999999999").mkdir()  # of another target
        with complete_directory(tmp_path / "out"):
            assert (tmp_path / f".out.unfinished-{sleeper.pid}").exists()
            assert not (tmp_path / ".out.unfinished-999999999").exists()
    finally:
        sleeper.kill()
        sleeper.wait()
    remove_left_overs(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", ".outer.unfinished-999999999"}
