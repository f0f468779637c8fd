"""Shows each result as a table, writes it to a JSON file, and makes a Markdown table of many
results."""

import json
import os
import platform
from dataclasses import asdict
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .floor import FLOOR
from .stacks import OURS
from .tasks import Comparison
from .timing import ratio
from .workload import Workload

SETTING = ("task", "size", "batch", "seq", "lengths", "dtype", "device")
NOT_PEERS = (OURS, FLOOR, "ours, all layers local")
# These peers are not models of transformers: modules of torch.nn, and another library.
OTHER_LIBRARIES = ("torch", "x-transformers")
PACKAGES = (
    "hf_roformer_lite",
    "torch",
    "transformers",
    "x-transformers",
    "tokenizers",
    "onnxruntime",
    "openvino",
)


def machine(device: str) -> dict[str, Any]:
    """The machine and the versions with which the numbers were measured."""
    instructions = torch.backends.cpu.get_cpu_capability()
    if torch.cpu.get_capabilities().get("amx_tile"):
        instructions = "AMX"
    facts = {
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "processor": _processor(),
        "instructions": instructions,
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
    }
    if device == "cuda":
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
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def setting(work: Workload, **others: Any) -> dict[str, Any]:
    return {**asdict(work), **others, "machine": machine(work.device)}


def summary(comparison: Comparison) -> dict[str, dict[str, float]]:
    """The results of all contenders. `times_ours` is the ratio of the time of a contender to
    ours."""
    by_name = {contender.name: contender for contender in comparison.contenders}
    ours = by_name.get(OURS)
    base = by_name.get(FLOOR)
    rows = {}
    for name, contender in by_name.items():
        row = {
            "seconds": contender.median,
            "tokens_per_second": comparison.tokens / contender.median,
        }
        if ours is not None:
            row["times_ours"] = ratio(contender, ours)
        if base is not None:
            row["floor_ratio"] = ratio(base, contender)
        rows[name] = row
    return rows


def title(result: dict[str, Any], vocabulary: str = "vocabulary {:,}") -> str:
    """The setting of a result in words. `vocabulary` is the format of a `vocab_size` that is not
    the default."""
    values = [str(result[name]) for name in SETTING if name in result]
    vocab_size = result.get("vocab_size", Workload.vocab_size)
    if vocab_size != Workload.vocab_size:
        values.append(vocabulary.format(vocab_size))
    if result.get("compile", False):
        values.append("compile")
    return " ".join(values)


def show(result: dict[str, Any], console: Console) -> None:
    rows = result["contenders"]
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    table = Table(title=title(result))
    table.add_column("")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    for name, row in rows.items():
        cells = {column: f"{value:,.4g}" for column, value in row.items()}
        table.add_row(name, *(cells.get(column, "") for column in columns))
    console.print(table)


def save(result: dict[str, Any], directory: Path) -> None:
    """Write the JSON file of a result, whose name is its setting."""
    directory.mkdir(parents=True, exist_ok=True)
    # These are the names of the published results.
    name = title(result, vocabulary="{} words").replace(" ", "-")
    (directory / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def load(directory: Path) -> list[dict[str, Any]]:
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
    # Results without contenders are shown by other tables.
    results = [result for result in results if "contenders" in result]
    if not results:
        raise SystemExit(f"out={str(directory)!r} holds no results (*.json).")
    return results


def markdown(directory: Path) -> str:
    """A table with a row for each result in the directory: ours, the fastest model of transformers,
    and the fastest of all others."""
    lines = [
        "| work | ours | fastest of transformers | of all others | floor |",
        "|---|---|---|---|---|",
    ]
    for result in load(directory):
        rows = result["contenders"]
        if OURS not in rows or "times_ours" not in rows[OURS]:
            continue
        peers = {name: row["times_ours"] for name, row in rows.items() if name not in NOT_PEERS}
        of_transformers = {
            name: times for name, times in peers.items() if name not in OTHER_LIBRARIES
        }
        cells = [_fastest(of_transformers), _fastest(peers)]
        share = rows[OURS].get("floor_ratio")
        cells.append("" if share is None else f"{share:.2f}")
        speed = f"{rows[OURS]['tokens_per_second']:,.0f} tokens/s"
        lines.append(f"| {title(result)} | {speed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def engine_tables(directory: Path) -> str:
    """A table for each processor with results of `inference` in the directory, followed by the
    reasons why engines are missing."""
    tables = []
    for path in sorted(directory.glob("*.json")):
        result = json.loads(path.read_text())
        tables.append(engine_table(result["work"], result["machine"], result["engines"]))
    return "\n\n".join(tables)


def engine_table(
    work: dict[str, Any], machine: dict[str, Any], kinds: dict[str, dict[str, Any]]
) -> str:
    lines = [
        f"**{machine['processor']}, {machine['instructions']}**, threads: {machine['threads']}; "
        f"version {machine['hf_roformer_lite']}, size {work['size']}, "
        f"texts of up to {work['seq']} tokens; CPU milliseconds, medians of {work['rounds']}",
        "",
        f"| work | rows | {' | '.join(work['engines'])} |",
        "|---|--:|" + "--:|" * len(work["engines"]),
    ]
    for kind, rows in product(kinds, work["rows"]):
        cells = []
        for found in kinds[kind].values():
            seconds = found.get(f"processor_seconds_{rows}")
            cells.append("" if seconds is None else f"{seconds * 1000:,.1f}")
        lines.append(f"| {kind} | {rows} | {' | '.join(cells)} |")
    for kind, engine in product(kinds, work["engines"]):
        reason = kinds[kind][engine].get("missing")
        if reason:
            lines.append(f"\n{engine}, {kind}: missing; {reason}")
    return "\n".join(lines)


def _fastest(peers: dict[str, float]) -> str:
    """The name of the fastest peer, and the ratio of our speed to its speed."""
    if not peers:
        return ""
    name = min(peers, key=peers.__getitem__)
    return f"{peers[name]:.2f} × {name}"
