"""The best sequence of tags for the scores of single tags and of transitions between them."""

import numpy as np


def best_sequence(scores: np.ndarray, transitions: np.ndarray) -> list[int]:
    """The tags with the largest sum of scores (Viterbi 1967, IEEE Transactions on Information
    Theory).

    Args:
        scores: The score of each tag of each word, `(words, tags)`.
        transitions: The score of each tag after each other one, `(1 + tags before, 1 + tags)`. The
            first row is for the beginning, and the first column for the end.

    Returns:
        The number of the tag of each word.
    """
    if not len(scores):
        return []
    totals = scores[0] + transitions[0, 1:]
    best_before = []
    for own_scores in scores[1:]:
        paths = totals[:, None] + transitions[1:, 1:]
        best_before.append(paths.argmax(axis=0))
        totals = paths.max(axis=0) + own_scores
    sequence = [int((totals + transitions[1:, 0]).argmax())]
    for before in reversed(best_before):
        sequence.append(int(before[sequence[-1]]))
    return sequence[::-1]
