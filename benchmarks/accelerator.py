"""`python -m benchmarks accelerator [options]`: on a GPU, compare training steps of stock models
with those of padding-free models, whose attention has one of several forms.

The forms are those of `hf_roformer_lite/padding_free/attention.py`: `by document`, `rows` and, in
half precision on a recent GPU, `at once`; `default` is what `padding_free` chooses itself. A form
that a model never uses has no figures. DeBERTa computes attention itself, and has none of them. All
contenders use the same memory for their random weights, have no dropout, get the same batches and
alternate. A step consists of the forward pass, the loss and the backward pass, without an
optimizer; its time is elapsed time, until the device has finished.

`difference` is the largest relative difference, from the stock model, of the loss and of the
gradient (the norm of the difference, relative to the norm). `rounding` is the same for the stock
model in half precision, compared with float32.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_roformer_lite import padding_free
from hf_roformer_lite.padding_free import attention

from .contenders import MINILM, SIZES, Inputs, Size, Step, inputs_of, new_model, share_weights
from .report import Row, difference, report, summary
from .timing import alternate, time_when_finished
from .workload import Workload, check_known, make_batches

Result = tuple[float, torch.Tensor]  # The loss, and the gradient of all weights in float32.

MODELS = (
    "bert/classify",
    "modernbert/masked-lm",
    "llama/causal-lm",
    "bart/seq2seq",
    "t5/seq2seq",
    "deberta-v2/classify",
)
WIDTHS: dict[int, Size] = {size.width: size for size in (SIZES["tiny"], MINILM, SIZES["base"])}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STOCK = "stock"
DEFAULT = "default"
FORMS = ("by document", "rows", "at once")
CONTENDERS = (STOCK, *FORMS, DEFAULT)
COLUMNS = ["model", "width", "dtype", "difference", "rounding"]
COLUMNS += [f"{name}, ms" for name in CONTENDERS]


@dataclass
class Options:
    models: list[str] = field(
        default_factory=lambda: [*MODELS], metadata={"help": ", ".join(MODELS)}
    )
    widths: list[int] = field(
        default_factory=lambda: [384, 768], metadata={"help": "of the models"}
    )
    batch: int = field(default=32, metadata={"help": "rows of a batch"})
    seq: int = field(default=128, metadata={"help": "longest row, in tokens"})
    vocab_size: int = 30522
    rounds: int = field(
        default=7, metadata={"help": "measurements of each contender; they alternate"}
    )
    device: str | None = field(
        default=None,
        metadata={"help": "such as cuda, or cpu for a trial; default: the accelerator"},
    )
    quick: bool = field(
        default=False, metadata={"help": "tiny models and batches, to see that all of it works"}
    )
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})

    def __post_init__(self) -> None:
        if self.quick:
            self.widths = [SIZES["tiny"].width]
            self.batch = 4
            self.seq = 32
            self.vocab_size = 500
            self.rounds = 1
        check_known("models", self.models, MODELS)
        check_known("widths", map(str, self.widths), [str(width) for width in WIDTHS])
        if self.device is None:
            if not torch.accelerator.is_available():
                raise SystemExit("torch finds no accelerator; try the command with --device cpu.")
            self.device = torch.accelerator.current_accelerator().type


class FormedStep(Step):
    """A training step with attention of flat rows in one form, wherever it is possible.

    Attributes:
        used: The forms of all calls of attention.
    """

    def __init__(self, model: PreTrainedModel, batches: list[Inputs], form: str) -> None:
        super().__init__(model, batches)
        self.form = form
        self.takes_varlen = attention.takes_varlen
        self.is_faster_by_document = attention.is_faster_by_document
        self.used: set[str] = set()

    def __call__(self) -> None:
        with (
            patch.object(attention, "takes_varlen", self.is_at_once),
            patch.object(attention, "is_faster_by_document", self.is_by_document),
        ):
            super().__call__()

    def is_at_once(self, *args: Any, **kwargs: Any) -> bool:
        is_allowed = self.form in ("at once", DEFAULT)
        is_chosen = is_allowed and self.takes_varlen(*args, **kwargs)
        if is_chosen:
            self.used.add("at once")
        return is_chosen

    def is_by_document(self, *args: Any) -> bool:
        is_chosen = self.is_faster_by_document(*args)
        if self.form in ("by document", "rows"):
            is_chosen = self.form == "by document"
        self.used.add("by document" if is_chosen else "rows")
        return is_chosen

    def result(self) -> Result:
        """The loss and the gradient of the last batch, after a run."""
        self()
        gradients = [weight.grad for weight in self.model.parameters()]
        flat = [gradient.float().flatten() for gradient in gradients if gradient is not None]
        return self.loss, torch.cat(flat)


def relative_difference(found: Result, expected: Result) -> float:
    """The difference of the loss or of the gradient, whichever is larger."""
    of_loss = difference([expected[0]], [found[0]])
    of_gradient = (found[1] - expected[1]).norm() / expected[1].norm()
    # The maximum of numpy, unlike that of Python, is NaN if one of them is.
    return float(np.max([of_loss, of_gradient.item()]))


def batches_of(task: str, options: Options) -> list[Inputs]:
    """Inputs on the device."""
    work = Workload(batch=options.batch, seq=options.seq, vocab_size=options.vocab_size)
    sources = make_batches(work)
    targets = make_batches(work, salt=1)
    batches = []
    for source, target in zip(sources, targets, strict=True):
        inputs = inputs_of(task, source, target)
        batches.append({name: value.to(options.device) for name, value in inputs.items()})
    return batches


def compare(name: str, width: int, dtype: str, options: Options) -> Row:
    """All contenders of one model."""
    family, task = name.split("/")
    batches = batches_of(task, options)

    def stock_model(dtype: str) -> PreTrainedModel:
        model = new_model(family, task, WIDTHS[width], options.vocab_size)
        return model.to(device=options.device, dtype=DTYPES[dtype])

    stock = stock_model(dtype)
    # The trial of `padding_free` is more exact in float32.
    free = padding_free(stock_model("float32")).to(DTYPES[dtype])
    share_weights(source=stock, target=free)
    steps = {STOCK: FormedStep(stock, batches, form=STOCK)}
    expected = steps[STOCK].result()
    differences = {}
    for form in (*FORMS, DEFAULT):
        step = FormedStep(free, batches, form=form)
        found = step.result()
        if form in {DEFAULT, *step.used}:
            steps[form] = step
            differences[form] = relative_difference(found, expected)
    row: Row = {"model": name, "width": width, "dtype": dtype, "differences": differences}
    if dtype != "float32":
        exact = stock_model("float32")
        # Its weights are rounded as well.
        for weight, rounded in zip(exact.parameters(), stock.parameters(), strict=True):
            weight.data.copy_(rounded.data)
        reference = FormedStep(exact, batches, form=STOCK).result()
        row["rounding"] = relative_difference(expected, reference)
        del exact, reference
    times = alternate(list(steps.values()), options.rounds, clock=time_when_finished)
    seconds = {
        form: [one / len(batches) for one in own] for form, own in zip(steps, times, strict=True)
    }
    row["forms"] = {form: sorted(step.used) for form, step in steps.items()}
    row["contenders"] = summary(seconds, base=DEFAULT)
    return row


def comparisons(options: Options) -> Iterator[Row]:
    for name, width, dtype in product(options.models, options.widths, DTYPES):
        yield compare(name, width, dtype, options)


def cells_of(row: Row) -> list[str]:
    cells = [row["model"], str(row["width"]), row["dtype"]]
    cells.append(f"{np.max([*row['differences'].values()]):.0e}")
    cells.append(f"{row['rounding']:.0e}" if "rounding" in row else "")
    for name in CONTENDERS:
        times = row["contenders"].get(name)
        cells.append("" if times is None else f"{1000 * times['median_seconds']:.2f}")
    used = " and ".join(row["forms"][DEFAULT])
    cells[-1] += f" ({used})" if used else ""
    return cells


def main(options: Options) -> None:
    report("accelerator", options, COLUMNS, comparisons(options), cells_of, unit="seconds")
