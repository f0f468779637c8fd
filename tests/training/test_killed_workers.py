"""A training under `torchrun --max-restarts` of which workers are killed ends as one of which none was."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file

OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=16 num_hidden_layers=1 "
    "hidden_dropout=0.1 --vocab_size 300 --block_size 16 --line_by_line true --max_steps 30 --save_strategy steps "
    "--save_steps 5 --save_total_limit 9 --eval_strategy no --baselines false --use_cpu true --disable_tqdm true"
).split()
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # docs/several_machines.md says why
}


def start(folder: Path, name: str) -> subprocess.Popen:
    launcher = "-m torch.distributed.run --standalone --nproc_per_node 2 --max-restarts 3 -m hf_roformer_lite.cli"
    data = ["--train_file", str(folder / "text.txt"), "--output_dir", str(folder / name)]
    command = [sys.executable, *launcher.split(), "train", "mlm", *OPTIONS, *data]
    with (folder / f"{name}.errors").open("w") as errors:
        return subprocess.Popen(command, env=ENVIRONMENT, stdout=errors, stderr=errors)


def wait_for_checkpoint(folder: Path, step: int, launcher: subprocess.Popen) -> None:
    """Until there is one of this step or a later one, with the state that is written last."""
    deadline = time.monotonic() + 180
    while launcher.poll() is None and time.monotonic() < deadline:
        found = [path.parent.name.split("-")[1] for path in folder.glob("checkpoint-*/trainer_state.json")]
        if any(int(number) >= step for number in found):
            return
        time.sleep(0.005)
    raise AssertionError(f"no checkpoint of step {step}")


def worker_of(launcher: subprocess.Popen, rank: int) -> psutil.Process:
    for process in psutil.Process(launcher.pid).children():
        if process.environ().get("LOCAL_RANK") == str(rank):
            return process
    raise AssertionError(f"no worker of rank {rank}")


@pytest.mark.slow
def test_killed_workers_change_nothing(tmp_path):
    """First a worker that only learns, then the one that writes the checkpoints and holds the directory's lock."""
    lines = "".join(f"line {n} says that {n} is a number\n" for n in range(400))
    (tmp_path / "text.txt").write_text(lines, "utf-8")
    assert start(tmp_path, "whole").wait(timeout=280) == 0, (tmp_path / "whole.errors").read_text()[-5000:]
    launcher = start(tmp_path, "model")
    try:
        for rank, step in ((1, 5), (0, 15)):
            wait_for_checkpoint(tmp_path / "model.training", step, launcher)
            worker_of(launcher, rank).kill()
        assert launcher.wait(timeout=280) == 0, (tmp_path / "model.errors").read_text()[-5000:]
    finally:
        launcher.terminate()  # which ends its workers
    assert (tmp_path / "model.errors").read_text().count("Resuming from step") == 2
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "model")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
