"""One training at a time in an output directory, and a lock that does not outlive its process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.training.lock import training_lock

OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--vocab_size 300 --disable_tqdm true --use_cpu true --block_size 16 --save_strategy steps --save_steps 5"
).split()
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


@pytest.fixture
def command(tmp_path) -> list[str]:
    (tmp_path / "train.txt").write_text("some words to learn from, and some more\n" * 40)
    return ["train", "mlm", "--train_file", str(tmp_path / "train.txt"), *OPTIONS, "--output_dir", str(tmp_path / "m")]


@pytest.mark.slow
def test_two_at_once_and_then_a_kill(command, tmp_path, capsys):
    """A second command is refused and changes nothing. After a kill of the first it goes on, though the first had a
    child process that reads the data."""
    long = [*command, "--max_steps", "5000", "--dataloader_num_workers", "1"]
    first = subprocess.Popen([sys.executable, "-m", "roformer_lite.cli", *long], env=ENVIRONMENT, stderr=-3)
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("m.training/checkpoint-*/trainer_state.json")) and first.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for more in ([], ["--overwrite_output_dir", "true"], ["--learning_rate", "0.1"]):
            assert main([*long, *more]) == 2
            message = capsys.readouterr().err
            assert f"--output_dir {tmp_path / 'm'}: another process trains into it" in message
            assert "choose another directory" in message
        assert first.poll() is None and list(tmp_path.glob("m.training/checkpoint-*"))
    finally:
        first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert (tmp_path / "m.training" / "lock").exists()
    assert main([*command, "--max_steps", "5", "--overwrite_output_dir", "true"]) == 0
    assert (tmp_path / "m" / "results.json").is_file() and not (tmp_path / "m.training").exists()


def test_the_lock_leaves_nothing(tmp_path):
    directory = tmp_path / "m.training"
    with training_lock(directory, tmp_path / "m"):
        with pytest.raises(InputError, match="another process trains into it"):
            with training_lock(directory, tmp_path / "m"):
                pass
        assert (directory / "lock").exists(), "the one who was refused must not take it away"
    assert not directory.exists()
    with training_lock(directory, tmp_path / "m"):
        (directory / "run.json").write_text("")
    assert [path.name for path in directory.iterdir()] == ["run.json"]


def test_a_place_that_cannot_be_written(command, tmp_path, capsys):
    (tmp_path / "m.training").write_text("a file")
    assert main(command) == 2
    assert f"{tmp_path / 'm.training'} is needed for the checkpoints, but cannot be written" in capsys.readouterr().err
    options: list[str | Path] = [*command[:-1], Path("/proc/nowhere/m")]
    assert main([str(option) for option in options]) == 2
    assert "no directory can be made in /proc: No such file" in capsys.readouterr().err
