"""Validation rows of data that are read once: which rows are the last ones is known only when all have been read."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ..data_files import Row


def hold_out(rows: Iterable[Row], held: deque[Row], most: int, amount: Callable[[int], int]) -> Iterator[Row]:
    """The rows that are not held out; the last ones have been put into `held` when there are no more.

    Args:
        rows: All rows, of which only those in `held` are kept in memory.
        held: Empty.
        most: How many may be held out.
        amount: From the number of rows to how many of them are.
    """
    number = 0
    for row in rows:
        number += 1
        held.append(row)
        if len(held) > most:
            yield held.popleft()
    for _ in range(len(held) - amount(number)):
        yield held.popleft()
