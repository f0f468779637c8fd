"""The floor: the time of the matrix products of a model on its real tokens, without any other work.

It is measured like the contenders, with products of the same shapes by `torch.mm`. The products of
attention have many shapes, so their operations are counted and added at the rate of the others.
"""

from collections.abc import Iterator
from typing import Any

import torch

from hf_roformer_lite import RoFormerLiteConfig

from .timing import Contender
from .workload import Workload

# (m, k, n) stands for the product of matrices of the shapes (m, k) and (k, n).
Product = tuple[int, int, int]
FLOOR = "floor"


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


def floor(work: Workload, products: list[Product], attention: float, train: bool) -> Contender:
    """The contender that computes `products`. Its time is scaled up for `attention` further
    operations."""
    if train:
        products = backward_too(products)
        attention = 3 * attention
    operations = sum(2 * m * k * n for m, k, n in products)
    options: dict[str, Any] = {"device": work.device, "dtype": getattr(torch, work.dtype)}
    factors = {
        (m, k, n): (
            torch.randn(m, k, **options),
            torch.randn(k, n, **options),
            torch.empty(m, n, **options),
        )
        for m, k, n in set(products)
    }

    def run() -> None:
        with torch.no_grad():
            for shape in products:
                left, right, out = factors[shape]
                torch.mm(left, right, out=out)

    return Contender(FLOOR, run, 1 + attention / operations)
