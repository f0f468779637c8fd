"""Two processes train as one: data-parallel, in shards (FSDP2), and tensor-parallel; on a CPU, by gloo."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from conftest import ROOT
from distributed_worker import (
    KINDS,
    MODELS,
    SHARDED,
    STEPS,
    adamw,
    batch_of,
    generated,
    muon,
    streamed_rows,
    with_accelerate,
)
from distributed_worker import with_loop as loop
from distributed_worker import with_trainer as trained
from safetensors.torch import load_file
from toy_training import HEADS, make_model

pytestmark = pytest.mark.slow  # pairs of processes; a quicker one is in tests/commands/test_cli_processes.py
HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def run_in_two(worker: str, folder: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command += [str(HERE / worker), str(folder)]
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-5000:]


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """Where two processes left what they did; they do everything in one go, as starting them takes longest."""
    folder = tmp_path_factory.mktemp("two")
    run_in_two("distributed_worker.py", folder)
    return folder


@pytest.fixture(scope="module")
def two(out) -> dict:
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """Where one process leaves its models."""
    return tmp_path_factory.mktemp("one")


@pytest.fixture(scope="module")
def one(alone) -> dict[str, list[float]]:
    """The losses of one process with the Trainer."""
    return {kind: trained(kind, make_model(kind), alone / kind) for kind in KINDS}


def assert_same_losses(got: list[float], wanted: list[float]) -> None:
    assert len(got) == len(wanted) == STEPS and wanted[-1] < wanted[0] - 0.1
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=0, atol=1e-4)


@pytest.mark.parametrize("way", ["ddp", "trainer-fsdp"])
@pytest.mark.parametrize("kind", KINDS)
def test_trainer_in_two_processes_equals_one(way, kind, one, two, out, alone):
    assert_same_losses(two[f"{way}/{kind}"], one[kind])
    models = [HEADS[kind][0].from_pretrained(folder).eval() for folder in (out / f"{way}-{kind}", alone / kind)]
    with torch.no_grad():
        torch.testing.assert_close(*(model(**batch_of(kind)).logits for model in models), rtol=0, atol=1e-3)


@pytest.mark.parametrize("way, make_optimizer", [("accelerate", adamw), ("muon", muon)])
def test_accelerate_loop_in_two_processes_equals_one(way, make_optimizer, two):
    assert_same_losses(two[f"{way}/mlm"], with_accelerate("mlm", make_optimizer))


def test_stream_in_two_processes_equals_one(two, tmp_path):
    assert_same_losses(two["stream/mlm"], trained("mlm", make_model("mlm"), tmp_path, streamed_rows("mlm")))


def test_checkpoint_of_two_processes_is_taken_up_again(two, one):
    assert_same_losses(two["resumed/mlm"], one["mlm"])


def test_checkpoint_in_shards_is_taken_up_again(two):
    assert_same_losses(two["fsdp/mlm/resumed"], two["fsdp/mlm/losses"])


@pytest.mark.parametrize("way, name", [(way, name) for way, names in SHARDED.items() for name in names])
def test_shards_equal_the_whole(way, name, two, out):
    """Losses, gradients, generated text, and the one file that is written."""
    model = MODELS[name]()
    assert two[f"{way}/{name}/gradient"] < 1e-5
    if model.can_generate():
        assert two[f"{way}/{name}/generated"] == generated(model)
    kind = name if name in HEADS else "causal" if name == "grouped" else "seq2seq"
    assert_same_losses(two[f"{way}/{name}/losses"], loop(kind, model))
    assert [path.name for path in (out / f"{way}-{name}").glob("*.safetensors")] == ["model.safetensors"]
    saved = load_file(out / f"{way}-{name}" / "model.safetensors")
    for key, weight in load_file(out / f"start-{name}" / "model.safetensors").items():
        assert saved[key].shape == weight.shape and not torch.equal(saved[key], weight), key
    loaded = type(model).from_pretrained(out / f"{way}-{name}").eval()
    with torch.no_grad():
        after, wanted = (m.eval()(**batch_of(kind)).logits for m in (loaded, model))
    torch.testing.assert_close(after, wanted, rtol=0, atol=2e-3)


def commands_of(page: Path) -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [command for block in blocks for command in block.replace("\\\n", " ").splitlines()]


def test_command_of_the_docs_on_two_machines(tmp_path):
    """Two launchers that know nothing of each other but an address, and share the output directory."""
    (command,) = [c for c in commands_of(ROOT / "docs" / "several_processes.md") if "--machine_rank" in c]
    (tmp_path / "text.txt").write_text("".join(f"line {n} says that {n} is a number\n" for n in range(60)), "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = dict(zip(shlex.split(command), shlex.split(command)[1:], strict=False))
    assert options["--num_machines"] == "2"
    command = command.replace(options["--main_process_ip"], "127.0.0.1")
    command = command.replace(options["--main_process_port"], str(port))
    command = command.replace(f"--num_processes {options['--num_processes']}", "--num_processes 2")
    first, *arguments = shlex.split(command)
    assert first == "accelerate"
    launcher = [sys.executable, "-m", "accelerate.commands.accelerate_cli", *arguments, "--use_cpu", "true"]
    at_rank = launcher.index("--machine_rank") + 1
    machines = []
    for rank in ("0", "1"):
        with (tmp_path / f"errors-{rank}.txt").open("w") as errors:
            command = [*launcher[:at_rank], rank, *launcher[at_rank + 1 :]]
            machines.append(subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=errors, stderr=errors))
    try:
        for machine in machines:
            machine.wait(timeout=240)
    finally:
        for machine in machines:
            machine.terminate()  # a launcher ends its processes with itself
        print(*((tmp_path / f"errors-{rank}.txt").read_text() for rank in "01"), sep="\n")
    assert [machine.returncode for machine in machines] == [0, 0]
    results = json.loads((tmp_path / options["--output_dir"] / "results.json").read_text())
    assert results["machine"]["processes"] == 2
    assert (tmp_path / options["--output_dir"] / "model.safetensors").exists()


def test_configurations_are_what_accelerate_and_the_model_know():
    files = sorted((ROOT / "examples" / "distributed").glob("*.yaml"))
    configs = {path.stem: load_config_from_file(str(path)) for path in files}
    types = {name: config.distributed_type for name, config in configs.items()}
    assert types == {"multi_gpu": "MULTI_GPU", "fsdp2": "FSDP"}
    wrapped = configs["fsdp2"].fsdp_config["fsdp_transformer_layer_cls_to_wrap"]
    assert wrapped in {type(module).__name__ for module in make_model("seq2seq").modules()}
    parser = launch_command_parser()
    known = {action.dest for action in parser._actions}
    assert configs["fsdp2"].fsdp_config.keys() <= known
