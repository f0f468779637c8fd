"""The floor: the time of a model's matrix products alone, on its real tokens alone.

It is timed like the contenders, with products of the same shapes by `torch.mm` and nothing between
them. The products of attention, which have many shapes, are counted and added at the rate of the
others.
"""

from collections.abc import Iterator

import torch

from hf_roformer_lite import RoFormerLiteConfig

from .timing import Contender
from .workload import Workload

Product = tuple[int, int, int]  # (m, k) by (k, n)
FLOOR = "floor"


def stack_products(
    config: RoFormerLiteConfig, tokens: int, source_tokens: int = 0
) -> Iterator[Product]:
    """Products of all layers on `tokens`; with `source_tokens` each layer also has cross-attention
    to these."""
    hidden, inner = config.hidden_size, config.intermediate_size
    for _ in range(config.num_hidden_layers):
        yield from [(tokens, hidden, 3 * hidden), (tokens, hidden, hidden)]
        if source_tokens:
            yield from [
                (tokens, hidden, hidden),
                (source_tokens, hidden, 2 * hidden),
                (tokens, hidden, hidden),
            ]
        yield from [(tokens, hidden, inner), (tokens, inner, hidden)]


def attention_operations(config: RoFormerLiteConfig, pairs: float) -> float:
    """Multiplications and additions of attention in all layers, for `pairs` of a query and a key
    that it sees."""
    return config.num_hidden_layers * 4 * pairs * config.hidden_size


def backward_too(products: list[Product]) -> list[Product]:
    """The products of forward and backward pass: for each its own and those of the gradients of
    both factors."""
    return [shape for m, k, n in products for shape in ((m, k, n), (m, n, k), (k, m, n))]


def floor(work: Workload, products: list[Product], attention: float, train: bool) -> Contender:
    """The contender that computes `products`, its time scaled up for `attention` further
    operations."""
    if train:
        products, attention = backward_too(products), 3 * attention
    operations = sum(2 * m * k * n for m, k, n in products)
    dtype = getattr(torch, work.dtype)
    factors = {
        (m, k, n): (
            torch.randn(m, k, device=work.device, dtype=dtype),
            torch.randn(k, n, device=work.device, dtype=dtype),
            torch.empty(m, n, device=work.device, dtype=dtype),
        )
        for m, k, n in set(products)
    }

    def run() -> None:
        with torch.no_grad():
            for shape in products:
                left, right, out = factors[shape]
                torch.mm(left, right, out=out)

    return Contender(FLOOR, run, 1 + attention / operations)
