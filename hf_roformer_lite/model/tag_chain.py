"""Which tags may follow one another: the best sequence of tags, found by messages between neighbours."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

_REACH = 16  # neighbours to each side; what is further away changes next to nothing


def messages_of_neighbours(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    documents: torch.Tensor,
    join: Callable[[torch.Tensor, int], torch.Tensor] = torch.amax,
) -> torch.Tensor:
    """What its neighbours say about the tag of each word of a linear chain, `(W, K)`, to be added to `scores`.

    With `torch.amax` the sum is, up to a constant of each word, the score of the best sequence that has the tag, so
    its maximum is the best sequence (Viterbi); with `torch.logsumexp` it is the logarithm of the probability of the
    tag. All words take one message from each side at once, 16 times (belief propagation): no loop over the words of a
    sentence is needed, and sentences of up to 17 words are exact.

    Args:
        scores: Of K tags for each of W words, `(W, K)`.
        transitions: Of a tag (row) and the one behind it (column), `(K, K)`.
        documents: The number of the document of each word, `(W,)`, rising.
        join: How the possible tags of a neighbour are joined.
    """
    has_left = (F.pad(documents, (1, 0), value=-1)[:-1] == documents)[:, None]  # (W, 1)
    has_right = (F.pad(documents, (0, 1), value=-1)[1:] == documents)[:, None]  # (W, 1)
    from_left = from_right = torch.zeros_like(scores)
    for _ in range(_REACH):
        to_right = _without_constant(join((scores + from_left)[:, :, None] + transitions, 1))  # (W, K)
        to_left = _without_constant(join((scores + from_right)[:, None, :] + transitions, 2))  # (W, K)
        from_left = F.pad(to_right, (0, 0, 1, 0))[:-1] * has_left
        from_right = F.pad(to_left, (0, 0, 0, 1))[1:] * has_right
    return from_left + from_right


def _without_constant(messages: torch.Tensor) -> torch.Tensor:
    return messages - messages.amax(-1, keepdim=True)
