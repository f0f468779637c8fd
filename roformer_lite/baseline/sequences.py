"""The best sequence of tags for the scores of single tags and of transitions between them."""

from collections.abc import Sequence

import numpy as np


def best_sequence(
    scores: np.ndarray, transitions: np.ndarray, start: np.ndarray | None = None
) -> list[int]:
    """The tags with the largest sum of scores (Viterbi 1967, IEEE Transactions on Information
    Theory).

    Args:
        scores: The score of each tag of each word, `(words, tags)`.
        transitions: The score of each tag after each other one, `(tags before, tags)`.
        start: The score of each tag at the beginning, `(tags,)`. Default: zeros.

    Returns:
        The number of the tag of each word.
    """
    if not len(scores):
        return []
    totals = scores[0] if start is None else scores[0] + start
    best_before = []
    for own_scores in scores[1:]:
        paths = totals[:, None] + transitions
        best_before.append(paths.argmax(axis=0))
        totals = paths.max(axis=0) + own_scores
    sequence = [int(totals.argmax())]
    for before in reversed(best_before):
        sequence.append(int(before[sequence[-1]]))
    return sequence[::-1]


def legal_transitions(tags: Sequence[str], scheme: str | None) -> np.ndarray:
    """Which tag may follow which: 0 where it may, minus infinity where it may not,
    `(1 + tags before, tags)`. The first row is for the beginning of a sentence.

    Except in IOB1, where an entity may begin with I-X, only B-X and I-X may come before I-X. Tags
    without a scheme may follow all others.

    Args:
        tags: The tags in the order of their numbers.
        scheme: The scheme by which they mark entities, as returned by `scheme_of`.
    """
    found = np.zeros((1 + len(tags), len(tags)))
    if scheme in (None, "IOB1"):
        return found
    for number, tag in enumerate(tags):
        begin = "B" + tag[1:]
        if not tag.startswith("I-") or begin not in tags:
            continue
        found[0, number] = -np.inf
        for before, name in enumerate(tags):
            if name not in (begin, tag):
                found[1 + before, number] = -np.inf
    return found
