"""The least that a model can cost here: its matrix products alone, on real tokens alone.

Timed like the contenders: the same shapes, nothing between the products. Those of attention, whose shapes are many,
are counted and added at the rate of the others.
"""

from collections.abc import Callable, Iterator

import torch

from hf_roformer_lite import RoFormerLiteConfig

from .timing import Contender
from .workload import Workload

Product = tuple[int, int, int]  # (m, k) by (k, n)
FLOOR = "floor"


def stack_products(config: RoFormerLiteConfig, tokens: int, source_tokens: int = 0) -> Iterator[Product]:
    """Products of all layers on `tokens`; with `source_tokens` each layer attends to these too."""
    hidden, inner = config.hidden_size, config.intermediate_size
    for _ in range(config.num_hidden_layers):
        yield from [(tokens, hidden, 3 * hidden), (tokens, hidden, hidden)]
        if source_tokens:
            yield from [(tokens, hidden, hidden), (source_tokens, hidden, 2 * hidden), (tokens, hidden, hidden)]
        yield from [(tokens, hidden, inner), (tokens, inner, hidden)]


def attention_operations(config: RoFormerLiteConfig, pairs: float) -> float:
    """Multiplications and additions of all layers' scores and sums, for `pairs` of a query and a key it sees."""
    return config.num_hidden_layers * 4 * pairs * config.hidden_size


def backward_too(products: list[Product]) -> list[Product]:
    """With the gradients of both factors."""
    return [shape for m, k, n in products for shape in ((m, k, n), (m, n, k), (k, m, n))]


def floor(work: Workload, products: list[Product], attention: float, train: bool) -> Contender:
    """The contender that computes `products` and stands for `attention` operations more."""
    if train:
        products, attention = backward_too(products), 3 * attention
    operations = sum(2 * m * k * n for m, k, n in products)
    return Contender(FLOOR, _multiply(work, products), 1 + attention / operations)


def _multiply(work: Workload, products: list[Product]) -> Callable[[], None]:
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

    return run
