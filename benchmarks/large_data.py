"""Text that outgrows memory: the rates of preparing and of reading it, and the memory of every
process."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
from transformers import HfArgumentParser

from .processes import python

_SENTENCES = 4, 12  # of a document
_TOKENIZER_MB = 20

CALL = """
import json, sys
from benchmarks import large_data
print(json.dumps(getattr(large_data, sys.argv[1])(*sys.argv[2:])))
"""


@dataclass
class LargeDataOptions:
    """Options of `python -m benchmarks data`."""

    texts: list[str]  # files whose lines are drawn to make documents
    megabytes: int = 1000  # of the made corpus
    vocab_size: int = 8192
    folder: str | None = None  # where the corpus is made; a temporary one is removed at the end
    out: str | None = None  # a JSON file of the results


def main(arguments: list[str]) -> None:
    (options,) = HfArgumentParser(
        LargeDataOptions, prog="python -m benchmarks data"
    ).parse_args_into_dataclasses(arguments)
    folder = Path(options.folder or mkdtemp(prefix="large-data-"))
    folder.mkdir(exist_ok=True)
    try:
        result = measure(options, folder)
    finally:
        if not options.folder:
            shutil.rmtree(folder)
    print(json.dumps(result, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def measure(options: LargeDataOptions, folder: Path) -> dict[str, Any]:
    """All figures of one corpus."""
    from hf_roformer_lite import RoFormerLiteTokenizer

    sentences = [
        line.strip()
        for path in options.texts
        for line in open(path, encoding="utf-8")
        if line.strip()
    ]
    small, large = folder / "small.txt", folder / "large.txt"
    write_corpus(sentences, small, _TOKENIZER_MB, seed=1)
    write_corpus(sentences, large, options.megabytes, seed=2)
    with small.open(encoding="utf-8") as lines:
        sample = lines.readlines(_TOKENIZER_MB * 10**6)
    tokenizer = RoFormerLiteTokenizer.train(
        sample, vocab_size=options.vocab_size, show_progress=False
    )
    tokenizer.save_pretrained(folder / "tokenizer")
    preparation = prepare(folder, large, folder / "prepared")
    reading = json.loads(python(CALL, "read", str(folder / "prepared")))
    return {
        "cores": os.cpu_count(),
        "sentences": len(sentences),
        "prepare": preparation,
        "read": reading,
    }


def write_corpus(sentences: list[str], path: Path, megabytes: int, seed: int) -> None:
    """Documents of a few sentences drawn at random, one a line."""
    drawn, size = random.Random(seed), 0
    with path.open("w", encoding="utf-8") as stream:
        while size < megabytes * 10**6:
            line = " ".join(drawn.choices(sentences, k=drawn.randint(*_SENTENCES))) + "\n"
            size += len(line.encode())
            stream.write(line)


def prepare(folder: Path, text: Path, output: Path) -> dict[str, Any]:
    """The rate of `roformer-lite prepare`, and the resident memory of its process."""
    command = [
        sys.executable,
        "-m",
        "roformer_lite.cli",
        "prepare",
        "mlm",
        "--train_file",
        str(text),
    ]
    command += [
        "--line_by_line",
        "--tokenizer",
        str(folder / "tokenizer"),
        "--output_dir",
        str(output),
    ]
    started, process = time.perf_counter(), subprocess.Popen(command)
    memory: list[float] = []  # in MiB
    while process.poll() is None:
        memory.append(_largest(psutil.Process(process.pid)))
        time.sleep(1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    megabytes, tokens = (
        text.stat().st_size / 1e6,
        json.loads((output / "prepared.json").read_text("utf-8"))["tokens"],
    )
    size = sum(path.stat().st_size for path in (output / "train").iterdir())
    return {
        "megabytes": round(megabytes),
        "mb_per_second": round(megabytes / (time.perf_counter() - started), 1),
        "tokens": tokens,
        "bytes_a_token_on_disk": round(size / tokens, 2),
        "memory_mib": _over_time(memory),
    }


def _largest(process: psutil.Process) -> float:
    most = 0.0
    for one in (process, *process.children(recursive=True)):
        try:
            most = max(most, one.memory_info().rss / 2**20)
        except psutil.NoSuchProcess:
            continue
    return most


def _over_time(memory: list[float]) -> dict[str, int]:
    """The most until a fifth of the time, until half of it and until its end."""
    parts = {"first_fifth": 0.2, "first_half": 0.5, "whole": 1.0}
    return {
        name: round(max(memory[: max(1, int(len(memory) * part))])) for name, part in parts.items()
    }


def read(folder: str, seconds: str = "120") -> dict[str, Any]:
    """Read prepared data as a training does, in random order and with masks, for one pass or some
    time."""
    from datasets import load_from_disk
    from torch.utils.data import DataLoader

    from roformer_lite.data.blocks import BlockCollator
    from roformer_lite.train.tokenizers import pretrained_tokenizer

    collator = BlockCollator(pretrained_tokenizer(f"{folder}/tokenizer"))
    process, memory, tokens = psutil.Process(), [], 0
    started = time.perf_counter()
    for batch in DataLoader(
        load_from_disk(f"{folder}/train"), batch_size=32, shuffle=True, collate_fn=collator
    ):
        tokens += int(batch["attention_mask"].sum())
        memory.append(process.memory_info().rss / 2**20)
        if time.perf_counter() - started > float(seconds):
            break
    rate = round(tokens / (time.perf_counter() - started))
    return {"tokens": tokens, "tokens_per_second": rate, "memory_mib": _over_time(memory)}
