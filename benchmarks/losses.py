"""`python -m benchmarks losses [options]`: compare the loss of a language model's head and its
gradients, computed by this package, by torch's function that takes some rows at a time, and from
all logits at once.

Errors are relative to the loss and the gradients in float64. Times are processor times.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from hf_roformer_lite.model.losses import CHUNK_ROWS, linear_cross_entropy

from .report import Row, report, summary
from .timing import alternate

COLUMNS = ["dtype", "way", "ms", "time / this package", "error of the loss", "of the gradients"]
# A loss of hidden states, a head and labels.
Loss = Callable[[torch.Tensor, nn.Linear, torch.Tensor], torch.Tensor]


@dataclass
class Options:
    tokens: int = field(default=1024, metadata={"help": "labelled tokens"})
    hidden_size: int = 256
    vocab_size: int = 30_522
    label_smoothing: float = 0.0
    rounds: int = field(default=7, metadata={"help": "measurements of each; they alternate"})
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})


def of_torch(
    states: torch.Tensor, head: nn.Linear, labels: torch.Tensor, smoothing: float, policy: str
) -> torch.Tensor:
    return F.linear_cross_entropy(
        states,
        head.weight,
        labels,
        linear_bias=head.bias,
        reduction="sum",
        label_smoothing=smoothing,
        options=nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK_ROWS, acc_policy=policy),
    )


def at_once(
    states: torch.Tensor, head: nn.Linear, labels: torch.Tensor, smoothing: float
) -> torch.Tensor:
    logits = head(states)
    return F.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)),
        labels,
        reduction="sum",
        label_smoothing=smoothing,
    )


def ways_of(smoothing: float) -> dict[str, Loss]:
    return {
        "this package": partial(linear_cross_entropy, label_smoothing=smoothing),
        "torch, default": partial(of_torch, smoothing=smoothing, policy="auto"),
        "torch, accurate": partial(of_torch, smoothing=smoothing, policy="accurate"),
        "all logits": partial(at_once, smoothing=smoothing),
    }


def outcome(loss_of: Loss, states: torch.Tensor, head: nn.Linear, labels: torch.Tensor) -> Row:
    """The loss and the gradients of the states and the weight, in float64."""
    leaf = states.detach().clone().requires_grad_()
    loss = loss_of(leaf, head, labels)
    gradients = torch.autograd.grad(loss, [leaf, head.weight])
    flat = torch.cat([gradient.double().flatten() for gradient in gradients])
    return {"loss": loss.detach().double(), "gradients": flat}


def comparisons(options: Options) -> Iterator[Row]:
    torch.manual_seed(0)
    states = torch.randn(options.tokens, options.hidden_size)
    labels = torch.randint(options.vocab_size, (options.tokens,))
    for dtype in (torch.float32, torch.bfloat16):
        head = nn.Linear(options.hidden_size, options.vocab_size, dtype=dtype)
        own = states.to(dtype)
        ways = ways_of(options.label_smoothing)
        runs = [partial(outcome, loss_of, own, head, labels) for loss_of in ways.values()]
        seconds = dict(zip(ways, alternate(runs, options.rounds), strict=True))
        times = summary(seconds, base="this package")
        found = [run() for run in runs]
        right = outcome(ways["all logits"], own.double(), head.double(), labels)
        for way, values in zip(ways, found, strict=True):
            errors = {
                name: float((values[name] - right[name]).norm() / right[name].norm())
                for name in right
            }
            yield {"dtype": str(dtype).removeprefix("torch."), "way": way, **times[way], **errors}


def cells_of(row: Row) -> list[str]:
    times = [f"{1000 * row['median_seconds']:.0f}", f"{row['times']:.2f}"]
    return [row["dtype"], row["way"], *times, f"{row['loss']:.1e}", f"{row['gradients']:.1e}"]


def main(options: Options) -> None:
    report("losses", options, COLUMNS, comparisons(options), cells_of)
