"""Two processes train as one does: data-parallel, in shards (FSDP2), and tensor-parallel.

They run on a CPU and communicate by gloo.
"""

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import program
import pytest
import torch
from conftest import ROOT, assert_close
from distributed_worker import (
    DATA_PARALLEL,
    KINDS,
    MODELS,
    PARALLEL,
    SHARDED,
    STEPS,
    STOCK,
    generated,
    kind_of,
)
from distributed_worker import with_loop as loop
from distributed_worker import with_trainer as trained
from documentation import blocks_of
from program import assert_same_models, in_new_process, read_json, results_of, run, write_rows
from safetensors.torch import load_file
from toy_training import make_batch

# These tests start pairs of processes.
pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    # The reason for this setting is in docs/scaling.md#several-processes.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
TINY = f"{program.TINY} hidden_dropout=0.0 --baselines false"


def run_in_two(*program: str | Path) -> str:
    """Run a program in two processes and return what they write to their error stream.

    Processes that die are started again.
    """
    launcher = "-m torch.distributed.run --standalone --nproc_per_node 2 --max-restarts 3".split()
    return in_new_process(*launcher, *program, env=ENVIRONMENT).stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """The folder with the results of two processes.

    They do everything in one go, because starting them takes longest.
    """
    folder = tmp_path_factory.mktemp("two")
    run_in_two(HERE / "distributed_worker.py", folder)
    return folder


@pytest.fixture(scope="module")
def two(out) -> dict:
    return results_of(out)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The folder with the models of one process."""
    return tmp_path_factory.mktemp("one")


@pytest.fixture(scope="module")
def one(alone) -> dict[str, list[float]]:
    """The losses of one process with the Trainer."""
    return {
        name: trained(kind_of(name), MODELS[name](), alone / name) for name in {*KINDS, *SHARDED}
    }


def assert_same_losses(got: list[float], wanted: list[float]) -> None:
    assert len(got) == len(wanted) == STEPS and wanted[-1] < wanted[0] - 0.1
    assert_close(got, wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("ddp", "mlm"),
        ("ddp", "seq2seq"),
        ("fsdp", "mlm"),
        ("fsdp", "shared"),
    ],
)
def test_trainer_in_two_processes_equals_one(way, name, one, two, out, alone):
    assert_same_losses(two[f"{way}/{name}"], one[name])
    model = MODELS[name]()
    models = [
        type(model).from_pretrained(folder).eval()
        for folder in (out / f"{way}-{name}", alone / name)
    ]
    with torch.no_grad():
        assert_close(*(model(**make_batch(kind_of(name))).logits for model in models), atol=1e-3)


@pytest.mark.parametrize(
    ("way", "name"),
    [
        *(("ddp", model_class.config_class.model_type) for model_class in DATA_PARALLEL),
        *(("fsdp", name) for name in STOCK),
    ],
)
def test_padding_free_in_two_processes_equals_stock(way, name, two):
    """Both train in double precision, so that they agree to the last digits."""
    stock, free = (two[f"{way}/{name}/{is_free}"] for is_free in (False, True))
    assert len(stock) == STEPS and stock[-1] < stock[0] - 0.1
    assert_close(free, stock, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PARALLEL)
def test_tensor_parallel_equals_the_whole(name, two, out):
    """Losses, generated text and the single file of weights are the same."""
    model = MODELS[name]()
    if model.can_generate():
        assert two[f"tp/{name}/generated"] == generated(model)
    assert_same_losses(two[f"tp/{name}/losses"], loop(kind_of(name), model))
    assert [path.name for path in (out / f"tp-{name}").glob("*.safetensors")] == [
        "model.safetensors"
    ]
    saved = load_file(out / f"tp-{name}" / "model.safetensors")
    for key, weight in load_file(out / f"start-{name}" / "model.safetensors").items():
        assert saved[key].shape == weight.shape and not torch.equal(saved[key], weight), key
    loaded = type(model).from_pretrained(out / f"tp-{name}").eval()
    with torch.no_grad():
        after, wanted = (m.eval()(**make_batch(kind_of(name))).logits for m in (loaded, model))
    assert_close(after, wanted, atol=2e-3)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [
        {"source": f"line {n} says that {n} is a number", "target": f"it says so {n % 7} times"}
        for n in range(360)
    ]
    return write_rows(path, rows)


def losses(model: Path) -> list[float]:
    (state,) = model.with_name(f"{model.name}.training").glob("checkpoint-10/trainer_state.json")
    return [entry["loss"] for entry in read_json(state)["log_history"] if "loss" in entry]


@pytest.mark.parametrize(
    ("optim", "rate", "tolerance"), [("sgd", "0.05", 1e-4), ("muon", "0.002", 1e-3)]
)
def test_the_command_in_two_processes_trains_as_one_that_accumulates(
    optim, rate, tolerance, pairs, tmp_path
):
    """Two processes share the batches that a single process takes one after the other.

    There is only one epoch, because two processes may repeat a batch at its end. Muon computes in
    bfloat16 and magnifies rounding errors, so its tolerance is larger.
    """
    command = (
        f"train seq2seq --train_file {pairs} {TINY} --keep_checkpoints --max_steps 10 "
        f"--optim {optim} --learning_rate {rate} --ema_decay 0.9 "
        "--max_tokens_per_batch 300 "
        "--training_arguments save_strategy=steps save_steps=10 logging_steps=1"
    )
    run(f"{command} gradient_accumulation_steps=2", output_dir=tmp_path / "one")
    two = ["--output_dir", tmp_path / "two"]
    run_in_two("-m", "roformer_lite.cli", *command.split(), *two)
    assert results_of(tmp_path / "two")["machine"]["processes"] == 2
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=tolerance)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    assert_close(*weights, rtol=tolerance, atol=tolerance / 10)


def test_killed_workers_change_nothing(tmp_path):
    """The first worker to die only learns, and the second one also writes the checkpoints.

    The second one holds the lock of the directory, too.
    """
    rows = [{"text": f"line {n} says that {n} is a number"} for n in range(400)]
    data = write_rows(tmp_path / "text.jsonl", rows)
    command = (
        f"train mlm --train_file {data} {TINY} --block_size 16 --max_steps 30 "
        "--config hidden_dropout=0.1 "
        "--training_arguments save_strategy=steps save_steps=5 save_total_limit=9 eval_strategy=no "
        "--output_dir"
    ).split()
    run_in_two("-m", "roformer_lite.cli", *command, tmp_path / "whole")
    killed = [HERE / "killed_worker.py", tmp_path, "[[1, null, 7], [0, null, 17]]"]
    messages = run_in_two(*killed, *command, tmp_path / "model")
    assert len(list(tmp_path.glob("killed-*"))) == 2 and messages.count("Resuming from step") == 2
    assert_same_models(tmp_path / "whole", tmp_path / "model")


def test_command_of_the_docs_on_two_machines(tmp_path):
    """The two launchers share nothing but an address and the output directory."""
    blocks = blocks_of(ROOT / "docs" / "scaling.md")
    (shown,) = [block.code for block in blocks if "--machine_rank" in block.code]
    rows = [f"line {n} says that {n} is a number" for n in range(60)]
    (tmp_path / "text.txt").write_text("\n".join(rows))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    values = {"main_process_ip": "127.0.0.1", "main_process_port": port, "num_processes": 2}

    def run_machine(rank: int) -> None:
        command = shown.replace("\\\n", " ").removeprefix("accelerate")
        for option, value in {**values, "machine_rank": rank}.items():
            command = re.sub(rf"--{option} \S+", f"--{option} {value}", command)
        words = ["accelerate.commands.accelerate_cli", *command.split(), "--use_cpu", "true"]
        in_new_process("-m", *words, timeout=240, cwd=tmp_path, env=ENVIRONMENT)

    with ThreadPoolExecutor() as machines:
        list(machines.map(run_machine, (0, 1)))
    assert results_of(tmp_path / "masked-lm-of-two")["machine"]["processes"] == 2
