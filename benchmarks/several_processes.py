"""What several processes cost: tokens a second and bytes sent on this machine, and on paper what many GPUs would do.

`python -m benchmarks processes` measures, `python -m benchmarks processes --paper true` prints the arithmetic.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import HfArgumentParser, PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMaskedLM
from hf_roformer_lite.training.shards import in_shards

WAYS = ("ddp", "fsdp2")
LARGE = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}


@dataclass
class Step:
    """One step of a masked language model; every process has its own batch."""

    size: str = field(default="mini", metadata={"help": "tiny, mini, small or base"})
    vocab_size: int = field(default=8192, metadata={"help": "tokens of the vocabulary"})
    batch: int = field(default=16, metadata={"help": "rows of a process"})
    seq: int = field(default=128, metadata={"help": "tokens of a row"})
    rounds: int = field(default=8, metadata={"help": "measured steps, after two others"})
    way: str | None = field(default=None, metadata={"help": "what a launched process measures: ddp or fsdp2"})
    paper: bool = field(default=False, metadata={"help": "only print what many GPUs would do, on paper"})
    out: Path | None = field(default=None, metadata={"help": "directory of results"})


class SentBytes(TorchDispatchMode):
    """Counts what this process sends by the collectives of FSDP2, as a ring sends them."""

    def __init__(self):
        super().__init__()
        self.bytes = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        others = dist.get_world_size() - 1
        if func is torch.ops.c10d._allgather_base_.default:  # (output, input, …): the own part goes to all others
            self.bytes += args[1].nbytes * others
        elif func is torch.ops.c10d._reduce_scatter_base_.default:  # all parts but the own one leave
            self.bytes += args[0].nbytes * others
        return func(*args, **(kwargs or {}))


def measure_worker(step: Step) -> dict[str, float]:
    """Seconds of a step, those of the processor in it, its tokens a second, and what one process sends in it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    processes = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    config = RoFormerLiteConfig.from_preset(step.size, vocab_size=step.vocab_size)
    model: torch.nn.Module = RoFormerLiteForMaskedLM(config).train()
    weights = sum(weight.numel() for weight in model.parameters())
    sent = SentBytes()
    if processes > 1:
        model = in_shards(model, processes) if step.way == "fsdp2" else _with_counted_hook(model, sent)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(dist.get_rank())
    ids = torch.randint(5, step.vocab_size, (step.batch, step.seq))
    labels = torch.where(torch.rand(ids.shape) < 0.15, ids, -100)
    seconds, busy = [], []
    for _ in range(step.rounds + 2):
        dist.barrier()
        sent.bytes, started, started_busy = 0.0, time.perf_counter(), time.process_time()
        with sent:
            model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - started_busy)
    result = {
        "processes": processes,
        "weights": weights,
        "seconds": statistics.median(seconds[2:]),
        "processor_seconds": statistics.median(busy[2:]),  # of the first process; other work changes it little
        "tokens_per_second": processes * ids.numel() / statistics.median(seconds[2:]),
        "sent_bytes": sent.bytes,
    }
    dist.barrier()
    dist.destroy_process_group()
    return result


def _with_counted_hook(model: PreTrainedModel, sent: SentBytes) -> DistributedDataParallel:
    """DDP whose buckets of gradients are counted as a ring sends them: 2 (n - 1) / n of their bytes."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    def counted(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        processes = dist.get_world_size()
        sent.bytes += 2 * (processes - 1) / processes * bucket.buffer().nbytes
        return allreduce_hook(group, bucket)

    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(None, counted)
    return wrapped


def measure_here(step: Step) -> list[dict[str, Any]]:
    """Each way with one and with two processes of one thread each, by torchrun."""
    options = [f"--{name}={getattr(step, name)}" for name in ("size", "vocab_size", "batch", "seq", "rounds")]
    rows = []
    for way, processes in (("ddp", 1), ("ddp", 2), ("fsdp2", 2)):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        worker = ["-m", "benchmarks", "processes", *options, "--way", way]
        done = subprocess.run(
            [sys.executable, *launcher, *worker],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows.append({"way": way if processes > 1 else "alone", **json.loads(done.stdout.splitlines()[-1])})
    return rows


@dataclass(frozen=True)
class Cluster:
    """What is assumed of GPUs and links; H100-like."""

    rate: float = 400e12  # operations a second in products: 40 % of the peak of bfloat16
    inside: float = 300e9  # bytes a second of one GPU to the others of its machine
    between: float = 40e9  # bytes a second of one GPU to other machines: 400 Gbit/s, 80 % of it
    machine: int = 8  # GPUs of a machine
    tokens: int = 16_384  # of one GPU in a step
    gradient_bytes: int = 4  # of one weight: float32 beside autocast


def on_paper(cluster: Cluster | None = None) -> list[dict[str, Any]]:
    """Seconds of a step of DDP, of base and large models of 512 tokens a row, by the number of GPUs."""
    cluster = cluster or Cluster()
    base = RoFormerLiteConfig.from_preset("base", vocab_size=30_522)
    large = RoFormerLiteConfig(vocab_size=30_522, **LARGE)
    rows = []
    for name, config in (("base", base), ("large", large)):
        with torch.device("meta"):
            weights = sum(weight.numel() for weight in RoFormerLiteForMaskedLM(config).parameters())
        matrices = (
            config.num_hidden_layers * config.hidden_size * (4 * config.hidden_size + 2 * config.intermediate_size)
        )
        attention = config.num_hidden_layers * 2 * config.hidden_size * 512  # scores and values, for one token
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
    """`on_paper` as rows of a table."""
    lines = ["| model | GPUs | products, ms | sent, GB | sending, ms | step, ms | million tokens/s | of the ideal |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in on_paper():
        lines.append(
            f"| {row['model']}, {row['weights'] / 1e6:.0f} M | {row['gpus']} | {row['compute_ms']:.1f} "
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
