"""The inputs of a benchmark: lengths of rows, and batches of random tokens."""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import torch

# RoFormerLiteTokenizer has these ids, with its special tokens before FIRST_ID.
PAD = 0
START = 2
FIRST_ID = 5
IGNORED = -100
# This fraction of the tokens is predicted in masked language modelling (Devlin et al. 2018, section
# 3.1).
MASKED_SHARE = 0.15
MIN_ROW_TOKENS = 4

# The number of batches that are sorted together by length, as in the Trainer's
# LengthGroupedSampler.
POOL = 50
# The number of tokens of texts in BERT's WordPiece vocabulary of 30,522: of the 23,279 paragraphs
# of 17 English books (the Gutenberg selection of NLTK), and of TREC's 5,452 training questions.
# These are quantiles: the minimum, every twentieth part, and the maximum, or a figure that
# represents the longest paragraphs.
# fmt: off
TEXTS = {
    "paragraphs": (
        4.0, 7, 11, 15, 18, 22, 26, 30, 33, 38, 43, 49, 57, 65, 76, 89, 104, 126, 157, 218, 512,
    ),
    "questions": (
        5.0, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 16, 17, 18, 19, 22, 41,
    ),
}
# fmt: on
# The number of tokens of a target, relative to its source, is between these two.
MIN_TARGET_SHARE = 0.8
MAX_TARGET_SHARE = 1.25
MIN_TARGET_TOKENS = 4


def check_known(option: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse unknown values of an option."""
    for name in given:
        if name not in known:
            raise SystemExit(f"{option}={name!r} is not known; choose from {', '.join(known)}.")


@dataclass
class Workload:
    """The shape of the batches of one measurement.

    Attributes:
        batch: The rows of a batch.
        seq: The tokens of the longest row.
        lengths: All rows are full, or have `real` lengths, or the latter batched by length.
    """

    batch: int
    seq: int
    vocab_size: int
    lengths: Literal["full", "real", "sorted"] = "real"
    batches: int = 4

    def drawn_lengths(self, salt: int = 0) -> list[list[int]]:
        """The number of tokens of each row, batch by batch.

        `real` lengths are log-normal with the median seq / 4 and a deviation of 0.6 of the
        logarithm, clipped to [4, seq]; one row of each batch is full. `sorted` are the same rows,
        batched by length.
        """
        generator = random.Random(salt)
        rows = []
        for _ in range(self.batches):
            row = [self.seq] * self.batch
            if self.lengths != "full":
                for place in range(1, self.batch):
                    length = round(self.seq / 4 * generator.lognormvariate(0, 0.6))
                    row[place] = min(max(length, MIN_ROW_TOKENS), self.seq)
            generator.shuffle(row)
            rows += row
        if self.lengths == "sorted":
            rows.sort()
        return [rows[start : start + self.batch] for start in range(0, len(rows), self.batch)]


@dataclass(kw_only=True)
class RealTexts(Workload):
    """A workload whose real lengths have one of the distributions of `TEXTS`.

    Its batches represent `POOL` batches. They are those with the median fraction of padding, or, if
    rows are sorted by length, batches at even distances.
    """

    texts: str

    def drawn_lengths(self, salt: int = 0) -> list[list[int]]:
        """The number of tokens of each row, batch by batch. With a `salt`, the rows are targets."""
        if self.lengths == "full":
            return [[self.seq] * self.batch] * self.batches
        lengths = self.pooled_lengths()
        starts = range(0, len(lengths), self.batch)
        pool = [lengths[start : start + self.batch] for start in starts]
        pool.sort(key=max if self.lengths == "sorted" else share_of_padding)
        chosen = [int((number + 0.5) * POOL / self.batches) for number in range(self.batches)]
        batches = [pool[place] for place in chosen]
        return [self.target_lengths(batch) for batch in batches] if salt else batches

    def pooled_lengths(self) -> list[int]:
        """The lengths of all rows of the pool, shuffled or in ascending order."""
        lengths = lengths_of_texts(self.texts, POOL * self.batch, longest=self.seq)
        if self.lengths == "real":
            random.Random(0).shuffle(lengths)
        return lengths

    def target_lengths(self, sources: list[int]) -> list[int]:
        """A translation is about as long as its source."""
        generator = random.Random(sum(sources))
        drawn = [
            round(length * generator.uniform(MIN_TARGET_SHARE, MAX_TARGET_SHARE))
            for length in sources
        ]
        return [min(max(length, MIN_TARGET_TOKENS), self.seq) for length in drawn]


def share_of_padding(lengths: list[int]) -> float:
    return max(lengths) / sum(lengths)


def lengths_of_texts(texts: str, count: int, longest: int) -> list[int]:
    """Lengths with one of the distributions of `TEXTS`, in ascending order."""
    places = (torch.arange(count) + 0.5) / count
    quantiles = torch.tensor(TEXTS[texts]).quantile(places)
    return quantiles.round().long().clamp(max=longest).tolist()


@dataclass
class Batch:
    """Padded rows of random tokens."""

    input_ids: torch.Tensor  # (B, L)
    attention_mask: torch.Tensor  # (B, L)
    lengths: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def masked_lm_labels(self) -> torch.Tensor:
        drawn = torch.rand(
            self.input_ids.shape, generator=torch.Generator().manual_seed(self.tokens)
        )
        hidden = (drawn < MASKED_SHARE) & self.attention_mask.bool()
        # Every row has at least one label.
        hidden[:, 0] = True
        return self.input_ids.where(hidden, IGNORED)

    def labels(self) -> torch.Tensor:
        """All real tokens, which are used for causal models and for targets."""
        return self.input_ids.where(self.attention_mask.bool(), IGNORED)


def make_batches(work: Workload, salt: int = 0) -> list[Batch]:
    """The batches of a workload. Another `salt` gives other lengths and tokens, which are used for
    targets."""
    generator = torch.Generator().manual_seed(salt)
    return [_make_batch(lengths, work, generator) for lengths in work.drawn_lengths(salt)]


def _make_batch(lengths: list[int], work: Workload, generator: torch.Generator) -> Batch:
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]
    ids = torch.randint(FIRST_ID, work.vocab_size, shape, generator=generator).where(mask, PAD)
    return Batch(ids, mask.long(), lengths)
