"""The inputs of a benchmark: sizes of models, lengths of rows, and batches of random tokens."""

import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

# RoFormerLiteTokenizer has these ids, with its special tokens before FIRST_ID.
PAD = 0
START = 2
FIRST_ID = 5
IGNORED = -100
# This share of the tokens is predicted in masked language modelling (Devlin et al. 2018, section
# 3.1).
MASKED_SHARE = 0.15
MIN_ROW_TOKENS = 4
Device = Literal["cpu", "cuda"]


def check_known(option: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse unknown values of an option."""
    for name in given:
        if name not in known:
            raise SystemExit(f"{option}={name!r} is not known; choose from {', '.join(known)}.")


@dataclass
class Workload:
    """The options of every task."""

    size: Literal["tiny", "mini", "small", "base"] = field(
        default="mini",
        metadata={"help": "width and depth of all models, as RoFormerLiteConfig.from_preset"},
    )
    batch: int = field(default=16, metadata={"help": "rows of a batch"})
    seq: int = field(default=128, metadata={"help": "longest row, in tokens"})
    lengths: Literal["full", "real", "sorted"] = field(
        default="real",
        metadata={"help": "all rows full; log-normal lengths; or the latter, batched by length"},
    )
    batches: int = field(
        default=0, metadata={"help": "batches of one measurement (0: 1 if full, else 4)"}
    )
    vocab_size: int = 8192
    dtype: Literal["float32", "bfloat16"] = field(
        default="float32", metadata={"help": "bfloat16 is autocast"}
    )
    device: Device = "cpu"
    compile: bool = field(default=False, metadata={"help": "torch.compile all models"})
    checkpointing: bool = field(
        default=False, metadata={"help": "keep only what goes into a layer in training"}
    )
    rounds: int = field(
        default=7, metadata={"help": "measurements of each contender, all of them alternating"}
    )
    seed: int = 0
    only: list[str] = field(
        default_factory=list, metadata={"help": "names of the contenders to measure; default: all"}
    )

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "vocab_size", "rounds"):
            if getattr(self, name) < 1:
                raise SystemExit(
                    f"{name}={getattr(self, name)} is not possible: it must be at least 1."
                )
        if self.seq < MIN_ROW_TOKENS:
            raise SystemExit(
                f"seq={self.seq} is not possible: it must be at least {MIN_ROW_TOKENS}."
            )
        if not self.batches:
            self.batches = 1 if self.lengths == "full" else 4

    def drawn_lengths(self, salt: int = 0) -> list[list[int]]:
        """The number of tokens of each row, batch by batch.

        `real` lengths are log-normal with the median seq / 4 and a deviation of 0.6 of the
        logarithm, clipped to [4, seq]; one row of each batch is full. `sorted` are the same rows,
        batched by length.
        """
        generator = random.Random(self.seed + salt)
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

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, torch.bfloat16, enabled=self.dtype == "bfloat16")


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
        hidden = (drawn.to(self.input_ids.device) < MASKED_SHARE) & self.attention_mask.bool()
        # Every row has at least one label.
        hidden[:, 0] = True
        return self.input_ids.where(hidden, IGNORED)

    def labels(self) -> torch.Tensor:
        """All real tokens, which are used for causal models and for targets."""
        return self.input_ids.where(self.attention_mask.bool(), IGNORED)


def make_batches(work: Workload, salt: int = 0) -> list[Batch]:
    """The batches of a workload. Another `salt` gives other lengths and tokens, which are used for
    targets."""
    generator = torch.Generator().manual_seed(work.seed + salt)
    return [_make_batch(lengths, work, generator) for lengths in work.drawn_lengths(salt)]


def _make_batch(lengths: list[int], work: Workload, generator: torch.Generator) -> Batch:
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]
    ids = torch.randint(FIRST_ID, work.vocab_size, shape, generator=generator).where(mask, PAD)
    return Batch(ids.to(work.device), mask.long().to(work.device), lengths)


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """The decoder inputs for `labels` `(B, L)`: a start token, and then all labels except the
    last."""
    start = labels.new_full((labels.shape[0], 1), START)
    moved = torch.cat((start, labels[:, :-1]), 1)
    return moved.masked_fill(moved == IGNORED, PAD)


def inner_width_of_gated(intermediate_size: int) -> int:
    """The inner width with which a gated feed-forward (three matrices) has as many weights as a
    plain one (two)."""
    return round(intermediate_size * 2 / 3 / 8) * 8


def with_inputs(batches: list[Batch]) -> Iterator[tuple[Batch, dict[str, torch.Tensor | None]]]:
    """The inputs of an encoder for each batch. A batch of full rows has no mask, because it does
    not need one."""
    for batch in batches:
        is_padded = len(set(batch.lengths)) > 1
        mask = batch.attention_mask if is_padded else None
        yield batch, {"input_ids": batch.input_ids, "attention_mask": mask}
