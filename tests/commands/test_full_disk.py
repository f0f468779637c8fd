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


def test_export_on_a_small_disk(small_disk, tmp_path):
    """The command leaves the disk as it was. (torch's writer of archives would end the process.)"""
    model = save_model("mlm", tmp_path / "model")
    # These 8 kB that are left are enough for a small file.
    filler = bytes(shutil.disk_usage(small_disk).free - 2**13)
    (small_disk / "filler").write_bytes(filler)
    message = refused("export --format onnx", model, small_disk / "out")
    assert "no space left" in message.lower()
    assert [*small_disk.iterdir()] == [small_disk / "filler"]


def test_a_training_whose_checkpoint_does_not_fit(small_disk, tmp_path):
    """The library of the weights reports this in an error of its own, and removes what it has
    written, so that there is space again."""
    rows = [{"text": f"{label} text", "label": label} for label in "ab" * 8]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    command = "train classify --size tiny --vocab_size 300 --max_steps 1 --use_cpu"
    errors = refused(command, train_file=data, output_dir=small_disk / "model")
    assert "no space left on the disk" in errors and "Traceback" not in errors
    assert not (small_disk / "model").exists()
