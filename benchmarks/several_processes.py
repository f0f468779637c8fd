"""The cost of several processes: tokens per second and bytes sent on this machine, and estimates
for many GPUs.

`python -m benchmarks processes` measures, and `python -m benchmarks processes --paper true` prints
the estimates.
"""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile, mkdtemp
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from transformers import HfArgumentParser, PreTrainedModel
from transformers.distributed import DistributedConfig

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMaskedLM

WAYS = ("ddp", "fsdp2", "tp")
# All numbers are in float32.
BYTES_OF_NUMBER = 4
NUM_WARM_UP_STEPS = 2
LARGE = {
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


@dataclass
class Step:
    """One step of a masked language model. Every process has its own batch, except with tensor
    parallelism."""

    size: str = field(default="mini", metadata={"help": "tiny, mini, small or base"})
    vocab_size: int = field(default=8192, metadata={"help": "tokens of the vocabulary"})
    batch: int = field(default=16, metadata={"help": "rows of a process"})
    seq: int = field(default=128, metadata={"help": "tokens of a row"})
    rounds: int = field(default=8, metadata={"help": "measured steps, after two others"})
    way: str | None = field(
        default=None, metadata={"help": "what a launched process does: ddp, fsdp2 or tp"}
    )
    paper: bool = field(default=False, metadata={"help": "only print the estimates for many GPUs"})
    out: Path | None = field(default=None, metadata={"help": "directory of results"})


def sent_bytes(run: Callable[[], None]) -> float:
    """The bytes that this process sends in `run` for collectives in float32, if they are organised
    as a ring. They are counted with the profiler of torch.

    The broadcast of buffers by DDP is left out, because the angles of positions have only 256
    bytes.
    """
    processes = dist.get_world_size()
    others = processes - 1
    # The position of the argument that a collective sends, and the number of times it is sent.
    shares: dict[str, tuple[int, float]] = {
        # The arguments are (output, input, …), and the input is sent to all others.
        "c10d::_allgather_base_": (1, others),
        "c10d::allgather_into_tensor_coalesced_": (1, others),
        # All parts are sent except for the process's own.
        "c10d::_reduce_scatter_base_": (0, others),
        # The sums are scattered and then gathered.
        "c10d::allreduce_": (0, 2 * others / processes),
        "c10d::broadcast_": (0, 0),
    }
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    with NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text("utf-8"))["traceEvents"]
    sent = 0.0
    for event in events:
        if event.get("name", "").startswith("c10d::"):
            argument, times = shares[event["name"]]
            shapes = event["args"]["Input Dims"][argument]
            is_list_of_tensors = bool(shapes) and isinstance(shapes[0], list)
            if not is_list_of_tensors:
                shapes = [shapes]
            sent += BYTES_OF_NUMBER * times * sum(map(math.prod, shapes))
    return sent


def measure_worker(step: Step) -> dict[str, float]:
    """The elapsed and the processor seconds of a step, its tokens per second, and the bytes that
    one process sends."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    processes = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    config = RoFormerLiteConfig.from_preset(step.size, vocab_size=step.vocab_size)
    model = RoFormerLiteForMaskedLM(config).train()
    weights = sum(weight.numel() for weight in model.parameters())
    way = step.way if processes > 1 else None
    train_on = _training_step(model, way, processes)
    # With tensor parallelism, all processes have the same batch.
    num_batches = 1 if step.way == "tp" else processes
    torch.manual_seed(dist.get_rank() if num_batches > 1 else 0)
    ids = torch.randint(5, step.vocab_size, (step.batch, step.seq))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    seconds = []
    processor_seconds = []
    for _ in range(NUM_WARM_UP_STEPS + step.rounds):
        dist.barrier()
        started = time.perf_counter()
        processor_started = time.process_time()
        train_on(input_ids=ids, labels=labels)
        seconds.append(time.perf_counter() - started)
        processor_seconds.append(time.process_time() - processor_started)
    median = statistics.median(seconds[NUM_WARM_UP_STEPS:])
    result = {
        "processes": processes,
        "weights": weights,
        "seconds": median,
        # Other work on the machine hardly changes the processor time of the first process.
        "processor_seconds": statistics.median(processor_seconds[NUM_WARM_UP_STEPS:]),
        "tokens_per_second": num_batches * ids.numel() / median,
        "sent_bytes": sent_bytes(lambda: train_on(input_ids=ids, labels=labels)),
    }
    dist.barrier()
    dist.destroy_process_group()
    return result


def _training_step(model: PreTrainedModel, way: str | None, processes: int) -> Callable[..., None]:
    """A whole step of a model on one batch. `way` determines how the weights are joined with those
    of other processes."""
    joined: nn.Module = model
    if way == "fsdp2":
        config, _, mesh = type(model).prepare_distribute_model(
            DistributedConfig(fsdp_size=processes)
        )
        joined = type(model).maybe_distribute_model(model, config, mesh)
    if way == "tp":
        joined = _in_columns(model, processes)
    optimizer = torch.optim.AdamW(joined.parameters(), lr=1e-4)
    if way == "ddp":
        joined = DistributedDataParallel(model)

    def by_hand(**inputs: torch.Tensor) -> None:
        joined(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return by_hand


def _in_columns(model: PreTrainedModel, processes: int) -> PreTrainedModel:
    """The model as transformers loads it with its matrices divided among the processes."""
    folder = [mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        model.save_pretrained(folder[0])
    dist.barrier()
    loaded = type(model).from_pretrained(
        folder[0], distributed_config=DistributedConfig(tp_size=processes)
    )
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return loaded.train()


def measure_here(step: Step) -> list[dict[str, Any]]:
    """Measure one process, and two that are joined in each way. Each process has one thread."""
    options = [
        f"--{name}={getattr(step, name)}"
        for name in ("size", "vocab_size", "batch", "seq", "rounds")
    ]
    rows = [{**launch(options, WAYS[0], processes=1), "way": "alone"}]
    for way in WAYS:
        rows.append(launch(options, way, processes=2))
    return rows


def launch(options: list[str], way: str, processes: int) -> dict[str, Any]:
    """The figures of `processes` processes that are joined in one way."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    worker = ["-m", "benchmarks", "processes", *options, "--way", way]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *worker],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {"way": way, **json.loads(done.stdout.splitlines()[-1])}


@dataclass(frozen=True)
class Cluster:
    """The assumed GPUs and links, which resemble H100s.

    Args:
        rate: Operations per second in products, 40 % of the peak of bfloat16.
        inside: Bytes per second from one GPU to the others of its machine.
        between: Bytes per second from one GPU to other machines, 80 % of 400 Gbit/s.
        machine: The number of GPUs in a machine.
        tokens: The number of tokens of one GPU in a step.
        gradient_bytes: The bytes of the gradient of one weight, which autocast keeps in float32.
    """

    rate: float = 400e12
    inside: float = 300e9
    between: float = 40e9
    machine: int = 8
    tokens: int = 16_384
    gradient_bytes: int = 4


def on_paper(cluster: Cluster | None = None) -> list[dict[str, Any]]:
    """The seconds of a step of DDP by the number of GPUs, for base and large models with 512 tokens
    in a row."""
    cluster = cluster or Cluster()
    base = RoFormerLiteConfig.from_preset("base", vocab_size=30_522)
    large = RoFormerLiteConfig(vocab_size=30_522, **LARGE)
    rows = []
    for name, config in (("base", base), ("large", large)):
        with torch.device("meta"):
            weights = sum(weight.numel() for weight in RoFormerLiteForMaskedLM(config).parameters())
        matrices = (
            config.num_hidden_layers
            * config.hidden_size
            * (4 * config.hidden_size + 2 * config.intermediate_size)
        )
        # For one token there are products for the scores of all keys, and for the sum of all
        # values.
        attention = config.num_hidden_layers * 2 * config.hidden_size * 512
        forward = 2 * (matrices + attention) * cluster.tokens / cluster.rate
        backward = 2 * forward
        for gpus in (1, 8, 64, 512):
            link = cluster.inside if gpus <= cluster.machine else cluster.between
            sent = 2 * (gpus - 1) / gpus * weights * cluster.gradient_bytes
            step = forward + max(backward, sent / link)
            rows.append(
                {
                    "model": name,
                    "weights": weights,
                    "gpus": gpus,
                    "compute_ms": 1000 * (forward + backward),
                    "sent_gb": sent / 1e9,
                    "sending_ms": 1000 * sent / link,
                    "step_ms": 1000 * step,
                    "tokens_per_second": gpus * cluster.tokens / step,
                    "efficiency": (forward + backward) / step,
                }
            )
    return rows


def paper_table() -> list[str]:
    """The result of `on_paper` as rows of a table."""
    lines = [
        "| model | GPUs | products, ms | sent, GB | sending, ms | step, ms | million tokens/s "
        "| of the ideal |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in on_paper():
        lines.append(
            f"| {row['model']}, {row['weights'] / 1e6:.0f} M | {row['gpus']} "
            f"| {row['compute_ms']:.1f} "
            f"| {row['sent_gb']:.2f} | {row['sending_ms']:.1f} | {row['step_ms']:.1f} "
            f"| {row['tokens_per_second'] / 1e6:.2f} | {row['efficiency']:.0%} |"
        )
    return lines


def main(options: list[str]) -> None:
    """`python -m benchmarks processes`."""
    parser = HfArgumentParser(Step, prog="python -m benchmarks processes", allow_abbrev=False)
    (step,) = parser.parse_args_into_dataclasses(options)
    if step.paper:
        print(*paper_table(), sep="\n")
        return
    if step.way is not None:
        result = measure_worker(step)
        if os.environ["RANK"] == "0":
            print(json.dumps(result))
        return
    rows = measure_here(step)
    for row in rows:
        print(json.dumps(row))
    if step.out is not None:
        step.out.mkdir(parents=True, exist_ok=True)
        (step.out / "processes.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
