"""Where rows come from."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .data_files import Row


class Source(NamedTuple):
    """The rows of a split, which can be read more than once, and what messages call them."""

    name: str
    rows: Callable[[], Iterator[Row]]
