"""Runs the stages of a training: with few rows the encoder learns from pairs of them, a new head is
fitted, and the model is trained or fine-tuned."""

from copy import deepcopy
from dataclasses import replace

from transformers import set_seed

from ..recipes.base import Start
from .cross_validation import CrossValidation, cross_validate, saved_cross_validation
from .few_rows import FewRows
from .fit import fit
from .head import fit_head
from .pairs import PairTraining, can_learn_from_pairs, learn_from_pairs
from .trainer import RoFormerLiteTrainer


def train_in_stages(
    start: Start,
    trainer: RoFormerLiteTrainer,
    few_rows: FewRows,
    checkpoint: str | None,
) -> tuple[PairTraining | None, CrossValidation | None]:
    """Train from the beginning or from a checkpoint. Afterwards, the model has the weights to save.

    Args:
        start: The start of the training.
        trainer: The trainer.
        few_rows: What is done because the data have few rows.
        checkpoint: The checkpoint of the trainer from which the training continues, if there is
            one.

    Returns:
        What the encoder has learned from pairs, if it has, and what is known from cross-validation,
        if rows were too few to hold some out.
    """
    pairs: PairTraining | None = None
    validated: CrossValidation | None = None
    if start.has_new_head and getattr(start.run.data, "fit_head", False):
        untrained = start
        learns = few_rows.learns_from_pairs and start.has_own_class
        if learns and can_learn_from_pairs(trainer):
            untrained = replace(start, model=deepcopy(start.model))
            pairs = learn_from_pairs(trainer, is_done=checkpoint is not None)
            # A stage that was done by an earlier command has drawn no random numbers.
            set_seed(trainer.args.seed)
        is_final = few_rows.stops_after_fitting and trainer.eval_dataset is None
        if checkpoint is not None:
            validated = saved_cross_validation(trainer.args)
        else:
            fit_head(trainer)
            if pairs is not None and is_final:
                validated = cross_validate(untrained, pairs)
                set_seed(trainer.args.seed)
    has_steps = validated is None or validated.prefers_fine_tuning
    fit(trainer, checkpoint, has_steps=has_steps)
    return pairs, validated
