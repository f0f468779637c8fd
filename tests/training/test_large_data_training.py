"""Training on data that outgrow memory: continued bit for bit, also after SIGKILL, and shared by two processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.training.clock import TrainingClock

pytestmark = pytest.mark.slow

WORDS = "a river runs past the old house and nobody knows how far it will go".split()
MODEL = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--disable_tqdm true --use_cpu true --learning_rate 3e-3 --per_device_train_batch_size 4 --max_steps 12 "
    "--save_strategy steps --save_steps 4 --eval_strategy no --logging_steps 4 --baselines false"
).split()
# Rows are few, so that the training goes through its data more than once.
WAYS = {
    "prepared mlm": "mlm --prepared data",
    "prepared and packed": "mlm --prepared data --packing 48",
    "prepared by tokens": "mlm --prepared data data --mixture 0.7 0.3 --max_tokens_per_batch 120",
    "packed files": "causal --train_file rows.txt --line_by_line true --vocab_size 300 --packing 64",
    "stream": "mlm --streaming true --train_file rows.txt --line_by_line true --vocab_size 300 --block_size 16",
    "packed stream": "causal --streaming true --train_file rows.txt --line_by_line true --vocab_size 300 --packing 64",
}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory) -> Path:
    folder, random = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    rows = [" ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(60)]
    (folder / "rows.txt").write_text("\n".join(rows) + "\n", "utf-8")
    before = os.getcwd()
    os.chdir(folder)
    options = "--line_by_line true --vocab_size 300 --block_size 16 --num_proc 1 --validation_fraction 0.1"
    assert main(["prepare", "mlm", "--train_file", "rows.txt", *options.split(), "--output_dir", "data"]) == 0
    yield folder
    os.chdir(before)


def interrupt(clock, args, state, control, **kwargs) -> None:
    """`on_step_begin` of the clock: as if the user had pressed Ctrl+C, in the middle of a pass."""
    if state.global_step == 10:
        raise KeyboardInterrupt


def command(way: str, name: str) -> list[str]:
    return ["train", *WAYS[way].split(), *MODEL, "--output_dir", name]


def same_weights(first: str, second: str) -> bool:
    one, two = (load_file(f"{name}/model.safetensors") for name in (first, second))
    return all((one[name] == two[name]).all() for name in one)


@pytest.mark.parametrize("way", list(WAYS))
def test_it_continues_at_the_same_token(way, monkeypatch, capsys):
    name = way.replace(" ", "-")
    assert main(command(way, f"{name}-whole")) == 0
    with monkeypatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        assert main(command(way, name)) == 130
    assert main(command(way, name)) == 0
    assert "Resuming from step 8" in capsys.readouterr().err
    assert same_weights(name, f"{name}-whole")


def test_a_killed_process_is_continued(monkeypatch):
    way, name = "prepared and packed", "killed"
    arguments = [*command(way, name), "--max_steps", "400", "--save_total_limit", "1", "--bf16", "false"]
    process = subprocess.Popen([sys.executable, "-m", "roformer_lite.cli", *arguments], stderr=subprocess.DEVNULL)
    while not Path(f"{name}.training/checkpoint-8/trainer_state.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not Path(name).exists()
    assert main(arguments) == 0
    whole = [*arguments[: arguments.index(name)], "never-killed", *arguments[arguments.index(name) + 1 :]]
    assert main(whole) == 0
    assert same_weights(name, "never-killed")


def test_two_processes_share_the_data():
    """They learn what one process with twice the rows learns, up to rounding."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    no_draw = ["--config", *MODEL[3:7], "hidden_dropout=0.0", "attention_dropout=0.0"]
    options = ["train", "causal", "--prepared", "causal-data", *MODEL, *no_draw]
    prepare = "--line_by_line true --vocab_size 300 --block_size 16 --num_proc 1 --validation_fraction 0.1"
    assert (
        main(["prepare", "causal", "--train_file", "rows.txt", *prepare.split(), "--output_dir", "causal-data"]) == 0
    )
    two = [*launcher, "-m", "roformer_lite.cli", *options, "--per_device_train_batch_size", "2"]
    done = subprocess.run(
        [*two, "--output_dir", "two"], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert main([*options, "--output_dir", "one"]) == 0
    one, both = load_file("one/model.safetensors"), load_file("two/model.safetensors")
    assert max(float((one[name] - both[name]).abs().max()) for name in one) < 1e-3
