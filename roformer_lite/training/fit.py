"""Makes the trainer of a task, and runs its training loop from the beginning or from a
checkpoint."""

import sys
import traceback
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import torch
from transformers import TrainerState

from hf_roformer_lite.conversion.checkpoint_files import reason

from ..errors import InputError
from ..output import is_disk_full
from ..recipes.base import Start
from .trainer import RoFormerLiteSeq2SeqTrainer, RoFormerLiteTrainer
from .training_arguments import epochs_for, is_greater_better
from .training_directory import STATE_FILE, step_of

# The average length of rows is estimated from this many.
NUM_SAMPLED_ROWS = 1000
# A batch of rows with labels has at most this many tokens on average, so that 8 million tokens are
# at least 1,000 steps.
MAX_TOKENS_PER_BATCH = 8192


def trainer_class(task: str) -> type[RoFormerLiteTrainer]:
    """The trainer class of a task. Its `args_class` is the class of its training arguments."""
    if task in ("embed", "rerank"):
        # This module needs an optional package.
        from .sentence_trainers import EmbeddingTrainer, RerankingTrainer

        return EmbeddingTrainer if task == "embed" else RerankingTrainer
    if task == "seq2seq":
        return RoFormerLiteSeq2SeqTrainer
    return RoFormerLiteTrainer


def make_trainer(start: Start) -> RoFormerLiteTrainer:
    """Make the trainer of the task.

    Args:
        start: The start of the training, which `completed` has returned.

    Raises:
        InputError: for training arguments that the Trainer does not accept.
    """
    lengths: Sequence[int] = ()
    options = start.run.training
    max_tokens = options.max_tokens_per_batch
    if max_tokens:
        lengths = start.recipe.lengths(start.encoded["train"])
        if max(lengths) > max_tokens:
            raise InputError(
                f"--max_tokens_per_batch {max_tokens} is below the longest row, which has "
                f"{max(lengths)} tokens; raise it, or truncate the rows to fewer tokens"
            )
    parts = start.recipe.trainer_parts(start)
    try:
        return trainer_class(start.recipe.name)(
            model=start.trained,
            args=start.args,
            processing_class=start.tokenizer,
            **parts,
            options=options,
            lengths=lengths,
        )
    except InputError:
        raise
    # The Trainer checks its arguments here, for example whether a package or a metric exists.
    except (ImportError, ValueError) as error:
        raise InputError(
            f"--training_arguments: the Trainer does not accept them: {reason(error)}"
        ) from error


def completed(start: Start) -> Start:
    """The same start with the arguments filled in that depend on the data: the number of epochs,
    the batch size, and the metric that chooses a checkpoint."""
    args = copy(start.args)
    recipe = start.recipe
    options = start.run.training
    train = start.encoded["train"]
    if "validation" not in start.rows:
        args.eval_strategy = "no"
        args.load_best_model_at_end = False
    # The mean length of a row.
    tokens = 0.0
    if recipe.has_labels:
        sample = train.shuffle(seed=0).select(range(min(len(train), NUM_SAMPLED_ROWS)))
        tokens = sum(recipe.lengths(sample)) / len(sample)
    if options.num_train_epochs is None:
        args.num_train_epochs = epochs_for(len(train), tokens * len(train))
    if "per_device_train_batch_size" in start.run.filled and tokens:
        max_rows = max(1, round(MAX_TOKENS_PER_BATCH / tokens))
        args.per_device_train_batch_size = min(args.per_device_train_batch_size, max_rows)
    if options.training_arguments.get("metric_for_best_model") is None:
        args.metric_for_best_model = recipe.metric_for_best_model
        args.greater_is_better = is_greater_better(args.metric_for_best_model)
    return replace(start, args=args)


def fit(trainer: RoFormerLiteTrainer, checkpoint: str | None, has_steps: bool = True) -> None:
    """Train from the beginning or from a checkpoint. Afterwards, the model has the weights to save.

    Args:
        trainer: The trainer.
        checkpoint: The checkpoint from which the training continues, if there is one.
        has_steps: Whether the training makes any steps. If not, it only begins and ends.

    Raises:
        InputError: if the training cannot begin or continue, and if it diverges.
    """
    first_step = 0 if checkpoint is None else step_of(checkpoint)
    try:
        if checkpoint is not None:
            _resume(trainer, checkpoint)
        elif has_steps:
            trainer.train()
        else:
            _train_without_steps(trainer)
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # After a step, nothing hides the traceback.
        if trainer.state.global_step > first_step or is_disk_full(error):
            raise
        # A damaged checkpoint may raise any error. Libraries raise the errors below for a new
        # training that they do not support, for example if an option needs another package, before
        # the Trainer has a schedule of the learning rate. Other errors are bugs.
        if checkpoint is not None:
            traceback.print_exc()
            remedy = f"remove {checkpoint} to continue from the previous checkpoint"
        elif trainer.lr_scheduler is None and isinstance(error, (ImportError, OSError, ValueError)):
            remedy = "see --optim, --training_arguments and --config"
        else:
            raise
        raise InputError(f"the training cannot begin: {reason(error)}; {remedy}") from error
    # Without accelerate's autocast wrapper, the model is evaluated exactly as it is saved.
    vars(trainer.model).pop("forward", None)
    state = trainer.state
    if state.global_step < state.max_steps and state.is_world_process_zero:
        print(
            "The training stops early, because the last evaluations brought no improvement "
            "(--early_stopping_patience)",
            file=sys.stderr,
        )


def _resume(trainer: RoFormerLiteTrainer, checkpoint: str) -> None:
    saved = TrainerState.load_from_json(str(Path(checkpoint) / STATE_FILE))
    if trainer.args.should_save:
        print(f"Resuming from step {saved.global_step}: {checkpoint}", file=sys.stderr)
    if not saved.stateful_callbacks["TrainerControl"]["args"]["should_training_stop"]:
        trainer.train(resume_from_checkpoint=checkpoint)
        return
    # The training has ended, and only the final evaluation is missing.
    _train_without_steps(trainer, checkpoint)
    trainer.state.max_steps = saved.max_steps


def _train_without_steps(trainer: RoFormerLiteTrainer, checkpoint: str | None = None) -> None:
    """Let the Trainer begin and end a training without a step in between.

    Args:
        checkpoint: The checkpoint whose weights and state are loaded, if any.
    """
    args = trainer.args
    planned_steps = args.max_steps
    planned_epochs = args.num_train_epochs
    args.max_steps = -1
    args.num_train_epochs = 0
    trainer.train(resume_from_checkpoint=checkpoint)
    args.max_steps = planned_steps
    args.num_train_epochs = planned_epochs
