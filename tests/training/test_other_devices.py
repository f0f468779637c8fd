"""A training that is continued on another number of processes: data-parallel, and in shards (FSDP2)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.training.devices import DEVICES, same_steps

HERE = Path(__file__).parent
OPTIONS = (
    "--size tiny --config hidden_size=20 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "hidden_dropout=0.0 --vocab_size 300 --block_size 16 --line_by_line true --max_steps 12 --save_strategy steps "
    "--save_steps 6 --eval_strategy no --baselines false --use_cpu true --disable_tqdm true --learning_rate 3e-3"
).split()
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
ROWS = 24  # of a step


def command(folder: Path, name: str, processes: int, *more: str) -> list[str]:
    """The same rows in each step, however many processes share them."""
    data = ["--train_file", str(folder / "text.txt"), "--output_dir", str(folder / name)]
    return ["train", "causal", *OPTIONS, *data, "--per_device_train_batch_size", str(ROWS // processes), *more]


def launch(processes: int, *program: str) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    done = subprocess.run(
        [sys.executable, *launcher, *program], env=ENVIRONMENT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With `whole`, a model whose training was not interrupted, and those of two processes that were."""
    folder = tmp_path_factory.mktemp("devices")
    lines = "".join(f"line {n} says that {n} is a number\n" for n in range(400))
    (folder / "text.txt").write_text(lines, "utf-8")
    assert main(command(folder, "whole", 1)) == 0
    for name, more in (("copies", ()), ("shards", ("--shard_weights", "true"))):
        launch(2, str(HERE / "interrupted_worker.py"), "8", *command(folder, name, 2, *more))
        assert (folder / f"{name}.training" / "checkpoint-6").is_dir()
    return folder


def assert_same_weights(folder: Path, name: str) -> None:
    got, wanted = (load_file(folder / of / "model.safetensors") for of in (name, "whole"))
    assert got.keys() == wanted.keys()
    for key in wanted:
        torch.testing.assert_close(got[key], wanted[key], rtol=0, atol=1e-4)


def again(folder: Path, name: str) -> None:
    """What is left of the interrupted training, once more under the name that its options have."""
    kept = folder / f"{name}.kept"
    if not kept.exists():
        shutil.copytree(folder / f"{name}.training", kept)
    shutil.rmtree(folder / f"{name}.training", ignore_errors=True)
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(kept, folder / f"{name}.training")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_shards_of_two_processes_are_continued_by(processes, folder):
    again(folder, "shards")
    launch(processes, "-m", "roformer_lite.cli", *command(folder, "shards", processes, "--shard_weights", "true"))
    assert_same_weights(folder, "shards")


@pytest.mark.slow
def test_copies_of_two_processes_are_continued_by_one(folder, capsys):
    again(folder, "copies")
    rows = ["--per_device_train_batch_size", str(ROWS // 2)]
    assert main([*command(folder, "copies", 1), *rows]) == 2, "half of the rows in each step"
    assert "the number of devices was 2 and is 1" in capsys.readouterr().err
    assert main(command(folder, "copies", 1)) == 0
    assert "It was written by 2 processes, and 1 continue it" in capsys.readouterr().err
    assert_same_weights(folder, "copies")


def test_steps_are_the_same_where_their_rows_are():
    def options(devices: int, rows: int, batches: int = 1, **others) -> dict:
        step = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": batches}
        return {"task": "mlm", DEVICES: devices, **step, "train_sampling_strategy": "random", **others}

    assert same_steps(options(2, 16), options(1, 32)) and not same_steps(options(1, 16, 2), options(1, 32))
    negatives_in_the_batch = {"task": "embed"}
    assert not same_steps(options(2, 16, **negatives_in_the_batch), options(1, 32, **negatives_in_the_batch))
    assert not same_steps(options(2, 16), options(1, 16)) and not same_steps({}, {})
    for made_for_a_number in ("packing", "max_tokens_per_batch", "streaming", "prepared"):
        others = {made_for_a_number: 512}
        assert not same_steps(options(2, 16, **others), options(1, 32, **others))


def test_shards_are_for_tasks_that_learn_by_gradients_alone(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("text,label\na,b\nc,d\n", "utf-8")
    data = ["--train_file", str(tmp_path / "rows.csv"), "--output_dir", str(tmp_path / "model")]
    assert main(["train", "classify", *data, "--shard_weights", "true"]) == 2
    assert "--shard_weights is for mlm, causal and seq2seq, not for classify" in capsys.readouterr().err
