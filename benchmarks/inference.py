"""Every engine on the same models, each in a process of its own; the processes take turns.

    python -m benchmarks inference --vllm_python /tmp/vllm-env/bin/python

Four kinds of work: `encode` (vectors of texts), `classify`, and greedy generation by a `causal`
model and by an encoder–decoder (`seq2seq`). Ours are `torch`, `torch-bfloat16`, and `onnx`, the
graphs that `roformer-lite export` wrote for onnxruntime; vLLM opens the saved model in an
environment of its own. `transformers` is BERT, Llama or Marian of the same widths and depths.
In each round every process answers the same batch once, in another order, while the others wait.
The answers are compared with those of torch. The processor's time stands beside that of the clock,
as it depends less on what else the machine does; OMP_NUM_THREADS=1 makes it exact, since threads
that wait for others use it too. A file for each processor is written into `--out`, and the tables
of all that lie there are printed.
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

from .workload import Workload

OURS_IN_BFLOAT16, STOCK, VLLM = "torch-bfloat16", "transformers", "vllm"
ENGINES = ("torch", OURS_IN_BFLOAT16, STOCK, "onnx", VLLM)
KINDS = ("encode", "classify", "causal", "seq2seq")
ROOT = Path(__file__).resolve().parent.parent
_NEVER = -1e4  # the bias of the token that ends a text, so that every engine generates equally many


@dataclass
class InferenceArguments(Workload):
    """Options of the comparison, besides those of a workload."""

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
    beams: int = 1
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
        for option, known in (("kinds", KINDS), ("engines", ENGINES)):
            if unknown := set(getattr(self, option)) - set(known):
                raise SystemExit(
                    f"{option}={unknown.pop()!r} is not known; it must be one of {', '.join(known)}."
                )


class Worker:
    """An engine in a process of its own, which answers a batch when it is asked.

    Args:
        engine: One of `ENGINES`.
        directory: The model, or what was exported.
        kind: One of `KINDS`.
        work: Sizes of batches, by number of rows.
    """

    def __init__(self, engine: str, directory: Path, kind: str, work: InferenceArguments):
        self.engine, self.log = engine, directory.with_name(f"{engine}.log")
        python = work.vllm_python if engine == VLLM else sys.executable
        command = [
            python,
            "-m",
            "benchmarks.inference_worker",
            engine,
            kind,
            directory,
            json.dumps(settings_of(work)),
        ]
        pipes, variables = (
            {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE},
            {**os.environ, "PYTHONPATH": str(ROOT)},
        )
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, **pipes, stderr=log, env=variables, text=True)
        self.reports: dict[int, list[dict[str, Any]]] = {rows: [] for rows in work.rows}

    def ask(self, rows: int) -> dict[str, Any] | None:
        """Seconds, peak memory in MiB and the answer to the batch of `rows` rows; None when the
        process has ended."""
        try:
            self.process.stdin.write(f"{rows}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        self.process.communicate(timeout=60)


def write_model(kind: str, work: InferenceArguments, directory: Path) -> None:
    """A model of random weights with a tokenizer, which no answer depends on."""
    import torch

    import hf_roformer_lite as rl

    torch.manual_seed(work.seed)
    if kind == "seq2seq":
        config = rl.RoFormerLiteSeq2SeqConfig.from_preset(work.size, vocab_size=work.vocab_size)
        config.decoder.lm_head_bias = True
        model = rl.RoFormerLiteForConditionalGeneration(config)
    else:
        fields = {"is_decoder": True, "lm_head_bias": True} if kind == "causal" else {}
        config = rl.RoFormerLiteConfig.from_preset(work.size, vocab_size=work.vocab_size, **fields)
        classes = {
            "encode": rl.RoFormerLiteModel,
            "classify": rl.RoFormerLiteForSequenceClassification,
        }
        model = classes.get(kind, rl.RoFormerLiteForCausalLM)(config)
    if model.can_generate():
        torch.nn.init.constant_(model.lm_head.bias[model.generation_config.eos_token_id], _NEVER)
    model.save_pretrained(directory)
    rl.RoFormerLiteTokenizer.train(["a line of text"], vocab_size=300).save_pretrained(directory)


def stock_model(kind: str, work: InferenceArguments) -> Any:
    """BERT, Llama or Marian of the widths and depths of our model."""
    from transformers import AutoModelForSequenceClassification

    from . import encoder_decoders, stacks

    work = replace(work, seq=work.seq + work.new_tokens)
    if kind == "classify":
        return AutoModelForSequenceClassification.from_config(stacks.bert_config(work))
    if kind == "seq2seq":
        return encoder_decoders.marian(work)
    return stacks.llama(work, "causal") if kind == "causal" else stacks.bert(work, "encoder")


def prepare(
    kind: str, work: InferenceArguments, folder: Path
) -> tuple[dict[str, Path], dict[str, str]]:
    """The directory of each engine; and of those that have none, the reason."""
    from roformer_lite.command_options import parse_export
    from roformer_lite.commands.export import main as export
    from roformer_lite.errors import InputError

    model, directories, missing = folder / "model", {}, {}
    write_model(kind, work, model)
    for engine in work.engines:
        directories[engine] = folder / engine
        if engine in ("torch", OURS_IN_BFLOAT16):
            directories[engine] = model
        elif engine == STOCK:
            stock_model(kind, work).save_pretrained(directories[engine])
        elif engine == VLLM:
            directories[engine] = model
            if kind == "seq2seq" or work.vllm_python is None:
                missing[engine] = (
                    "has no encoder-decoders" if kind == "seq2seq" else "no --vllm_python was given"
                )
        else:
            quantization = ["--quantization", work.quantization] if work.quantization else []
            try:
                words = [str(model), str(directories[engine]), "--format", engine, *quantization]
                export(*parse_export(words))
            except InputError as error:
                missing[engine] = str(error)
    return {name: path for name, path in directories.items() if name not in missing}, missing


def compare(kind: str, work: InferenceArguments, folder: Path) -> dict[str, dict[str, Any]]:
    """The medians of each engine by number of rows, its peak memory, and how far its answers are
    from those of torch; or `missing`, the reason why it has none."""
    directories, missing = prepare(kind, work, folder)
    workers = [Worker(engine, directory, kind, work) for engine, directory in directories.items()]
    order = random.Random(work.seed)
    for rows in work.rows:
        for _ in range(work.rounds + 1):  # the first warms up
            for worker in order.sample(workers, len(workers)):
                if worker.engine not in missing:
                    report = worker.ask(rows)
                    if report is None:
                        missing[worker.engine] = f"its process ended: {last_line(worker.log)}"
                    else:
                        worker.reports[rows].append(report)
    results: dict[str, dict[str, Any]] = {
        engine: {"missing": reason} for engine, reason in missing.items()
    }
    answers = {}
    for worker in workers:
        worker.close()
        if worker.engine in missing:
            continue
        found = results[worker.engine] = {"peak_mib": worker.reports[work.rows[-1]][-1]["peak_mib"]}
        for rows, (_, *runs) in worker.reports.items():
            for name in ("seconds", "processor_seconds"):
                found[f"{name}_{rows}"] = statistics.median(run[name] for run in runs)
            found[f"least_processor_seconds_{rows}"] = min(run["processor_seconds"] for run in runs)
        answers[worker.engine] = [
            number for runs in worker.reports.values() for number in runs[0]["answer"]
        ]
    for engine, numbers in answers.items():
        if engine != STOCK and "torch" in answers:  # the former is another model
            differences = [
                abs(theirs - ours) for theirs, ours in zip(numbers, answers["torch"], strict=True)
            ]
            are_tokens = kind in ("causal", "seq2seq")
            results[engine]["tokens_that_differ" if are_tokens else "largest_difference"] = (
                sum(map(bool, differences)) / len(numbers) if are_tokens else max(differences)
            )
    return {engine: results[engine] for engine in work.engines}


def last_line(log: Path) -> str:
    return [
        line for line in ("nothing was written", *log.read_text().splitlines()) if line.strip()
    ][-1]


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
            # which exporters write to
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
