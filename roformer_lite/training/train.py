"""Trains a run into a finished model directory, with the training loop of the stock Trainer."""

import copy
from pathlib import Path
from typing import Any

from datasets import DatasetDict, disable_progress_bars
from transformers import TrainingArguments, set_seed

from ..data.splits import hold_out, load_splits, mark_seen
from ..errors import InputError
from ..measuring.significance import Baselines, Measured
from ..options.run import Run
from ..recipes import RECIPES
from ..recipes.base import FittedBaseline, Start
from ..recipes.loaded_model import LoadedModel
from ..saved.saved_model import load_config
from .defaults import with_defaults
from .few_rows import FewRows, decide
from .finished_model import save_finished_model
from .fit import completed, make_trainer, trainer_class
from .head import convert_sentence_encoder, start_at_mean_labels
from .models import make_start
from .results import FinishedTraining
from .stages import train_in_stages
from .tokenizers import make_tokenizer
from .training_arguments import make_training_arguments
from .training_directory import TrainingDirectory, last_checkpoint


def train(run: Run, seeds: Run | None = None) -> dict[str, Any] | None:
    """Read the data, train and save tokenizer and model, and evaluate the saved model.

    An interrupted training continues from its last checkpoint when the same run is started again.

    Args:
        run: The options, with one seed; see `train_seeds` for several.
        seeds: The run of several seeds to which `run` belongs, if there is one. The card and
            `run.yaml` describe it.

    Returns:
        The contents of `results.json`; None in a process that does not save the model.

    Raises:
        InputError: for wrong options and data, before the model is trained; if the disk is full, if
            another process trains into the same directory, and if the training diverges.
    """
    # Bars for reading and encoding the data would stand between the lines of progress.
    disable_progress_bars()
    options = with_defaults(run)
    directory = TrainingDirectory(run)
    args = make_training_arguments(options, trainer_class(run.task).args_class)
    with directory.opened(args) as cache:
        options = convert_sentence_encoder(options, args, cache / "encoder")
        name = options.model.model_name_or_path
        given = None if name is None else load_config(name)
        set_seed(args.seed)
        rows, few_rows = read_rows(options, args, cache, options.model != run.model)
        if seeds is not None and "validation" not in rows:
            raise InputError(
                "there are no validation data, which --seeds needs; pass --validation_file or a "
                "--validation_fraction"
            )
        recipe = RECIPES[run.task].inspect(options.data, rows)
        recipe.check_arguments(args, run.training.training_arguments.get("metric_for_best_model"))
        tokenizer, recipe = make_tokenizer(options, recipe, args, rows["train"])
        start = completed(make_start(options, recipe, args, tokenizer, given, rows))
        if start.has_new_head or name is None:
            start_at_mean_labels(start.model, start.encoded["train"])
        fitted, baselines = fit_baselines(start) if args.should_save else (None, {})
        # The Trainer adds further values.
        generation_config: Any = copy.deepcopy(getattr(start.model, "generation_config", None))
        trainer = make_trainer(start)
        checkpoint = last_checkpoint(directory.path)
        pairs, validated = train_in_stages(start, trainer, few_rows, checkpoint)
        # The wrapper of `DistributedDataParallel` is released before the process group ends. If it
        # held the last reference to the group, the group would be destroyed with it, while the
        # interpreter's lock is held, and gloo's threads may wait for that lock.
        trained: Any = trainer.model
        trainer.model_wrapped = trained
        trainer.accelerator.free_memory()
        trainer.accelerator.end_training()
        if validated is not None and validated.folds and run.training.baselines:
            in_folds = validated.baselines(start)
            baselines = {name: in_folds[name] | baselines.get(name, {}) for name in in_folds}
        start.model.generation_config = generation_config
        finished = FinishedTraining(
            run=seeds or run,
            start=start,
            trainer=trainer,
            baselines=baselines,
            joined=fitted if run.joins_baseline else None,
            pairs=pairs,
            validated=validated,
        )
        if not args.should_save:
            return None
        return save_finished_model(finished, directory)


def read_rows(
    run: Run, args: TrainingArguments, cache: Path, from_sentence_encoder: bool
) -> tuple[DatasetDict, FewRows]:
    """Read the data, and hold out validation data.

    Args:
        run: The run with its defaults filled in.
        args: The arguments of the training.
        cache: Where the rows are stored.
        from_sentence_encoder: Whether the training starts from a converted sentence encoder.

    Returns:
        The splits, and what is done because they have few rows.
    """
    reader = RECIPES[run.task].reader_class(run.data)
    rows = load_splits(reader, run.data, cache)
    few_rows = decide(run, args, rows, from_sentence_encoder)
    chosen_by = run.data.validation_seed
    seed = args.seed if chosen_by is None else chosen_by
    rows = hold_out(reader, run.data, rows, seed, few_rows.min_rows_to_split)
    return mark_seen(reader, rows), few_rows


def fit_baselines(start: Start) -> tuple[FittedBaseline | None, Baselines]:
    """Fit the baseline that may join the answer, and measure all baselines if there are validation
    or test data and the user wants it. The checkpoint before training is one of them if it already
    does the task.

    Args:
        start: The start of the training, whose model is not trained yet.

    Returns:
        The fitted baseline, if it is needed, and the metrics of all baselines.
    """
    run = start.run
    rows = start.rows
    recipe = start.recipe
    is_measured = run.training.baselines and len(rows) > 1
    fitted = recipe.fit_baseline(rows) if run.joins_baseline or is_measured else None
    if not is_measured:
        return fitted, {}
    baselines = {
        name: {split: recipe.measured(found, rows[split]) for split, found in by_split.items()}
        for name, by_split in recipe.baselines(rows, fitted).items()
    }
    does_the_task = run.model.model_name_or_path is not None and not start.has_new_head
    if recipe.compares_checkpoint and does_the_task:
        baselines["the checkpoint before training"] = measure_checkpoint(start)
    return fitted, baselines


def measure_checkpoint(start: Start) -> dict[str, Measured]:
    """The metrics of the model before its training, as `evaluate` measures them."""
    args = start.args
    trained = start.trained.to(args.device).eval()
    model = LoadedModel(trained, start.tokenizer)
    batch_size = args.per_device_eval_batch_size
    return {
        split: start.recipe.evaluate(model, rows, batch_size, args.seed)
        for split, rows in start.rows.items()
        if split != "train"
    }
