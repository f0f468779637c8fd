"""Summarises the times of contenders, prints a table, and writes a JSON file."""

import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]  # A row of a table, or an object in the JSON file of a result.

PACKAGES = ("hf_roformer_lite", "torch", "transformers", "onnxruntime", "openvino")


def difference(first: list[float], second: list[float]) -> float:
    """The largest difference between two outcomes, relative to the first."""
    pairs = zip(first, second, strict=True)
    return max(abs(one - two) / max(abs(one), 1e-12) for one, two in pairs)


def summary(seconds: dict[str, list[float]], base: str) -> dict[str, Row]:
    """Summarise the times of all contenders in all rounds.

    `times` is the ratio of the time of a contender to the time of `base`: the median of the ratios
    within a round. `times_of_least` is the ratio of the shortest times.
    """
    rows = {}
    for name, own in seconds.items():
        ratios = [one / two for one, two in zip(own, seconds[base], strict=True)]
        rows[name] = {
            "median_seconds": statistics.median(own),
            "least_seconds": min(own),
            "times": statistics.median(ratios),
            "times_of_least": min(own) / min(seconds[base]),
            "seconds": own,
        }
    return rows


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def report(
    task: str,
    options: Any,
    columns: list[str],
    rows: Iterable[Row],
    cells_of: Callable[[Row], list[str]],
    **facts: Any,
) -> Row:
    """Print a table in Markdown, row by row as they are measured, and write the result to a JSON
    file in the directory `options.out`, whose name is the task.

    Args:
        options: The dataclass of the task's options.
        facts: Further fields of the result.

    Returns:
        The result.
    """
    print(line(columns), line(["---"] * len(columns)), sep="\n", flush=True)
    result: Row = {"task": task, **asdict(options), **facts, "machine": machine(), "rows": []}
    for row in rows:
        result["rows"].append(row)
        print(line(cells_of(row)), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(result, indent=1, default=str)
        (options.out / f"{task}.json").write_text(f"{text}\n", "utf-8")
    return result


def machine() -> Row:
    """The machine and the versions with which the numbers were measured."""
    instructions = torch.backends.cpu.get_cpu_capability()
    if torch.cpu.get_capabilities().get("amx_tile"):
        instructions = "AMX"
    facts = {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "processor": _processor(),
        "instructions": instructions,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for text in path.read_text().splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    return platform.processor() or platform.machine()
