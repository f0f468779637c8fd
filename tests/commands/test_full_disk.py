"""An export whose disk is really full: its directory is a tiny file system."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import build, stack_config

import hf_roformer_lite as rl
from roformer_lite.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield disk
    # Weights may still be mapped into memory, which only a lazy unmount allows.
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    build(rl.RoFormerLiteForMaskedLM, stack_config(vocab_size=300)).save_pretrained(folder)
    rl.RoFormerLiteTokenizer.train(["a few words"] * 9, vocab_size=300).save_pretrained(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def fill(disk: Path) -> None:
    """Leave 8 kB free, which is enough for a small file."""
    with (disk / "filler").open("wb") as stream:
        stream.write(bytes(shutil.disk_usage(disk).free - 2**13))


def test_export_on_a_small_disk(model, small_disk, capsys):
    """The command leaves the disk as it was."""
    fill(small_disk)
    before = contents(small_disk)
    assert main(["export", str(model), str(small_disk / "out"), "--format", "onnx"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert contents(small_disk) == before
    assert {path.name for path in small_disk.iterdir()} == {"filler"}


def test_a_training_whose_checkpoint_does_not_fit(small_disk, tmp_path, capsys):
    """The library of the weights reports this in an error of its own, and removes what it has
    written, so that there is space again."""
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "one two,a\nthree four,b\n" * 8)
    files = ["--train_file", str(rows), "--output_dir", str(small_disk / "model")]
    options = "--size tiny --vocab_size 300 --max_steps 1 --use_cpu true --disable_tqdm true"
    assert main(["train", "classify", *files, *options.split()]) == 2
    errors = capsys.readouterr().err
    assert "no space left on the disk" in errors and "Traceback" not in errors
    assert not (small_disk / "model").exists()
