"""Results: a table on the screen, a JSON, a plot."""

import json
import os
import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .floor import FLOOR
from .stacks import OURS
from .tasks import Race
from .timing import ratio
from .workload import Workload


def machine(device: str) -> dict[str, Any]:
    """What the numbers were measured on."""
    names = ("hf_roformer_lite", "torch", "transformers", "x-transformers", "tokenizers")
    facts = {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in names},
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }
    if device == "cuda":
        facts |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def summary(task: str, work: Workload, race: Race) -> dict[str, Any]:
    """All that a race showed. `times_ours` of a peer is how many times as long as ours it takes."""
    by_name = {contender.name: contender for contender in race.contenders}
    ours, base = by_name.get(OURS), by_name.get(FLOOR)
    rows = {}
    for name, contender in by_name.items():
        row = {"seconds": contender.median, "tokens_per_second": race.tokens / contender.median}
        row |= {"times_ours": ratio(contender, ours)} if ours else {}
        row |= {"floor_ratio": ratio(base, contender)} if base else {}
        rows[name] = row
    return {"task": task, **asdict(work), "tokens": race.tokens, "machine": machine(work.device), "contenders": rows}


def show(result: dict[str, Any], console: Console) -> None:
    fields = ("size", "batch", "seq", "lengths", "dtype", "device")
    table = Table(title=f"{result['task']}: " + ", ".join(str(result[name]) for name in fields))
    for title in ("", "tokens/s", "ours is faster", "share of the floor"):
        table.add_column(title, justify="right" if title else "left")
    for name, row in sorted(result["contenders"].items(), key=lambda item: item[1]["seconds"]):
        times, share = row.get("times_ours"), row.get("floor_ratio")
        table.add_row(
            name,
            f"{row['tokens_per_second']:,.0f}",
            "" if times is None or name in (OURS, FLOOR) else f"{times:.2f} times",
            "" if share is None else f"{share:.2f}",
        )
    console.print(table)


def save(result: dict[str, Any], directory: Path) -> Path:
    """Write the JSON, and beside it the plot of all results of the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    names = ("task", "size", "batch", "seq", "lengths", "dtype", "device")
    path = directory / ("-".join(str(result[name]) for name in names) + ("-compile" * result["compile"]) + ".json")
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
