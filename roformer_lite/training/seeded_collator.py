"""What is drawn while a batch is made, from a seed of the batch's own."""

import copy
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class SeededCollator(TrainerCallback):
    """Makes batches by a collator that has a generator, such as that of masked language models.

    The generator is seeded for each batch by the training's seed, the epoch and the examples of the batch. What is
    drawn is therefore the same when a training continues in the middle of an epoch. The Trainer makes the first
    batches of a continued training before it restores the random state, and others were made ahead of the checkpoint.

    Args:
        collator: Of transformers; a copy of it draws, since evaluation has the same one.
        seed: Of the training.
    """

    def __init__(self, collator: Any, seed: int):
        self.collator, self.seed = copy.copy(collator), seed
        self.epoch = torch.zeros((), dtype=torch.long).share_memory_()  # workers that persist must see it change

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.epoch.fill_(int(state.epoch or 0))

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [zlib.crc32(np.asarray(example["input_ids"], dtype=np.int64).tobytes()) for example in examples]
        state = np.random.SeedSequence([self.seed, int(self.epoch), *ids]).generate_state(1, np.uint64)
        self.collator.generator = torch.Generator().manual_seed(int(state[0]) >> 1)
        return self.collator(examples)
