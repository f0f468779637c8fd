"""Training in processes of its own: killed and taken up again, and shared by two."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.commands.demo_data import unique_examples

OPTIONS = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1 "
    "--vocab_size 400 --disable_tqdm true --use_cpu true --learning_rate 3e-3 --ema_decay 0.9 "
    "--training_arguments label_smoothing_factor=0.1 eval_strategy=steps eval_steps=15 logging_steps=5 "
    "--max_target_length 16"
).split()
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums in another order are other sums
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    rows = unique_examples(400, 7, held_out=False)
    for name, part in (("train", rows[:360]), ("validation", rows[360:])):
        lines = ["source\ttarget", *(f"{row.written}\t{row.standard}" for row in part)]
        (folder / f"{name}.tsv").write_text("\n".join(lines), "utf-8")
    return ["--train_file", str(folder / "train.tsv"), "--validation_file", str(folder / "validation.tsv")]


def losses(model: Path) -> list[float]:
    checkpoint = max(model.with_name(f"{model.name}.training").glob("checkpoint-*"), key=lambda p: int(p.name[11:]))
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.mark.slow
def test_killed_training_ends_as_if_nothing_had_happened(data, tmp_path, one_thread, capsys):
    schedule = (
        "--max_steps 60 --max_tokens_per_batch 400 --training_arguments save_strategy=steps save_steps=20".split()
    )
    command = ["train", "seq2seq", *data, *OPTIONS, *schedule]
    assert main([*command, "--output_dir", str(tmp_path / "whole")]) == 0

    command += ["--output_dir", str(tmp_path / "killed")]
    process = subprocess.Popen(
        [sys.executable, "-m", "roformer_lite.cli", *command], env=ENVIRONMENT, stderr=subprocess.DEVNULL
    )
    saved = tmp_path / "killed.training" / "checkpoint-20" / "averaged_weights.safetensors"
    deadline = time.monotonic() + 300
    while not saved.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was over before it could be killed"
    assert not (tmp_path / "killed").exists()

    capsys.readouterr()
    assert main(command) == 0
    assert "Resuming from step" in capsys.readouterr().err
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    metrics = [json.loads((tmp_path / name / "results.json").read_text())["metrics"] for name in ("whole", "killed")]
    assert metrics[0] == metrics[1]


@pytest.mark.slow
@pytest.mark.parametrize(("optim", "tolerance"), [("sgd", 1e-4), ("muon", 1e-3)])
def test_two_processes_train_as_one_that_accumulates(optim, tolerance, data, tmp_path, one_thread):
    """The batches of a step are the same, shared by two processes or one after the other in one (but at the end of an
    epoch whose number of batches is odd: two processes then repeat one). Muon computes with bfloat16, and magnifies
    rounding, though less than Adam."""
    schedule = "--max_tokens_per_batch 300 --keep_checkpoints --max_steps 10 --time_limit_minutes 60".split()
    end_of_config = OPTIONS.index("--vocab_size")
    options = [*OPTIONS[:end_of_config], "hidden_dropout=0.0", *OPTIONS[end_of_config:]]  # each process drops its own
    command = [*data, *options, *schedule, "--training_arguments", "save_strategy=steps", "save_steps=10"]
    command += ["--optim", optim, "--learning_rate", "0.05" if optim == "sgd" else "0.002"]
    accumulating = ["--training_arguments", "gradient_accumulation_steps=2", "--output_dir", str(tmp_path / "one")]
    assert main(["train", "seq2seq", *command, *accumulating]) == 0

    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    arguments = ["-m", "roformer_lite.cli", "train", "seq2seq", *command, "--output_dir", str(tmp_path / "two")]
    finished = subprocess.run([*launcher, *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=400)
    assert finished.returncode == 0, finished.stderr[-3000:]
    results = json.loads((tmp_path / "two" / "results.json").read_text())
    assert results["machine"]["processes"] == 2 and results["rows"]["validation"] == 40
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=tolerance)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=tolerance, atol=tolerance / 10)
