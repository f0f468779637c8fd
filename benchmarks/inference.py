"""Every engine of `predict` on the same model, each in a process of its own; the processes take turns.

    python -m benchmarks inference --kind encoder --size small --rows 1 8 32

Beside them stand our model in bfloat16 (`torch-bfloat16`), and BERT, BART or Llama of the same widths and depths in
their own classes (`transformers`). A process loads what `roformer-lite export` wrote and keeps it. In each round every
process answers the same batch once, in another order, while the others wait. Its memory is that of the whole process
at its peak, and the time to the first answer is that from the start of the process. Answers are compared with those of
torch. The processor's time is measured beside that of the clock, as it depends less on what else the machine does;
OMP_NUM_THREADS=1 makes it exact, since threads that wait for others use it too.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from roformer_lite.predict.engines import ENGINES

from .report import show
from .workload import Workload

OURS_IN_BFLOAT16, STOCK = "torch-bfloat16", "transformers"
_NEVER = -1e4  # the bias of the token that ends a text, so that every engine generates equally many


@dataclass
class InferenceArguments(Workload):
    """Options of the comparison, besides those of a workload."""

    kind: Literal["encoder", "seq2seq", "causal"] = "encoder"
    engines: list[str] = field(
        default_factory=lambda: ["torch", OURS_IN_BFLOAT16, STOCK, *(name for name in ENGINES if name != "torch")],
        metadata={"help": "which to compare"},
    )
    rows: list[int] = field(default_factory=lambda: [1, 8, 32], metadata={"help": "sizes of batches"})
    new_tokens: int = field(default=32, metadata={"help": "tokens that are generated"})
    beams: int = 1
    quantization: str | None = field(default=None, metadata={"help": "int8, where an engine has it"})
    out: Path | None = field(default=None, metadata={"help": "JSON file of the results"})


class Worker:
    """An engine in a process of its own, which answers a batch when it is asked.

    Args:
        engine: One of `ENGINES`.
        directory: The model, or what was exported.
        work: Sizes of batches, by number of rows.
    """

    def __init__(self, engine: str, directory: Path, work: InferenceArguments):
        self.engine, start = engine, time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.inference_worker", engine, str(directory), _options_of(work)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer: list[float] = self.ask(work.rows[0])["answer"]
        self.first_answer = time.perf_counter() - start
        self.seconds: dict[int, list[float]] = {rows: [] for rows in work.rows}
        self.processor_seconds: dict[int, list[float]] = {rows: [] for rows in work.rows}

    def ask(self, rows: int) -> dict[str, Any]:
        """Seconds, peak memory in MiB and the answer to the batch of `rows` rows."""
        self.process.stdin.write(f"{rows}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.engine} ended")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)


def write_model(work: InferenceArguments, directory: Path) -> None:
    """A model of random weights with a tokenizer, which no answer depends on."""
    import torch

    import hf_roformer_lite as rl

    torch.manual_seed(work.seed)
    stack = {"vocab_size": work.vocab_size}
    if work.kind == "encoder":
        model = rl.RoFormerLiteForSequenceClassification(rl.RoFormerLiteConfig.from_preset(work.size, **stack))
    elif work.kind == "causal":
        config = rl.RoFormerLiteConfig.from_preset(work.size, is_decoder=True, lm_head_bias=True, **stack)
        model = rl.RoFormerLiteForCausalLM(config)
    else:
        config = rl.RoFormerLiteSeq2SeqConfig.from_preset(work.size, **stack)
        config.decoder.lm_head_bias = True
        model = rl.RoFormerLiteForConditionalGeneration(config)
    if work.kind != "encoder":
        torch.nn.init.constant_(model.lm_head.bias[model.generation_config.eos_token_id], _NEVER)
    model.save_pretrained(directory)
    rl.RoFormerLiteTokenizer.train(["a line of text"], vocab_size=300).save_pretrained(directory)


def prepare(work: InferenceArguments, folder: Path) -> dict[str, Path]:
    """The directory of each engine; those that have no such model are left out, with a line that says so."""
    from roformer_lite.cli import main

    directories = {"torch": folder / "torch"}
    write_model(work, directories["torch"])
    directories[OURS_IN_BFLOAT16] = directories["torch"]
    for engine in work.engines:
        if engine in directories:
            continue
        if engine == STOCK:
            directories[STOCK] = folder / STOCK
            stock_model(work).save_pretrained(directories[STOCK])
            continue
        options = ["--format", engine]
        if work.quantization is not None and engine != "openvino":
            options += ["--quantization", work.quantization]
        if main(["export", str(directories["torch"]), str(folder / engine), *options]) == 0:
            directories[engine] = folder / engine
    return {engine: directories[engine] for engine in work.engines if engine in directories}


def stock_model(work: InferenceArguments) -> Any:
    """BERT with a classifier, BART, or Llama, of the widths and depths of our model."""
    from transformers import AutoModelForSequenceClassification

    from . import encoder_decoders, stacks

    if work.kind == "encoder":
        return AutoModelForSequenceClassification.from_config(stacks.bert_config(work))
    return encoder_decoders.bart(work) if work.kind == "seq2seq" else stacks.llama(work, "causal")


def compare(work: InferenceArguments, directories: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Median seconds by number of rows, time to the first answer, peak memory, and how far that answer is from the one
    of torch."""
    workers = [Worker(engine, directory, work) for engine, directory in directories.items()]
    order, memory = random.Random(work.seed), {}
    for rows in work.rows:
        for turn in range(work.rounds + 1):
            for worker in order.sample(workers, len(workers)):
                found = worker.ask(rows)
                memory[worker.engine] = found["peak_mib"]
                if turn:  # the first warms up
                    worker.seconds[rows].append(found["seconds"])
                    worker.processor_seconds[rows].append(found["processor_seconds"])
    results = {}
    reference = next((worker for worker in workers if worker.engine == "torch"), workers[0])
    for worker in workers:
        pairs = list(zip(worker.answer, reference.answer, strict=True))
        if worker.engine == STOCK:  # another model
            distance = {}
        elif work.kind == "encoder":
            distance = {"largest_difference": max(abs(ours - theirs) for ours, theirs in pairs)}
        else:
            distance = {"tokens_that_differ": sum(ours != theirs for ours, theirs in pairs)}
        results[worker.engine] = {
            **_medians("seconds", worker.seconds),
            **_medians("processor_seconds", worker.processor_seconds),
            "first_answer_seconds": worker.first_answer,
            "peak_mib": memory[worker.engine],
            **distance,
        }
        worker.close()
    return results


def _medians(name: str, seconds: dict[int, list[float]]) -> dict[str, float]:
    return {f"{name}_{rows}": statistics.median(times) for rows, times in seconds.items()}


def _options_of(work: InferenceArguments) -> str:
    return json.dumps({name: value for name, value in asdict(work).items() if name != "out"})


def main(arguments: list[str] | None = None) -> None:
    from transformers import HfArgumentParser

    parser = HfArgumentParser(InferenceArguments, prog="python -m benchmarks inference", allow_abbrev=False)
    (work,) = parser.parse_args_into_dataclasses(arguments)
    known = [OURS_IN_BFLOAT16, STOCK, *ENGINES]
    if unknown := [engine for engine in work.engines if engine not in known]:
        raise SystemExit(f"engines={unknown[0]!r} is not known; it must be one of {', '.join(known)}.")
    with tempfile.TemporaryDirectory() as folder:
        results = compare(work, prepare(work, Path(folder)))
    show({"task": f"inference {work.kind}", **asdict(work), "contenders": results}, Console(width=240))
    if work.out is not None:
        work.out.write_text(json.dumps({"work": json.loads(_options_of(work)), "engines": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
