"""Compares engines on the same models. Each has its own process, and the processes take turns.

    python -m benchmarks inference --vllm_python /tmp/vllm-env/bin/python

There are four kinds of work: `encode` (vectors of texts), `classify`, and greedy generation with a
`causal` model and with an encoder–decoder (`seq2seq`). Our engines are `torch`, `torch-bfloat16`,
and `onnx`, the graphs that `roformer-lite export` writes for onnxruntime. vLLM opens the saved
model in an environment of its own. `transformers` is BERT, Llama or Marian with the same widths and
depths. In each round every process answers the same batch once, in a different order, while the
others wait. The answers are compared with those of torch. The processor time is given in addition
to the elapsed time, because it depends less on other work on the machine. OMP_NUM_THREADS=1 makes
it exact, because waiting threads also use processor time. A file for each processor is written to
`--out`, and the tables of all files there are printed.
"""

import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .workload import Workload, check_known

TORCH = "torch"
OURS_IN_BFLOAT16 = "torch-bfloat16"
STOCK = "transformers"
VLLM = "vllm"
ENGINES = (TORCH, OURS_IN_BFLOAT16, STOCK, "onnx", VLLM)
KINDS = ("encode", "classify", "causal", "seq2seq")
KINDS_OF_TOKENS = ("causal", "seq2seq")
ROOT = Path(__file__).resolve().parent.parent
# The bias of the token that ends a text is so low that no engine generates it. All texts therefore
# have the same length.
BIAS_OF_END = -1e4


@dataclass
class InferenceArguments(Workload):
    """The options of a workload and of the comparison."""

    rounds: int = field(
        default=5, metadata={"help": "measurements of each engine, all of them alternating"}
    )
    kinds: list[str] = field(default_factory=lambda: [*KINDS], metadata={"help": "of work"})
    engines: list[str] = field(
        default_factory=lambda: [*ENGINES], metadata={"help": "which to compare"}
    )
    rows: list[int] = field(
        default_factory=lambda: [1, 8, 32], metadata={"help": "sizes of batches"}
    )
    new_tokens: int = field(default=32, metadata={"help": "tokens that are generated"})
    quantization: str | None = field(
        default=None, metadata={"help": "int8, where an engine has it"}
    )
    vllm_python: Path | None = field(
        default=None, metadata={"help": "Python of an environment that has vLLM"}
    )
    out: Path = field(
        default=ROOT / "benchmarks" / "results" / "engines",
        metadata={"help": "directory of results"},
    )
    table: bool = field(
        default=False, metadata={"help": "measure nothing, print the tables of --out"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("kinds", self.kinds, KINDS)
        check_known("engines", self.engines, ENGINES)


class Worker:
    """An engine in a separate process, which answers batches on request.

    Args:
        engine: One of `ENGINES`.
        directory: The directory of the saved or exported model.
        kind: One of `KINDS`.
        work: The sizes of batches by number of rows.
    """

    def __init__(self, engine: str, directory: Path, kind: str, work: InferenceArguments):
        self.engine = engine
        self.log = directory.with_name(f"{engine}.log")
        python = work.vllm_python if engine == VLLM else sys.executable
        settings = json.dumps(settings_of(work))
        worker = ["-m", "benchmarks.inference_worker", engine, kind, str(directory), settings]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [str(python), *worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                text=True,
            )
        self.reports: dict[int, list[dict[str, Any]]] = {rows: [] for rows in work.rows}

    def ask(self, rows: int) -> dict[str, Any] | None:
        """The seconds, the peak memory in MiB and the answer for the batch of `rows` rows; None if
        the process has ended."""
        try:
            self.process.stdin.write(f"{rows}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self.process.stdout.readline()
        if not line:
            return None
        return json.loads(line)

    def close(self) -> None:
        self.process.communicate(timeout=60)


def write_model(kind: str, work: InferenceArguments, directory: Path) -> None:
    """Write a model with random weights, and a tokenizer, which does not affect the answers."""
    import torch

    import hf_roformer_lite as rl

    torch.manual_seed(work.seed)
    if kind == "seq2seq":
        config = rl.RoFormerLiteSeq2SeqConfig.from_preset(work.size, vocab_size=work.vocab_size)
        config.decoder.lm_head_bias = True
        model = rl.RoFormerLiteForConditionalGeneration(config)
    else:
        is_causal = kind == "causal"
        config = rl.RoFormerLiteConfig.from_preset(
            work.size, vocab_size=work.vocab_size, is_decoder=is_causal, lm_head_bias=is_causal
        )
        classes = {
            "encode": rl.RoFormerLiteModel,
            "classify": rl.RoFormerLiteForSequenceClassification,
            "causal": rl.RoFormerLiteForCausalLM,
        }
        model = classes[kind](config)
    if model.can_generate():
        end = model.generation_config.eos_token_id
        torch.nn.init.constant_(model.lm_head.bias[end], BIAS_OF_END)
    model.save_pretrained(directory)
    rl.RoFormerLiteTokenizer.train(["a line of text"], vocab_size=300).save_pretrained(directory)


def stock_model(kind: str, work: InferenceArguments) -> Any:
    """BERT, Llama or Marian with the widths and depths of our model."""
    from transformers import AutoModelForSequenceClassification

    from . import encoder_decoders, stacks

    work = replace(work, seq=work.seq + work.new_tokens)
    if kind == "classify":
        return AutoModelForSequenceClassification.from_config(stacks.bert_config(work))
    if kind == "seq2seq":
        return encoder_decoders.marian(work)
    if kind == "causal":
        return stacks.llama(work, "causal")
    return stacks.bert(work, "encoder")


def prepare(
    kind: str, work: InferenceArguments, folder: Path
) -> tuple[dict[str, Path], dict[str, str]]:
    """The directory of each engine, or the reason why an engine has none."""
    model = folder / "model"
    write_model(kind, work, model)
    directories: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for engine in work.engines:
        directory = folder / engine
        if engine in (TORCH, OURS_IN_BFLOAT16):
            directories[engine] = model
        elif engine == STOCK:
            stock_model(kind, work).save_pretrained(directory)
            directories[engine] = directory
        elif engine != VLLM:
            reason = export_model(engine, work, model, directory)
            if reason is None:
                directories[engine] = directory
            else:
                missing[engine] = reason
        elif kind == "seq2seq":
            missing[engine] = "has no encoder-decoders"
        elif work.vllm_python is None:
            missing[engine] = "no --vllm_python was given"
        else:
            directories[engine] = model
    return directories, missing


def export_model(engine: str, work: InferenceArguments, model: Path, directory: Path) -> str | None:
    """Export a model for an engine, or return the reason why this is impossible."""
    from roformer_lite.commands.export import main as export
    from roformer_lite.commands.export_options import parse
    from roformer_lite.errors import InputError

    words = [str(model), str(directory), "--format", engine]
    if work.quantization:
        words += ["--quantization", work.quantization]
    try:
        export(*parse(words))
    except InputError as error:
        return str(error)
    return None


def compare(kind: str, work: InferenceArguments, folder: Path) -> dict[str, dict[str, Any]]:
    """The medians of each engine by number of rows, its peak memory, and the difference of its
    answers from those of torch; or `missing`, the reason why there are none."""
    directories, missing = prepare(kind, work, folder)
    workers = [Worker(engine, directory, kind, work) for engine, directory in directories.items()]
    missing |= take_turns(workers, work)
    results: dict[str, dict[str, Any]] = {}
    answers: dict[str, list[float]] = {}
    for worker in workers:
        worker.close()
        if worker.engine not in missing:
            results[worker.engine] = figures_of(worker)
            answers[worker.engine] = answers_of(worker)
    for engine, reason in missing.items():
        results[engine] = {"missing": reason}
    if TORCH in answers:
        for engine, numbers in answers.items():
            # The stock model has different weights.
            if engine != STOCK:
                results[engine] |= difference_of(kind, numbers, answers[TORCH])
    return {engine: results[engine] for engine in work.engines}


def take_turns(workers: list[Worker], work: InferenceArguments) -> dict[str, str]:
    """Let every worker answer once in each round, in a different order each time. Return the
    reasons why workers have ended."""
    ended: dict[str, str] = {}
    order = random.Random(work.seed)
    for rows in work.rows:
        # The first round is a warm-up.
        for _ in range(1 + work.rounds):
            for worker in order.sample(workers, len(workers)):
                if worker.engine in ended:
                    continue
                report = worker.ask(rows)
                if report is None:
                    ended[worker.engine] = f"its process ended: {last_line(worker.log)}"
                else:
                    worker.reports[rows].append(report)
    return ended


def figures_of(worker: Worker) -> dict[str, float]:
    """The median and smallest processor seconds by number of rows, and the peak memory."""
    figures = {}
    for rows, (_, *runs) in worker.reports.items():
        figures["peak_mib"] = runs[-1]["peak_mib"]
        for name in ("seconds", "processor_seconds"):
            figures[f"{name}_{rows}"] = statistics.median(run[name] for run in runs)
        figures[f"least_processor_seconds_{rows}"] = min(run["processor_seconds"] for run in runs)
    return figures


def answers_of(worker: Worker) -> list[float]:
    """The numbers in the first answer to each batch."""
    return [number for runs in worker.reports.values() for number in runs[0]["answer"]]


def difference_of(kind: str, numbers: list[float], others: list[float]) -> dict[str, float]:
    """The share of generated tokens that differ, or the largest difference between other
    numbers."""
    differences = [abs(one - other) for one, other in zip(numbers, others, strict=True)]
    if kind in KINDS_OF_TOKENS:
        return {"tokens_that_differ": sum(map(bool, differences)) / len(differences)}
    return {"largest_difference": max(differences)}


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text().splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was written"


def settings_of(work: InferenceArguments) -> dict[str, Any]:
    return {name: value for name, value in asdict(work).items() if not isinstance(value, Path)}


def main(arguments: list[str] | None = None) -> None:
    from transformers import HfArgumentParser

    from .report import engine_tables, machine

    parser = HfArgumentParser(
        InferenceArguments, prog="python -m benchmarks inference", allow_abbrev=False
    )
    (work,) = parser.parse_args_into_dataclasses(arguments)
    if not work.table:
        results = {}
        for kind in work.kinds:
            # Exporters also write to standard output, but it is reserved for the tables.
            with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
                results[kind] = compare(kind, work, Path(folder))
        facts = machine("cpu")
        work.out.mkdir(parents=True, exist_ok=True)
        content = {"work": settings_of(work), "machine": facts, "engines": results}
        name = re.sub("[^a-z0-9]+", "-", f"{facts['processor']} {facts['instructions']}".lower())
        (work.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    print(engine_tables(work.out))


if __name__ == "__main__":
    main()
