"""The best sequence of tags, and the probabilities of tags, in a chain of words (Lafferty et al.
2001, ICML).

The words of all sentences are one row. One message passes along each sentence from the left and one
from the right, so that the cost is linear in the number of words and sentences can have any length.
In traced graphs, such as those of ONNX, a message reaches `MAX_TRACED_WORDS` words, more than most
models read at once.
"""

from collections.abc import Callable

import torch
from transformers.utils.import_utils import is_tracing

from .words_of_tokens import has_previous, indices_where, shifted

# A transition with this score is forbidden.
IMPOSSIBLE = -50.0
# In traced graphs, the best sequence of a longer sentence may not be found.
MAX_TRACED_WORDS = 1024
# For each word, graphs compute at most this many sums over three successive tags at a time.
MAX_TRIPLES = 2**13

Join = Callable[..., torch.Tensor]


def messages_of_neighbours(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    documents: torch.Tensor,
    join: Join = torch.amax,
) -> torch.Tensor:
    """The messages that the words of a linear chain receive from the words on both sides, `(W, K)`,
    to be added to `scores`.

    Up to a constant for each word, the sums are max-marginals with `torch.amax`: the score of the
    best sequence that contains the tag, so their maxima are the best sequence (Viterbi). With
    `torch.logsumexp` they are the logarithms of the marginal probabilities.

    Args:
        scores: The scores of K tags for each of W words, `(W, K)`.
        transitions: The scores of each tag (row) before each other tag (column), `(K, K)`.
        documents: The document of each word, `(W,)`, ascending.
        join: `torch.amax` or `torch.logsumexp`, which joins the tags of a neighbour.
    """
    has_left = has_previous(documents)
    has_right = shifted(has_left, distance=1)
    pass_along = pass_along_row if is_tracing(scores) else pass_along_sentences
    from_left = pass_along(scores, transitions, has_left, join)
    from_right = pass_along(scores.flip(0), transitions.T, has_right.flip(0), join)
    return from_left + from_right.flip(0)


def pass_along_sentences(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    has_left: torch.Tensor,
    join: Join,
) -> torch.Tensor:
    """The message that each word receives from the word before it, `(W, K)`, which is 0 if there is
    none.

    The first words of all sentences come first, then their second words, and so on. The longest
    sentence is the first of each group, so that the words of a group follow the first words of the
    group before.

    Args:
        scores: `(W, K)`.
        transitions: `(K, K)`.
        has_left: Whether there is a word before each word in its sentence, `(W,)`.
        join: As for `messages_of_neighbours`.
    """
    if scores.shape[0] == 0:
        return scores
    sentences = (~has_left).cumsum(0) - 1  # (W,)
    starts = indices_where(~has_left)  # (S,)
    num_words = torch.bincount(sentences)  # (S,)
    ranks = num_words.argsort(descending=True).argsort()  # (S,)
    indices = torch.arange(scores.shape[0], device=scores.device) - starts[sentences]  # (W,)
    order = (indices * starts.shape[0] + ranks[sentences]).argsort()  # (W,)

    messages = []
    message = torch.zeros_like(scores[starts])  # (S, K)
    for group in scores[order].split(torch.bincount(indices).tolist()):
        message = message[: group.shape[0]]
        messages.append(message)
        message = pass_on(group + message, transitions, join)
    return torch.cat(messages)[order.argsort()]


def pass_along_row(
    scores: torch.Tensor,
    transitions: torch.Tensor,
    has_left: torch.Tensor,
    join: Join,
) -> torch.Tensor:
    """Like `pass_along_sentences`, without a loop over words, which traced graphs cannot have.

    The transfer of a word is what each tag of the previous word adds to the message. Two successive
    transfers are combined into one over twice the distance, so that a few steps reach
    `MAX_TRACED_WORDS`. The transfer of a first word is 0, which cuts off earlier words.
    """
    left_scores = shifted(scores, distance=-1)
    transfers = left_scores[:, :, None] + transitions  # (W, K, K)
    transfers = transfers * has_left[:, None, None]
    distance = 1
    while distance < MAX_TRACED_WORDS:
        transfers = join_transfers(shifted(transfers, -distance), transfers, join)
        distance *= 2
    messages = join(transfers, dim=1)
    return messages - messages.amax(dim=-1, keepdim=True)


def join_transfers(left: torch.Tensor, right: torch.Tensor, join: Join) -> torch.Tensor:
    """Combine two successive transfers into one over both distances, `(W, K, K)`, whose maximum is
    0."""
    num_tags = left.shape[1]
    tags_at_once = max(1, MAX_TRIPLES // num_tags**2)
    parts = []
    for part in left.split(tags_at_once, dim=1):
        triples = part[:, :, :, None] + right[:, None]  # (W, tags_at_once, K, K)
        parts.append(join(triples, dim=2))
    transfers = torch.cat(parts, dim=1)
    return transfers - transfers.amax(dim=(1, 2), keepdim=True)


def pass_on(scores: torch.Tensor, transitions: torch.Tensor, join: Join) -> torch.Tensor:
    """The message of each word to the next one, `(W, K)`, whose maximum is 0.

    Args:
        scores: The scores of the tags of each word, `(W, K)`.
        transitions: The scores of the tags of the word (rows) with those of the next one (columns),
            `(K, K)`.
        join: As for `messages_of_neighbours`.
    """
    if join is torch.logsumexp:
        messages = log_matmul(scores, transitions)
    else:
        messages = join(scores[:, :, None] + transitions, dim=1)
    return messages - messages.amax(dim=-1, keepdim=True)


def log_matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Compute `log(exp(left) @ exp(right))`, `(W, K)`, without overflow.

    Args:
        left: `(W, K)`.
        right: `(K, K)`.
    """
    left_max = left.amax(dim=-1, keepdim=True)
    right_max = right.amax()
    product = (left - left_max).exp() @ (right - right_max).exp()
    # The product may underflow to 0, which has no logarithm.
    product = product.clamp(min=torch.finfo(product.dtype).tiny)
    return product.log() + left_max + right_max
