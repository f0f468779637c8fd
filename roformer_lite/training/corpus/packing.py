"""Several blocks in one row, none of which sees another: which go together, and how the model is told."""

from bisect import bisect_left, insort

import numpy as np

Item = list[int]  # the blocks of one row


def best_fit(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Put things of `lengths` into as few bins as can be, each of at most `capacity`; the places of those of each bin.

    The longest first, each into the fullest bin where it fits (best fit decreasing: Johnson 1974). Nothing is cut, as
    it would be where documents are joined and split at every `capacity` tokens, which harms what a model learns (Ding
    et al. 2024, arXiv:2404.10830).
    """
    bins: list[list[int]] = []
    free: list[list[int]] = [[] for _ in range(capacity + 1)]  # bins by the room that they have left
    rooms: list[int] = []  # those of which there are bins, rising
    values = lengths.tolist()
    for place in np.argsort(-lengths, kind="stable").tolist():
        length = values[place]
        at = bisect_left(rooms, length)
        if at == len(rooms):
            bins.append([place])
            room, number = capacity - length, len(bins) - 1
        else:
            room = rooms[at]
            number = free[room].pop()
            if not free[room]:
                del rooms[at]
            bins[number].append(place)
            room -= length
        if room:
            if not free[room]:
                insort(rooms, room)
            free[room].append(number)
    return bins
