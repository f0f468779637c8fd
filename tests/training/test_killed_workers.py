"""A training under `torchrun --max-restarts` of which workers are killed ends as one of which none was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=16 num_hidden_layers=1 "
    "hidden_dropout=0.1 --vocab_size 300 --block_size 16 --line_by_line true --max_steps 30 "
    "--training_arguments save_strategy=steps save_steps=5 save_total_limit=9 eval_strategy=no "
    "--baselines false --disable_tqdm true"
).split()
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # docs/several_processes.md says why
}


def train(folder: Path, name: str, *program: str) -> None:
    launcher = "-m torch.distributed.run --standalone --nproc_per_node 2 --max-restarts 3".split()
    data = ["--train_file", str(folder / "text.txt"), "--output_dir", str(folder / name)]
    command = [sys.executable, *launcher, *program, "train", "mlm", *OPTIONS, *data]
    with (folder / f"{name}.errors").open("w") as errors:
        done = subprocess.run(command, env=ENVIRONMENT, stdout=errors, stderr=errors, timeout=280)
    assert done.returncode == 0, (folder / f"{name}.errors").read_text()[-5000:]


@pytest.mark.slow
def test_killed_workers_change_nothing(tmp_path):
    """First a worker that only learns, then the one that writes the checkpoints and holds the directory's lock."""
    lines = "".join(f"line {n} says that {n} is a number\n" for n in range(400))
    (tmp_path / "text.txt").write_text(lines, "utf-8")
    train(tmp_path, "whole", "-m", "roformer_lite.cli")
    train(tmp_path, "model", str(Path(__file__).with_name("dying_worker.py")), str(tmp_path))
    assert {path.name for path in tmp_path.glob("killed-*")} == {"killed-0", "killed-1"}
    assert (tmp_path / "model.errors").read_text().count("Resuming from step") == 2
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "model")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
