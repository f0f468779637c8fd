"""What is done because the data have few rows.

A classifier that starts from a sentence encoder learns the labels from pairs of rows, as SetFit
does (Tunstall et al. 2022, arXiv:2209.11055). It may then be better without further training, so
that no rows need to be held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch import nn
from transformers import Trainer, TrainingArguments, get_linear_schedule_with_warmup

from ..data.splits import MIN_ROWS_TO_SPLIT
from ..options.run import Run
from ..recipes.classify_rows import SINGLE, problem_type_in
from .head import output_layer

# The options that say how a model is fine-tuned. Their defaults depend on the task.
FINE_TUNING_OPTIONS = {
    "num_train_epochs",
    "per_device_train_batch_size",
    "warmup_steps",
    "word_dropout",
    "ema_decay",
}
# With more rows, the training itself teaches the encoder enough.
MAX_CONTRASTIVE_ROWS = 500
# There are enough contrastive steps for the encoder to see each text about `NUM_CONTRASTIVE_EPOCHS`
# times, within these limits.
MIN_CONTRASTIVE_STEPS = 32
MAX_CONTRASTIVE_STEPS = 96
NUM_CONTRASTIVE_EPOCHS = 12
# The size of a contrastive batch is limited both in texts and in tokens.
MIN_CONTRASTIVE_TEXTS = 8
MAX_CONTRASTIVE_TEXTS = 48
MAX_CONTRASTIVE_TOKENS = 4096


@dataclass(frozen=True)
class FewRows:
    """What is done because the data have few rows. It is decided before the data are split.

    Args:
        min_rows_to_split: Data with fewer rows are not split by default.
        learns_from_pairs: Whether an encoder of this package with a new head first learns the
            labels from pairs of rows.
        stops_after_fitting: Whether the head that is fitted then is final, if there are no
            validation data to decide whether further training helps.
    """

    min_rows_to_split: int = MIN_ROWS_TO_SPLIT
    learns_from_pairs: bool = False
    stops_after_fitting: bool = False


def decide(
    run: Run,
    args: TrainingArguments,
    rows: DatasetDict,
    from_sentence_encoder: bool,
) -> FewRows:
    """Decide what is done because the data have few rows. Only classifiers with one label in each
    row learn from pairs, and only in one process.

    Args:
        run: The run with its defaults filled in.
        args: The arguments of the Trainer.
        rows: All rows of the data.
        from_sentence_encoder: Whether the training starts from a converted sentence encoder.
    """
    if run.task != "classify" or problem_type_in(run.data, rows) != SINGLE:
        return FewRows()
    is_small = len(rows["train"]) < MAX_CONTRASTIVE_ROWS
    if not is_small or not run.data.fit_head or args.world_size > 1:
        return FewRows()
    may_stop = may_stop_after_fitting(run, args)
    learns_all = may_stop and from_sentence_encoder
    return FewRows(
        min_rows_to_split=MAX_CONTRASTIVE_ROWS if learns_all else MIN_ROWS_TO_SPLIT,
        learns_from_pairs=True,
        stops_after_fitting=may_stop,
    )


def may_stop_after_fitting(run: Run, args: TrainingArguments) -> bool:
    """Whether a classifier that learns from pairs of few rows may skip fine-tuning once its head is
    fitted.

    It may if no option requests anything that only fine-tuning does.

    Args:
        run: The run with its defaults filled in.
        args: The arguments of the Trainer.
    """
    if args.max_steps > 0:
        return False
    data = run.data
    if data.class_weights or data.min_precision or data.join_baseline:
        return False
    if data.validation_seed is not None:
        # Rows are held out, which a training without fine-tuning does not use.
        return False
    options = run.training
    is_changed = any(
        getattr(options, name) != getattr(type(options), name) for name in ("optim", "weight_decay")
    )
    has_defaults = run.filled >= FINE_TUNING_OPTIONS and not options.max_tokens_per_batch
    return has_defaults and not is_changed


def train_contrastively(trainer: Trainer, train: Dataset) -> None:
    """Teach the encoder the labels before its head is fitted, as SetFit does (Tunstall et al. 2022,
    arXiv:2209.11055).

    The cosine of two texts should be 1 if they have the same label and 0 otherwise. The loss
    includes all pairs of a batch, so a few steps suffice. Heads that read every token are skipped.

    Args:
        trainer: The trainer, before it trains. If there are several processes, each does the same.
        train: The encoded training data: few rows with one label each.
    """
    model: Any = trainer.model
    layer = output_layer(model)
    if layer is None or model.config.classifier_pooling == "late":
        return
    labels = np.array(train["labels"])
    longest = max(map(len, train["input_ids"]))
    num_texts = max(MIN_CONTRASTIVE_TEXTS, MAX_CONTRASTIVE_TOKENS // longest)
    num_texts = min(MAX_CONTRASTIVE_TEXTS, num_texts)
    num_steps = max(MIN_CONTRASTIVE_STEPS, NUM_CONTRASTIVE_EPOCHS * len(train) // num_texts)
    num_steps = min(MAX_CONTRASTIVE_STEPS, num_steps)
    optimizer = torch.optim.AdamW(model.base_model.parameters(), lr=trainer.args.learning_rate)
    scheduler = get_linear_schedule_with_warmup(
        optimizer, num_warmup_steps=num_steps // 10, num_training_steps=num_steps
    )
    generator = np.random.default_rng(trainer.args.seed)
    head_inputs: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: head_inputs.append(inputs[0]))
    was_training = model.training
    model.train()
    for _ in range(num_steps):
        rows = _draw_by_label(labels, num_texts, generator)
        # A loader would draw random numbers of its own, and thus change the dropout.
        batch = trainer.data_collator([train[row] for row in rows])
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        model(**batch)
        loss = _contrastive_loss(head_inputs.pop(), batch["labels"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.base_model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad()
    hook.remove()
    model.train(was_training)


def _draw_by_label(labels: np.ndarray, num_rows: int, generator: np.random.Generator) -> list[int]:
    """Draw about `num_rows` rows: up to `num_rows // 2` labels, each with the same number of
    rows."""
    chosen = generator.permutation(np.unique(labels))[: num_rows // 2]
    rows = []
    for label in chosen:
        rows_of_label = generator.permutation(np.flatnonzero(labels == label))
        rows += rows_of_label[: num_rows // len(chosen)].tolist()
    return rows


def _contrastive_loss(vectors: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
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
