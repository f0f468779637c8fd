"""A disk that is full, for real: files may not grow beyond a limit, or the directory is a tiny file system."""

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
from roformer_lite.export import graphs

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
    assert "run.yaml: no space left on the disk" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"a.tsv"}
    (tmp_path / "m.training").mkdir()
    (tmp_path / "m.training" / "run.yaml.unfinished").write_text('{"form')  # a kill instead
    (tmp_path / "m.training" / "lock").write_text("")
    assert main(command) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"a.tsv", "m"}


@pytest.mark.parametrize("foreseen", [True, False])
@pytest.mark.parametrize(("command", "options"), [("bundle", []), ("export", ["--format", "onnx"])])
def test_commands_on_a_small_disk(model, small_disk, capsys, monkeypatch, command, options, foreseen):
    """Also where the graphs are larger than was thought, so that the disk is full while they are written. (torch's
    writer of archives ends the process then.)"""
    if not foreseen:
        monkeypatch.setattr(graphs, "require_space", lambda directory, size: None)
    fill(small_disk)
    before = contents(small_disk)
    assert main([command, str(model), str(small_disk / "out"), *options]) == 2
    assert "no space left on the disk" in capsys.readouterr().err
    assert contents(small_disk) == before and {path.name for path in small_disk.iterdir()} == {"filler"}
