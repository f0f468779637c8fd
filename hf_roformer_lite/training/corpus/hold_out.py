"""Validation rows of data that are read once: which rows are held out is known only when all have been read."""

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from ..data_files import Row


def hold_out(
    rows: Iterable[Row], held: deque[Row], most: int, amount: Callable[[int, str], int], seed: int
) -> Iterator[Row]:
    """The rows that are not held out; those that are have been put into `held` when there are no more.

    Rows that are documents are drawn at random (reservoir sampling: Vitter 1985). Rows that are parts of documents
    cannot be, and the last ones are held out.

    Args:
        rows: All rows, of which only those in `held` are kept in memory.
        held: Empty.
        most: How many may be held out.
        amount: From the number of rows, and how those to be held out are chosen, to how many are.
        seed: Determines which rows are drawn.
    """
    drawn, number, are_documents = random.Random(seed), 0, True
    for number, row in enumerate(rows, 1):
        if number == 1:
            are_documents = row["document"] == row["origin"]
        if len(held) < most:
            held.append(row)
        elif not are_documents:
            held.append(row)
            yield held.popleft()
        elif (place := drawn.randrange(number)) < most:
            yield held[place]
            held[place] = row
        else:
            yield row
    surplus = len(held) - amount(number, "at random" if are_documents else "the last ones")
    if are_documents:
        order = drawn.sample(list(held), len(held))
        held.clear()
        held.extend(order)
    for _ in range(surplus):
        yield held.popleft()
