"""Teaches an encoder the labels of few rows before its head is fitted, as SetFit does (Tunstall et
al. 2022, arXiv:2209.11055).

The cosine of two texts should be 1 if they have the same label and 0 otherwise. The loss includes
all pairs of a batch, so a few steps suffice.
"""

import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Sampler
from transformers import TrainerState, TrainingArguments

from ..options.common import TrainingOptions
from .callbacks import seconds_of
from .fit import fit
from .head import output_layer
from .trainer import RoFormerLiteTrainer
from .training_directory import STATE_FILE, last_checkpoint

# The checkpoints of this stage are in this folder of the training directory.
PAIRS_FOLDER = "pairs"
# There are enough steps for the encoder to see each text about `NUM_EPOCHS` times, within these
# limits.
MIN_STEPS = 32
MAX_STEPS = 96
NUM_EPOCHS = 12
# The size of a batch is limited both in texts and in tokens.
MIN_TEXTS = 8
MAX_TEXTS = 48
MAX_TOKENS = 4096
# A line is printed and a checkpoint is saved after each of these parts.
NUM_PARTS = 8


@dataclass(eq=False)
class LabelBatchSampler(Sampler[list[int]]):
    """Draws batches with the same number of texts for each of up to half as many labels.

    Args:
        labels: The label of each text, `(texts,)`.
        num_texts: About this many texts are in a batch, or fewer if there are not as many.
        num_batches: The number of batches in an epoch.
        seed: Determines the batches, together with the epoch.
        epoch: The number of the epoch.
    """

    labels: np.ndarray
    num_texts: int
    num_batches: int
    seed: int
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. The `Trainer` calls this before each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        for _ in range(self.num_batches):
            chosen = random.permutation(np.unique(self.labels))[: self.num_texts // 2]
            batch: list[int] = []
            for label in chosen:
                of_label = random.permutation(np.flatnonzero(self.labels == label))
                batch += of_label[: self.num_texts // len(chosen)].tolist()
            yield batch


def contrastive_loss(vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean squared error of the cosines, averaged over pairs with the same label and pairs with
    different labels separately.

    Args:
        vectors: `(B, hidden)`.
        labels: `(B,)`.
    """
    vectors = nn.functional.normalize(vectors, dim=-1)
    is_same = labels[:, None] == labels
    errors = (vectors @ vectors.T - is_same.float()).square()
    is_itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    is_positive = is_same & ~is_itself
    loss = errors[~is_same].mean()
    if is_positive.any():
        loss = loss + errors[is_positive].mean()
    return loss


class PairTrainer(RoFormerLiteTrainer):
    """Trains the encoder of a classifier on pairs of texts. The last layer of the head, which reads
    the vectors of the texts, keeps its weights.

    Args:
        trainer: The trainer of the classifier. Its training data have one label each. Its arguments
            and options hold here as well, except for those that say how the classifier is
            fine-tuned.
        folder: The folder of the checkpoints.
    """

    def __init__(self, trainer: RoFormerLiteTrainer, folder: Path):
        train: Any = trainer.train_dataset
        longest = max(map(len, train["input_ids"]))
        num_texts = min(MAX_TEXTS, max(MIN_TEXTS, MAX_TOKENS // longest))
        num_steps = min(MAX_STEPS, max(MIN_STEPS, NUM_EPOCHS * len(train) // num_texts))
        self.steps_of_a_part = -(-num_steps // NUM_PARTS)
        self.labels = np.array(train["labels"])
        super().__init__(
            model=trainer.model,
            args=_arguments(trainer.args, num_texts, NUM_PARTS * self.steps_of_a_part, folder),
            data_collator=trainer.data_collator,
            processing_class=trainer.processing_class,
            train_dataset=train,
            options=replace(
                trainer.options,
                max_tokens_per_batch=None,
                optim=TrainingOptions.optim,
                ema_decay=0.0,
                word_dropout=0.0,
            ),
            lengths=(),
        )

    def make_batch_sampler(self) -> LabelBatchSampler:
        return LabelBatchSampler(
            self.labels,
            num_texts=self.args.per_device_train_batch_size,
            num_batches=self.steps_of_a_part,
            seed=self.sampling_seed,
        )

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        vectors: list[torch.Tensor] = []
        layer: Any = output_layer(self.model)
        hook = layer.register_forward_pre_hook(lambda _, read: vectors.append(read[0]))
        try:
            model(**{name: value for name, value in inputs.items() if name != "labels"})
        finally:
            hook.remove()
        return contrastive_loss(vectors[0], inputs["labels"])


def _arguments(
    args: TrainingArguments, num_texts: int, num_steps: int, folder: Path
) -> TrainingArguments:
    """The arguments of this stage. They differ from those of fine-tuning in the batches and in the
    schedule, and there is nothing to evaluate."""
    own = copy(args)
    own.output_dir = str(folder)
    own.per_device_train_batch_size = num_texts
    own.gradient_accumulation_steps = 1
    own.max_steps = num_steps
    own.warmup_steps = 0.1  # A fraction of all steps.
    own.lr_scheduler_type = "linear"
    own.lr_scheduler_kwargs = {}
    own.eval_strategy = "no"
    own.load_best_model_at_end = False
    own.logging_strategy = "epoch"
    own.save_strategy = "epoch"
    own.save_total_limit = 1
    own.report_to = []
    return own


def can_learn_from_pairs(trainer: RoFormerLiteTrainer) -> bool:
    """Whether the head of the model reads one vector of each text."""
    model = trainer.model
    return output_layer(model) is not None and model.config.classifier_pooling != "late"


@dataclass(frozen=True)
class PairTraining:
    """What was done in a training on pairs.

    Args:
        steps: The number of steps.
        texts_per_batch: A batch has up to this many texts.
        seconds: The time of the training.
    """

    steps: int
    texts_per_batch: int
    seconds: float


def learn_from_pairs(trainer: RoFormerLiteTrainer, is_done: bool) -> PairTraining:
    """Train the encoder of a classifier on pairs, from the beginning or from a checkpoint.

    Args:
        trainer: The trainer of the classifier, before it trains. Its training data are few rows
            with one label each.
        is_done: Whether the classifier is being fine-tuned already, so that there is nothing left
            to do here.
    """
    folder = Path(trainer.args.output_dir) / PAIRS_FOLDER
    stage = PairTrainer(trainer, folder)
    if not is_done:
        print(
            f"There are few rows, so the encoder first learns the labels from pairs of them, in "
            f"{stage.args.max_steps} steps",
            file=sys.stderr,
        )
        fit(stage, last_checkpoint(folder))
    state = TrainerState.load_from_json(f"{last_checkpoint(folder)}/{STATE_FILE}")
    return PairTraining(
        steps=state.global_step,
        texts_per_batch=min(stage.args.per_device_train_batch_size, len(stage.labels)),
        seconds=seconds_of(state),
    )
