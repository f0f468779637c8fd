"""Text that outgrows memory: the rates of preparing and of reading it, and the memory of every process."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
from transformers import HfArgumentParser

from .processes import python

_SENTENCES = 4, 12  # of a document
_TOKENIZER_MB = 20
_BATCH = 500  # documents

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
    compared_megabytes: int = 60  # of the corpus whose preparation is compared with tokenising alone
    rounds: int = 3
    num_proc: int = 2
    vocab_size: int = 8192
    folder: str | None = None  # where the corpus is made; a temporary one is removed at the end
    out: str | None = None  # a JSON file of the results


def main(arguments: list[str]) -> None:
    (options,) = HfArgumentParser(LargeDataOptions, prog="python -m benchmarks data").parse_args_into_dataclasses(
        arguments
    )
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

    sentences = [line.strip() for path in options.texts for line in open(path, encoding="utf-8") if line.strip()]
    small, large = folder / "small.txt", folder / "large.txt"
    write_corpus(sentences, small, options.compared_megabytes, seed=1)
    write_corpus(sentences, large, options.megabytes, seed=2)
    with small.open(encoding="utf-8") as lines:
        sample = lines.readlines(_TOKENIZER_MB * 10**6)
    tokenizer = RoFormerLiteTokenizer.train(sample, vocab_size=options.vocab_size, show_progress=False)
    tokenizer.save_pretrained(folder / "tokenizer")
    rates = compare(options, folder, small)
    preparation = prepare(options, folder, large, folder / "prepared")
    reading = json.loads(python(CALL, "read", str(folder / "prepared")))
    streaming = json.loads(python(CALL, "stream", str(large), str(folder / "tokenizer")))
    streaming["mb_per_second"] = round(streaming["tokens_per_second"] * rates["text_bytes_a_token"] / 1e6, 1)
    found = {"prepare": preparation, "read": reading, "stream": streaming}
    return {"cores": os.cpu_count(), "sentences": len(sentences), **rates, **found}


def write_corpus(sentences: list[str], path: Path, megabytes: int, seed: int) -> None:
    """Documents of a few sentences drawn at random, one a line."""
    drawn, size = random.Random(seed), 0
    with path.open("w", encoding="utf-8") as stream:
        while size < megabytes * 10**6:
            line = " ".join(drawn.choices(sentences, k=drawn.randint(*_SENTENCES))) + "\n"
            size += len(line.encode())
            stream.write(line)


def compare(options: LargeDataOptions, folder: Path, text: Path) -> dict[str, Any]:
    """MB/s of `prepare` and of the tokenizer alone, alternating, both with the start of their processes."""
    documents = text.read_text("utf-8").splitlines()
    batches = [documents[at : at + _BATCH] for at in range(0, len(documents), _BATCH)]
    megabytes, alone, prepared = text.stat().st_size / 1e6, [], []
    for _ in range(options.rounds):
        started = time.perf_counter()
        with ProcessPoolExecutor(options.num_proc, get_context("spawn"), _load, (str(folder / "tokenizer"),)) as pool:
            tokens = sum(pool.map(_tokenise, batches))
        alone.append(round(megabytes / (time.perf_counter() - started), 2))
        prepared.append(prepare(options, folder, text, folder / "compared")["mb_per_second"])
        shutil.rmtree(folder / "compared")
    return {
        "tokenizer_mb_per_second": alone,
        "prepare_mb_per_second": prepared,
        "text_bytes_a_token": round(megabytes * 1e6 / tokens, 2),
    }


def _load(folder: str) -> None:
    global _tokenizer
    from transformers import AutoTokenizer

    import hf_roformer_lite  # noqa: F401

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = AutoTokenizer.from_pretrained(folder)


def _tokenise(texts: list[str]) -> int:
    ids = _tokenizer(texts, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)
    return sum(map(len, ids["input_ids"]))


def prepare(options: LargeDataOptions, folder: Path, text: Path, output: Path) -> dict[str, Any]:
    """The rate that `roformer-lite prepare` tells of itself, and the resident memory of its processes."""
    command = [sys.executable, "-m", "roformer_lite.cli", "prepare", "mlm", "--train_file", str(text)]
    command += ["--line_by_line", "--tokenizer", str(folder / "tokenizer"), "--num_proc", str(options.num_proc)]
    process = subprocess.Popen([*command, "--output_dir", str(output)], stdout=subprocess.PIPE, text=True)
    memory: list[float] = []  # of the largest process, in MiB
    while process.poll() is None:
        memory.append(_largest(psutil.Process(process.pid)))
        time.sleep(1)
    printed = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    manifest = json.loads((output / "prepared.json").read_text("utf-8"))
    size = sum(shard["bytes"] for shard in manifest["shards"])
    return {
        "megabytes": round(text.stat().st_size / 1e6),
        "mb_per_second": float(printed.partition(" MB/s")[0].rpartition("(")[2]),
        "tokens": manifest["tokens"],
        "bytes_a_token_on_disk": round(size / manifest["tokens"], 2),
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
    return {name: round(max(memory[: max(1, int(len(memory) * part))])) for name, part in parts.items()}


def read(folder: str, seconds: str = "120") -> dict[str, Any]:
    """Read prepared data as a training does, with packing and masks, for one pass or some time."""
    from roformer_lite.training.corpus.corpus import Corpus

    corpus = Corpus.prepared([folder], packing=512)
    manifest = json.loads((Path(folder) / "prepared.json").read_text("utf-8"))
    figures = _learn(corpus.loading(32, None, seed=0, rank=0, ranks=1), f"{folder}/tokenizer", float(seconds))
    skipping = time.perf_counter()
    sampler = corpus.loading(32, None, seed=0, rank=0, ranks=1)["batch_sampler"]
    steps = sum(1 for _ in sampler)
    return figures | {
        "mb_per_second": round(figures["tokens_per_second"] / manifest["tokens"] * manifest["text_bytes"] / 1e6, 1),
        "steps_of_a_pass": steps,
        "seconds_to_find_the_end_of_a_pass": round(time.perf_counter() - skipping, 1),
    }


def stream(text: str, tokenizer: str, seconds: str = "120") -> dict[str, Any]:
    """The same of a text that is tokenised while it is read."""
    from roformer_lite.training.corpus.stream import TextStream
    from roformer_lite.training.language_model_arguments import MaskedLMDataArguments
    from roformer_lite.training.model_and_tokenizer import pretrained_tokenizer
    from roformer_lite.training.splits import open_splits
    from roformer_lite.training.tasks.language_model import MaskedLMTask

    task = MaskedLMTask(MaskedLMDataArguments(train_file=[text], line_by_line=True, packing=512, block_size=512))
    rows = TextStream(task, open_splits(task, task.args)["train"], 0, task.args)
    rows = rows.encoded_by(pretrained_tokenizer(tokenizer))
    return _learn(rows.loading(32, None, seed=0, rank=0, ranks=1), tokenizer, float(seconds))


def _learn(loading: dict[str, Any], tokenizer: str, seconds: float) -> dict[str, Any]:
    from torch.utils.data import DataLoader

    from roformer_lite.training.corpus.corpus import BatchCollator
    from roformer_lite.training.model_and_tokenizer import pretrained_tokenizer
    from roformer_lite.training.tasks.masking import MaskingCollator

    collator = BatchCollator(MaskingCollator(pretrained_tokenizer(tokenizer)), 0, 0)
    process, memory, tokens, places = psutil.Process(), [], 0, 0
    started = time.perf_counter()
    for batch in DataLoader(**loading, collate_fn=collator):
        tokens += int(batch["attention_mask"].sum())
        places += batch["attention_mask"].numel()
        memory.append(process.memory_info().rss / 2**20)
        if time.perf_counter() - started > seconds:
            break
    return {
        "tokens": tokens,
        "tokens_per_second": round(tokens / (time.perf_counter() - started)),
        "filled": round(tokens / places, 4),
        "memory_mib": _over_time(memory),
    }
