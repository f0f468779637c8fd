"""`python -m benchmarks families [FAMILY …] [options]`: encoders in their own classes and converted, the same weights.

Both alternate in one process, on one thread. What counts is the processor's time, which other work on the machine
lengthens less than the clock's; the ratio is the median of those of the rounds. `encode` is the stack without
gradients, `step` a forward and backward pass of the classification of sequences, without dropout. `--memory` also
measures what each work takes above the model, each class in a process of its own.
"""

import gc
import json
import random
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import HfArgumentParser, PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.conversion import convert, find_converter
from hf_roformer_lite.conversion.hugging_face import HuggingFaceConverter

from .processes import peak_while_running, python
from .workload import PAD, Batch, Workload, make_batches

ENCODERS = (
    *("bert", "ernie", "roberta", "distilbert", "electra", "albert", "roformer", "nomic_bert", "jina_embeddings_v3"),
    *("gte", "eurobert", "ultrabert", "modernbert", "esm"),
)
LABELS = 8
PEAK = """
import json, sys
from benchmarks.families import measure_peak
print(json.dumps(measure_peak(*json.loads(sys.argv[1]))))
"""
# Sizes that are no part of a preset, and what a family needs to be the usual one.
_MORE = {
    "esm": {"position_embedding_type": "rotary"},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2},
    "electra": {"embedding_size": 128},
}


@dataclass
class Row:
    """One comparison: how many times as much processor time their class takes, and how far the logits differ."""

    family: str
    work: str
    ratio: float
    theirs: float
    ours: float
    difference: float


def their_config(converter: HuggingFaceConverter, work: Workload) -> PreTrainedConfig:
    """Their config of the size of `work`, by the names that the converter's table has for our fields."""
    preset = RoFormerLiteConfig.from_preset(work.size).to_dict()
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    ours = {name: preset[name] for name in sizes} | {"vocab_size": work.vocab_size, "pad_token_id": PAD}
    ours |= {"bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0}
    values = {theirs: ours[name] for name, theirs in converter.fields.items() if name in ours}
    longest = max(512, work.seq + 4)
    return converter.config_class(
        **{**values, "max_position_embeddings": longest, "num_labels": LABELS, **_MORE.get(converter.name, {})}
    )


def pair_of(family: str, work: Workload) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The stock class for the classification of sequences with random weights, and its conversion."""
    converter = find_converter(family)
    config = their_config(converter, work)
    name = converter.class_name("ForSequenceClassification")
    torch.manual_seed(work.seed)
    stock = getattr(transformers, name)(config)  # with sdpa, as they come
    return stock, convert(family, dict(stock.state_dict()), {**config.to_dict(), "architectures": [name]})


def encode(model: PreTrainedModel, batches: list[Batch]) -> None:
    with torch.no_grad():
        for batch in batches:
            model.base_model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)


def step(model: PreTrainedModel, batches: list[Batch]) -> None:
    for batch in batches:
        labels = batch.input_ids[:, 0] % LABELS
        model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss.backward()
        model.zero_grad(set_to_none=True)


WORKS: dict[str, Callable[[PreTrainedModel, list[Batch]], None]] = {"encode": encode, "step": step}


def compare(family: str, work: Workload) -> list[Row]:
    """Both kinds of work for one family."""
    stock, ours = pair_of(family, work)
    batches = make_batches(work)
    inputs = {"input_ids": batches[0].input_ids, "attention_mask": batches[0].attention_mask}
    with torch.no_grad():
        difference = (stock.eval()(**inputs).logits - ours(**inputs).logits).abs().max().item()
    rows = []
    for name, run in WORKS.items():
        for model in (stock, ours):
            model.train(name == "step")
        seconds = alternate([lambda: run(stock, batches), lambda: run(ours, batches)], work.rounds)  # noqa: B023
        ratio = statistics.median(theirs / own for theirs, own in zip(*seconds, strict=True))
        rows.append(Row(family, name, ratio, *map(statistics.median, seconds), difference))
    return rows


def alternate(runs: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """The processor's seconds of each run in each round; every round runs all of them in another order."""
    seconds, order, generator = [[] for _ in runs], list(range(len(runs))), random.Random(0)
    for run in runs:
        run()
    for _ in range(rounds):
        generator.shuffle(order)
        for number in order:
            started = time.process_time()
            runs[number]()
            seconds[number].append(time.process_time() - started)
    return seconds


def peaks(family: str, work: Workload) -> list[dict[str, float]]:
    """MiB above the model that each work takes at its peak: in their class, and in ours."""
    return [json.loads(python(PEAK, json.dumps([family, side, asdict(work)]))) for side in (0, 1)]


def measure_peak(family: str, side: int, options: dict[str, Any]) -> dict[str, float]:
    """One side of `peaks`, in this process."""
    be_quiet()
    work = Workload(**options)
    model, batches, found = pair_of(family, work)[side], make_batches(work), {}
    for name, run in WORKS.items():
        gc.collect()
        model.train(name == "step")
        found[name] = peak_while_running(lambda: run(model, batches))["above_model_mib"]  # noqa: B023
    return found


def be_quiet() -> None:
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)


def main(arguments: list[str]) -> None:
    be_quiet()
    parser = HfArgumentParser(Workload, prog="python -m benchmarks families", allow_abbrev=False)
    parser.add_argument("families", nargs="*", help="default: all")
    parser.add_argument("--memory", action="store_true", help="measure peaks, too")
    work, given = parser.parse_args_into_dataclasses(arguments)
    memory = ["theirs, MiB", "ours, MiB"] if given.memory else []
    table = Table("family", "work", "theirs / ours", "theirs, s", "ours, s", "max. difference of logits", *memory)
    for family in given.families or ENCODERS:
        most = peaks(family, work) if given.memory else []
        for row in compare(family, work):
            values = f"{row.ratio:.2f}", f"{row.theirs:.3f}", f"{row.ours:.3f}", f"{row.difference:.1e}"
            table.add_row(row.family, row.work, *values, *(f"{side[row.work]:,.0f}" for side in most))
    console = Console(width=120)
    console.print({field.name: getattr(work, field.name) for field in fields(work)})
    console.print(table)
