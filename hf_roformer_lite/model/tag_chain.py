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
    follows = (documents[1:] == documents[:-1]).to(scores.dtype)[:, None]  # (W - 1, 1)
    from_left = from_right = torch.zeros_like(scores)
    for _ in range(_REACH):
        to_right = join((scores + from_left)[:-1, :, None] + transitions, 1)  # (W - 1, K)
        to_left = join((scores + from_right)[1:, None, :] + transitions, 2)  # (W - 1, K)
        from_left = F.pad(_without_constant(to_right) * follows, (0, 0, 1, 0))
        from_right = F.pad(_without_constant(to_left) * follows, (0, 0, 0, 1))
    return from_left + from_right


def _without_constant(messages: torch.Tensor) -> torch.Tensor:
    return messages - messages.amax(-1, keepdim=True)
