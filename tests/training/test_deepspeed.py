"""DeepSpeed's ZeRO 2 in two processes on a CPU trains as one process does, also when it is interrupted."""

import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file
from test_other_devices import HERE, command

from roformer_lite.cli import main

# Without a GPU accelerate starts no process group unless the backend is named.
ON_A_CPU = ["--ddp_backend", "gloo", "--use_cpu", "false"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}


def launch(*program: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launcher = ["-m", "accelerate.commands.accelerate_cli", "launch", "--main_process_port", port]
    launcher += ["--config_file", str(ROOT / "examples" / "distributed" / "deepspeed_zero2.yaml")]
    launcher += ["--num_processes", "2", "--mixed_precision", "no"]
    done = subprocess.run(
        [sys.executable, *launcher, *program], env=ENVIRONMENT, capture_output=True, text=True, timeout=560
    )
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.slow
@pytest.mark.timeout(1500)  # DeepSpeed compiles its communication the first time
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed: pip install deepspeed")
def test_interrupted_training_equals_one_process(tmp_path):
    lines = "".join(f"line {n} says that {n} is a number\n" for n in range(400))
    (tmp_path / "text.txt").write_text(lines, "utf-8")
    assert main(command(tmp_path, "whole", 1)) == 0
    options = [*command(tmp_path, "model", 2), *ON_A_CPU]
    launch(str(HERE / "interrupted_worker.py"), "8", *options)
    assert (tmp_path / "model.training" / "checkpoint-6" / "latest").is_file()
    launch("-m", "roformer_lite.cli", *options)
    got, wanted = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "whole"))
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=0, atol=1e-4)
