"""`python -m benchmarks padding_free [options]`: time stock and RoFormerLite models, which
compute padding (`sdpa`) or only real tokens (`padding_free`).

The name of a model is FAMILY/TASK. Both contenders use the same memory for their random weights,
have no dropout, get the same batches and alternate in one process. Times are processor times. Rows
have the lengths of paragraphs in English books or of short questions (`--texts`), and are shuffled,
grouped by length, or all full (`--orders`). These kinds of work are timed (`--modes`):

* `step`: forward pass, loss and backward pass, without an optimizer;
* `evaluation`: forward pass and loss, without gradients;
* `trainer`: an epoch of the stock Trainer, with its optimizer, sampler and learning rate. It takes
  longer, and is left out by default.

`--memory` adds the memory of a step in addition to the model, each figure in a separate process.
`difference` is the largest relative difference of losses and of norms of gradients.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import torch
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from hf_roformer_lite import padding_free

from .contenders import (
    MAX_TOKENS,
    ROFORMER_LITE,
    SIZES,
    Evaluation,
    Inputs,
    Step,
    inputs_of,
    new_model,
    share_weights,
)
from .processes import peak_above_model, python, set_up
from .report import Row, difference, report, summary
from .timing import alternate
from .workload import IGNORED, PAD, TEXTS, Batch, RealTexts, check_known, make_batches

STOCK = "sdpa"
FREE = "padding_free"
# The models and their names in pictures.
NAMES = {
    "bert/classify": "BERT, classifier",
    "bert/masked-lm": "BERT, masked language model",
    "modernbert/masked-lm": "ModernBERT, masked language model",
    "llama/causal-lm": "Llama, causal language model",
    "bart/seq2seq": "BART, encoder–decoder",
    "marian/seq2seq": "Marian, encoder–decoder",
    "t5/seq2seq": "T5, encoder–decoder",
    "roformer_lite/classify": "RoFormerLite, classifier",
    "roformer_lite/masked-lm": "RoFormerLite, masked language model",
    "roformer_lite/causal-lm": "RoFormerLite, causal language model",
    "roformer_lite/seq2seq": "RoFormerLite, encoder–decoder",
}
MODELS = tuple(NAMES)
MODES = ("step", "evaluation", "trainer")
# The values are the names of these orders in `Workload.lengths`.
ORDERS: dict[str, Any] = {"random": "real", "grouped": "sorted", "full": "full"}
DRAWN_ORDERS = {"random": "shuffled batches", "grouped": "batches grouped by length"}
MEASURE_PEAK = """
import json, sys
from benchmarks.padding_free import peak_here
print(json.dumps(peak_here(*json.loads(sys.argv[1]))))
"""


@dataclass
class Options:
    models: list[str] = field(
        default_factory=lambda: [*MODELS],
        metadata={"help": ", ".join(MODELS)},
    )
    modes: list[str] = field(
        default_factory=lambda: ["step", "evaluation"],
        metadata={"help": f"the work that is timed: {', '.join(MODES)}"},
    )
    orders: list[str] = field(
        default_factory=lambda: [*ORDERS],
        metadata={"help": f"of the rows: {', '.join(ORDERS)}"},
    )
    texts: str = field(
        default="paragraphs", metadata={"help": f"whose lengths rows have: {', '.join(TEXTS)}"}
    )
    size: str = field(default="mini", metadata={"help": f"of all models: {', '.join(SIZES)}"})
    batch: int = field(
        default=16,
        metadata={"help": "rows of a batch; language models and full rows get half as many"},
    )
    seq: int = field(default=256, metadata={"help": "tokens that longer rows are cut to"})
    vocab_size: int = 30522
    rounds: int = field(
        default=5, metadata={"help": "measurements of each contender; they alternate"}
    )
    trainer_batches: int = field(
        default=20, metadata={"help": "batches of an epoch of the Trainer"}
    )
    memory: bool = field(default=False, metadata={"help": "measure the memory of a step as well"})
    quick: bool = field(
        default=False, metadata={"help": "tiny models and batches, to see that all of it works"}
    )
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})
    plot: Path | None = field(
        default=None, metadata={"help": "file of a plot of the steps, such as steps.svg"}
    )

    def __post_init__(self) -> None:
        if self.quick:
            self.size = "tiny"
            self.batch = 8
            self.seq = 64
            self.vocab_size = 500
            self.rounds = 1
            self.trainer_batches = 2
        check_known("modes", self.modes, MODES)
        check_known("orders", self.orders, ORDERS)
        check_known("texts", [self.texts], TEXTS)
        check_known("size", [self.size], SIZES)
        check_known("models", self.models, MODELS)
        if self.seq > MAX_TOKENS:
            raise SystemExit(f"seq={self.seq} is not possible: it must be at most {MAX_TOKENS}.")


# Batches


def batches_of(
    task: str, order: str, count: int, options: Options
) -> list[tuple[Batch, Batch | None]]:
    """Sources and, for an encoder–decoder, targets."""
    rows = options.batch
    if order == "full":
        rows //= 2
    if task in ("masked-lm", "causal-lm", "seq2seq"):
        rows //= 2
    work = RealTexts(
        texts=options.texts,
        batch=max(rows, 1),
        batches=count,
        seq=options.seq,
        lengths=ORDERS[order],
        vocab_size=options.vocab_size,
    )
    sources = make_batches(work)
    if task != "seq2seq":
        return [(source, None) for source in sources]
    targets = make_batches(work, salt=1)
    return list(zip(sources, targets, strict=True))


def places_per_token(pairs: list[tuple[Batch, Batch | None]]) -> float:
    batches = [batch for pair in pairs for batch in pair if batch is not None]
    places = sum(batch.input_ids.numel() for batch in batches)
    return places / sum(batch.tokens for batch in batches)


# Models


def contender(name: str, attention: str, options: Options) -> PreTrainedModel:
    """The model `name`, stock or padding-free."""
    family, task = name.split("/")
    size = SIZES[options.size]
    if attention == FREE and family == ROFORMER_LITE:
        model = new_model(family, task, size, options.vocab_size)
    else:
        model = new_model(family, task, size, options.vocab_size, attention=STOCK)
        if attention == FREE:
            model = padding_free(model)
    found = model.config._attn_implementation
    if found != attention:
        raise SystemExit(f"{name}: its attention implementation is {found!r}, not {attention!r}.")
    return model


def both_contenders(name: str, options: Options) -> dict[str, PreTrainedModel]:
    models = {attention: contender(name, attention, options) for attention in (STOCK, FREE)}
    share_weights(source=models[STOCK], target=models[FREE])
    return models


class Work(Protocol):
    """A callable that is timed."""

    def __call__(self) -> None: ...

    def outcome(self) -> list[float]: ...


class Epoch:
    """An epoch of the stock Trainer, which begins with the same weights every time."""

    def __init__(
        self, model: PreTrainedModel, rows: list[Inputs], order: str, batch_size: int
    ) -> None:
        self.model = model
        self.rows = rows
        self.strategy = "group_by_length" if order == "grouped" else "random"
        self.batch_size = batch_size
        self.first_weights = [weight.detach().clone() for weight in model.parameters()]
        self.loss = 0.0

    def __call__(self) -> None:
        self.restore_weights()
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=self.batch_size,
                num_train_epochs=1,
                train_sampling_strategy=self.strategy,
                remove_unused_columns=False,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            )
            trainer = Trainer(
                model=self.model,
                args=arguments,
                train_dataset=self.rows,
                data_collator=collate,
            )
            trainer.remove_callback(PrinterCallback)
            self.loss = trainer.train().training_loss
        self.restore_weights()

    def restore_weights(self) -> None:
        for weight, first in zip(self.model.parameters(), self.first_weights, strict=True):
            weight.data.copy_(first)

    def outcome(self) -> list[float]:
        """The mean loss of the epoch."""
        return [self.loss]


def rows_of(task: str, pairs: list[tuple[Batch, Batch | None]]) -> list[Inputs]:
    """Single rows without padding."""
    rows = []
    for source, target in pairs:
        inputs = inputs_of(task, source, target)
        lengths_of_labels = (target or source).lengths
        for number, length in enumerate(source.lengths):
            labels = inputs["labels"][number]
            if labels.ndim > 0:
                labels = labels[: lengths_of_labels[number]]
            rows.append({"input_ids": inputs["input_ids"][number, :length], "labels": labels})
    return rows


def collate(rows: list[Inputs]) -> Inputs:
    """A batch that is padded on the right."""
    input_ids = [row["input_ids"] for row in rows]
    labels = [row["labels"] for row in rows]
    padded = pad_sequence(input_ids, batch_first=True, padding_value=PAD)
    if labels[0].ndim > 0:
        padded_labels = pad_sequence(labels, batch_first=True, padding_value=IGNORED)
    else:
        padded_labels = torch.stack(labels)
    mask = (padded != PAD).long()
    return {"input_ids": padded, "attention_mask": mask, "labels": padded_labels}


# Measurements


def work_of(
    mode: str,
    model: PreTrainedModel,
    task: str,
    order: str,
    pairs: list[tuple[Batch, Batch | None]],
) -> Work:
    if mode == "trainer":
        batch_size = len(pairs[0][0].lengths)
        return Epoch(model, rows_of(task, pairs), order, batch_size)
    inputs = [inputs_of(task, source, target) for source, target in pairs]
    if mode == "step":
        return Step(model, inputs)
    return Evaluation(model, inputs)


def compare(
    name: str, models: dict[str, PreTrainedModel], mode: str, order: str, options: Options
) -> Row:
    """Both contenders of the model `name` for one kind of work."""
    task = name.split("/")[1]
    count = 2 if order == "grouped" else 1
    if mode == "trainer":
        count = options.trainer_batches
    pairs = batches_of(task, order, count, options)
    works = {
        attention: work_of(mode, model, task, order, pairs) for attention, model in models.items()
    }
    times = alternate(list(works.values()), options.rounds)
    return {
        "model": name,
        "mode": mode,
        "order": order,
        "places_per_token": places_per_token(pairs),
        "contenders": summary(dict(zip(works, times, strict=True)), base=FREE),
        "difference": difference(works[STOCK].outcome(), works[FREE].outcome()),
    }


def comparisons(options: Options) -> Iterator[Row]:
    for name in options.models:
        models = both_contenders(name, options)
        for mode, order in product(options.modes, options.orders):
            row = compare(name, models, mode, order, options)
            if options.memory and mode == "step":
                row["memory_mib"] = memory_of_step(name, order, options)
            yield row


def memory_of_step(name: str, order: str, options: Options) -> dict[str, float]:
    """The memory of a step in addition to the model, in MiB."""
    memory = {}
    for attention in (STOCK, FREE):
        given = json.dumps([asdict(options), name, attention, order], default=str)
        memory[attention] = json.loads(python(MEASURE_PEAK, given))
    return memory


def peak_here(fields: Row, name: str, attention: str, order: str) -> float:
    """Measure one contender in this process."""
    # The other fields already have the settings of `quick`.
    options = Options(**{**fields, "quick": False})
    set_up()
    task = name.split("/")[1]
    pairs = batches_of(task, order, 1, options)
    work = work_of("step", contender(name, attention, options), task, order, pairs)
    return peak_above_model(work)


# Tables and a plot

COLUMNS = ["model", "mode", "order", "places a token", f"{STOCK}, ms", f"{FREE}, ms"]
COLUMNS += ["speed-up", "by the least", "difference", f"MiB, {STOCK} and {FREE}"]


def cells_of(row: Row) -> list[str]:
    """Milliseconds are medians and, in parentheses, minima."""
    cells = [row["model"], row["mode"], row["order"], f"{row['places_per_token']:.2f}"]
    for attention in (STOCK, FREE):
        times = row["contenders"][attention]
        median = 1000 * times["median_seconds"]
        least = 1000 * times["least_seconds"]
        cells.append(f"{median:.1f} ({least:.1f})")
    stock = row["contenders"][STOCK]
    cells += [f"{stock['times']:.2f}", f"{stock['times_of_least']:.2f}"]
    memory = [f"{mib:.0f}" for mib in row.get("memory_mib", {}).values()]
    return [*cells, f"{row['difference']:.0e}", " and ".join(memory)]


def draw(rows: list[Row], path: Path) -> None:
    """Draw the training step of each model, for shuffled batches and batches grouped by length."""
    speed_ups: dict[str, dict[str, float]] = {label: {} for label in DRAWN_ORDERS.values()}
    for row in rows:
        if row["mode"] == "step" and row["order"] in DRAWN_ORDERS:
            name = NAMES[row["model"]]
            speed_ups[DRAWN_ORDERS[row["order"]]][name] = row["contenders"][STOCK]["times"]
    style = {"svg.fonttype": "path", "svg.hashsalt": FREE}
    with matplotlib.rc_context(style):
        # Without a date, the file changes only with the figures.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure = speed_up_figure(speed_ups, work="a training step")
        figure.savefig(path, metadata=metadata, facecolor="white")


def speed_up_figure(speed_ups: dict[str, dict[str, float]], work: str) -> Figure:
    """Bars for the speed-up of each model.

    Args:
        speed_ups: For each name in the legend, the names of models and their speed-ups.
        work: The work that is faster, for the label of the axis.
    """
    names = list(dict.fromkeys(name for models in speed_ups.values() for name in models))
    height = 0.8 / len(speed_ups)
    figure = Figure(figsize=(8, 6), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    axis = figure.subplots()
    for number, (label, models) in enumerate(speed_ups.items()):
        shift = (number + 0.5) * height - 0.4
        bars = axis.barh(
            [names.index(name) + shift for name in models],
            list(models.values()),
            height=0.95 * height,
            label=label,
        )
        axis.bar_label(bars, fmt="%.2f×", fontsize=8, padding=3)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel(f"speed-up of {work} (stock = 1)")
    # The figures beside the bars stay clear of the frame.
    axis.margins(x=0.15, y=0.02)
    if len(speed_ups) > 1:
        figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def main(options: Options) -> None:
    rows = comparisons(options)
    result = report(FREE, options, COLUMNS, rows, cells_of, unit="processor seconds")
    if options.plot is not None:
        draw(result["rows"], options.plot)
