"""Simple means for causal and mlm: n-gram models of bytes, and of the tokens beside a masked one."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyppmd

from ..metrics import perplexity_metrics
from . import Baselines, at_most

_ORDER = 6  # bytes of context at most
_MEMORY = 2**28  # bytes; what the model of bytes may hold before it starts again
_MOST_BYTES = 50_000_000
_MOST_BLOCKS = 20_000  # of the training data
_MEASURED_BLOCKS = 500
_STRENGTH = 2.0  # how many occurrences of a context count as much as what a shorter context says


def byte_baselines(train: Iterable[str], measured: Mapping[str, Iterable[str]]) -> Baselines:
    """Bits per byte of an n-gram model of bytes, by partial matching (Cleary & Witten 1984; variant H of PPMd).

    The figure is what a text costs after the training text. The model goes on learning from what it has read, as
    compressors do, which helps it a little.

    Args:
        train: Texts to learn from; the last 50 MB of them are used.
        measured: The texts of each split to measure.
    """
    known = "".join(train).encode()[-_MOST_BYTES:]
    alone = _compressed_size(known)
    figures = {}
    for split, texts in measured.items():
        text = "".join(texts).encode()
        figures[split] = {"bits_per_byte": 8 * (_compressed_size(known + text) - alone) / len(text)}
    return {f"an n-gram model of {_ORDER} bytes": figures}


def _compressed_size(data: bytes) -> int:
    encoder = pyppmd.Ppmd7Encoder(_ORDER, _MEMORY)
    return len(encoder.encode(data)) + len(encoder.flush())


def neighbour_baselines(train: Sequence[list[int]], measured: Mapping[str, Sequence[list[int]]]) -> Baselines:
    """Perplexity and accuracy of a token given the two beside it, the figures of a masked language model.

    Counts of the token between both neighbours, after the left one, and alone are interpolated (Witten & Bell 1991).
    Unlike the model, these means see the right neighbours where those are masked too, and every token is predicted.

    Args:
        train: Token ids of blocks to learn from, with their special tokens at both ends; 20,000 at most are used.
        measured: The blocks of each split; 500 at most are used.
    """
    between: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    after: defaultdict[int, Counter[int]] = defaultdict(Counter)
    alone: Counter[int] = Counter()
    for block in at_most(train, _MOST_BLOCKS):
        for left, token, right in zip(block, block[1:], block[2:], strict=False):
            between[left, right][token] += 1
            after[left][token] += 1
            alone[token] += 1
    commonest, known, vocabulary = max(alone, key=alone.get), alone.total(), len(alone) + 1

    def score(left: int, token: int, right: int) -> tuple[float, bool]:
        """Negative log-likelihood of the token, and whether it is the likeliest."""
        probability, guess = (alone[token] + 1) / (known + vocabulary), commonest
        for counts in (after.get(left), between.get((left, right))):
            if counts:
                probability = (counts[token] + _STRENGTH * probability) / (counts.total() + _STRENGTH)
                guess = max(counts, key=counts.get)
        return -np.log(probability), guess == token

    figures = {}
    for split, blocks in measured.items():
        scores = [
            (loss, 1, right)
            for block in at_most(blocks, _MEASURED_BLOCKS)
            for loss, right in (score(*three) for three in zip(block, block[1:], block[2:], strict=False))
        ]
        figures[split] = perplexity_metrics(np.array(scores))
    return {"counts of the tokens beside it": figures}
