"""`python -m benchmarks floor [options]`: compare a training step of RoFormerLite language models
with its floor, the time of its matrix products on real tokens, without any other work.

The floor is measured with products of the same shapes by `torch.mm`. The products of attention have
many shapes, so their operations are counted and added at the rate of the others. Times are
processor times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hf_roformer_lite import RoFormerLiteConfig

from .contenders import ROFORMER_LITE, SIZES, Step, inputs_of, new_model
from .report import Row, report, summary
from .timing import alternate
from .workload import IGNORED, Batch, Workload, check_known, make_batches

# (m, k, n) stands for the product of matrices of the shapes (m, k) and (k, n).
Product = tuple[int, int, int]
MODELS = ("roformer_lite/masked-lm", "roformer_lite/causal-lm", "roformer_lite/seq2seq")
COLUMNS = ["model", "lengths", "step, ms", "floor, ms", "floor / step"]


@dataclass
class Options:
    models: list[str] = field(
        default_factory=lambda: [*MODELS], metadata={"help": ", ".join(MODELS)}
    )
    size: str = field(default="mini", metadata={"help": f"of all models: {', '.join(SIZES)}"})
    batch: int = field(default=16, metadata={"help": "rows of a batch"})
    seq: int = field(default=128, metadata={"help": "longest row, in tokens"})
    vocab_size: int = 8192
    rounds: int = field(default=7, metadata={"help": "measurements of each; they alternate"})
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})

    def __post_init__(self) -> None:
        check_known("models", self.models, MODELS)
        check_known("size", [self.size], SIZES)


def stack_products(
    config: RoFormerLiteConfig, tokens: int, source_tokens: int = 0
) -> Iterator[Product]:
    """The products of all layers for `tokens`. With `source_tokens`, each layer also has
    cross-attention to them."""
    hidden = config.hidden_size
    inner = config.intermediate_size
    for _ in range(config.num_hidden_layers):
        yield tokens, hidden, 3 * hidden
        yield tokens, hidden, hidden
        if source_tokens:
            yield tokens, hidden, hidden
            yield source_tokens, hidden, 2 * hidden
            yield tokens, hidden, hidden
        yield tokens, hidden, inner
        yield tokens, inner, hidden


def attention_operations(config: RoFormerLiteConfig, pairs: float) -> float:
    """The number of multiplications and additions of attention in all layers, for `pairs` of a
    query and a visible key."""
    return config.num_hidden_layers * 4 * pairs * config.hidden_size


def backward_too(products: list[Product]) -> list[Product]:
    """The products of the forward and backward pass: each product has two more for the gradients of
    its factors."""
    shapes = []
    for m, k, n in products:
        shapes += [(m, k, n), (m, n, k), (k, m, n)]
    return shapes


def products_of(
    task: str, config: Any, source: Batch, target: Batch | None
) -> tuple[list[Product], float]:
    """The products of the forward pass on one batch, and the operations of its attention."""
    pairs = float(sum(length**2 for length in source.lengths))
    if target is None:
        products = list(stack_products(config, source.tokens))
        # A masked language model predicts a fraction of the tokens, a causal one all but the first.
        labelled = int((source.masked_lm_labels() != IGNORED).sum())
        if task == "causal-lm":
            labelled = source.tokens - len(source.lengths)
            # A token attends only to earlier tokens.
            pairs /= 2
    else:
        config = config.decoder
        products = list(stack_products(config, source.tokens))
        products += stack_products(config, target.tokens, source.tokens)
        labelled = target.tokens
        for source_length, target_length in zip(source.lengths, target.lengths, strict=True):
            pairs += source_length * target_length + target_length**2 / 2
    products.append((labelled, config.hidden_size, config.vocab_size))
    return products, attention_operations(config, pairs)


class Products:
    """The matrix products of the forward and backward pass, without any other work."""

    def __init__(self, products: list[Product]) -> None:
        self.products = backward_too(products)
        self.factors = {
            (m, k, n): (torch.randn(m, k), torch.randn(k, n), torch.empty(m, n))
            for m, k, n in set(self.products)
        }

    def __call__(self) -> None:
        for shape in self.products:
            left, right, out = self.factors[shape]
            torch.mm(left, right, out=out)


def operations(products: list[Product]) -> int:
    return sum(2 * m * k * n for m, k, n in products)


def compare(name: str, lengths: Any, options: Options) -> Row:
    """A step of a RoFormerLite model and its floor."""
    task = name.split("/")[1]
    work = Workload(
        batch=options.batch,
        seq=options.seq,
        vocab_size=options.vocab_size,
        lengths=lengths,
        batches=1,
    )
    (source,) = make_batches(work)
    target = make_batches(work, salt=1)[0] if task == "seq2seq" else None
    model = new_model(ROFORMER_LITE, task, SIZES[options.size], options.vocab_size)
    step = Step(model, [inputs_of(task, source, target)])
    products, attention = products_of(task, model.config, source, target)
    seconds, of_products = alternate([step, Products(products)], options.rounds)
    share = 1 + attention / operations(products)
    times = {"step": seconds, "floor": [share * one for one in of_products]}
    return {"model": name, "lengths": lengths, "contenders": summary(times, base="step")}


def comparisons(options: Options) -> Iterator[Row]:
    for name in options.models:
        for lengths in ("real", "full"):
            yield compare(name, lengths, options)


def cells_of(row: Row) -> list[str]:
    times = row["contenders"]
    cells = [f"{1000 * times[name]['median_seconds']:.1f}" for name in ("step", "floor")]
    return [row["model"], row["lengths"], *cells, f"{times['floor']['times']:.2f}"]


def main(options: Options) -> None:
    rows = comparisons(options)
    report("floor", options, COLUMNS, rows, cells_of, unit="processor seconds")
