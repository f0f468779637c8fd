"""The scripts for clusters, on one machine: Slurm's with commands that stand in for Slurm's own, Ray's with Ray."""

import json
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT

EXAMPLES = ROOT / "examples" / "distributed"
OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=16 num_hidden_layers=1 "
    "--vocab_size 300 --block_size 16 --line_by_line true --max_steps 4 --save_strategy no --eval_strategy no "
    "--baselines false --disable_tqdm true"
).split()
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
STAND_INS = {
    "scontrol": 'test "$*" = "show hostnames node[1]" && echo 127.0.0.1',
    "srun": 'test "$1" = --kill-on-bad-exit=1 && shift && exec "$@"',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
}


def trained_by(command: list[str], folder: Path, environment: dict[str, str]) -> dict:
    """The results of a training whose text and output lie in `folder`."""
    lines = "".join(f"line {n} says that {n} is a number\n" for n in range(60))
    (folder / "text.txt").write_text(lines, "utf-8")
    data = ["--train_file", str(folder / "text.txt"), "--output_dir", str(folder / "model")]
    environment = {**ENVIRONMENT, **environment}
    command = [*command, "causal", *OPTIONS, *data]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads((folder / "model" / "results.json").read_text("utf-8"))


@pytest.mark.slow
def test_slurm_script_starts_the_processes_of_a_machine(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, script in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1]",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "2",
        "PROCESSES_PER_NODE": "2",
        "RENDEZVOUS_PORT": port,
    }
    results = trained_by(["bash", str(EXAMPLES / "slurm.sh")], tmp_path, environment)
    assert results["machine"]["processes"] == 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason='Ray is not installed: pip install "ray[train]"')
def test_ray_script_starts_its_workers(tmp_path):
    environment = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "180", "RAY_ADDRESS": "local"}
    command = [sys.executable, str(EXAMPLES / "ray_train.py"), "--workers", "2", "--results", str(tmp_path / "notes")]
    results = trained_by(command, tmp_path, environment)
    assert results["machine"]["processes"] == 2


def test_scripts_are_well_formed():
    subprocess.run(["bash", "-n", str(EXAMPLES / "slurm.sh")], check=True)
    compile((EXAMPLES / "ray_train.py").read_text("utf-8"), "ray_train.py", "exec")
