"""An export whose disk is really full: its directory is a tiny file system."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from program import refused, write_rows
from saved_models import save_model

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
    return save_model("mlm", tmp_path_factory.mktemp("saved") / "model")


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


def test_export_on_a_small_disk(model, small_disk):
    """The command leaves the disk as it was. (torch's writer of archives would end the process.)"""
    fill(small_disk)
    before = contents(small_disk)
    message = refused("export --format onnx", model, small_disk / "out")
    assert "no space left" in message.lower()
    assert contents(small_disk) == before
    assert {path.name for path in small_disk.iterdir()} == {"filler"}


def test_a_training_whose_checkpoint_does_not_fit(small_disk, tmp_path):
    """The library of the weights reports this in an error of its own, and removes what it has
    written, so that there is space again."""
    rows = [{"text": f"{label} text", "label": label} for label in "ab" * 8]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    command = "train classify --size tiny --vocab_size 300 --max_steps 1 --use_cpu --disable_tqdm"
    errors = refused(command, train_file=data, output_dir=small_disk / "model")
    assert "no space left on the disk" in errors and "Traceback" not in errors
    assert not (small_disk / "model").exists()
