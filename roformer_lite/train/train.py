"""From a run to a finished model directory. The training loop is the stock Trainer's."""

import sys
import time
from typing import Any

from datasets import Dataset, DatasetDict, disable_progress_bars
from transformers import Trainer, set_seed

from ..data.splits import load_splits
from ..errors import InputError
from ..evaluate.baselines import Baselines
from ..evaluate.evaluation import encode, evaluate
from ..saved_model import reason
from ..tasks.base import Task
from ..tasks.examples import neutral_example
from ..tasks.registry import TASKS
from .finished_model import create_repository, publish, save_finished_model
from .linear_probe import ends_fitted, read_as_trained
from .models import make_model, pretrained_config
from .results import Evaluation, FinishedTraining
from .run import Run
from .tokenizers import make_tokenizer
from .trainer import fit, make_trainer
from .training_arguments import make_training_arguments
from .training_directory import TrainingDirectory, last_checkpoint


def train(run: Run, of_seeds: Run | None = None) -> FinishedTraining:
    """Read the data, train tokenizer and model, evaluate, save, and print the results.

    A training that was interrupted continues from its last checkpoint when it is begun again with
    the same run.

    Args:
        run: The options, with one seed; see `train_seeds` for several.
        of_seeds: The run of all seeds, where this is one of several.

    Raises:
        InputError: about options and data, before the model is trained; when the disk is full, when
            another process trains into the same directory, and when the training diverges.
    """
    started, options = time.monotonic(), run.with_defaults()
    task, directory = TASKS[run.task](options.data), TrainingDirectory(run)
    args = make_training_arguments(options, task.model.training_classes()[0])
    with directory.opened(args) as cache:
        start = read_as_trained(run, cache / "encoder")
        given = {name: pretrained_config(name) for name in start.model.pretrained}
        if not args.should_save:
            disable_progress_bars()  # every process prepares the data, but only one shows it
        elif run.card.push_to_hub:
            # so that a missing login shows before the data
            create_repository(run.card, args, run.output_dir.name)
        set_seed(args.seed)
        # Seeds are chosen by rows that are held out.
        task.data.learns_from_few = start is not run and not of_seeds and ends_fitted(options, args)
        rows = load_splits(
            task, run.data, cache, of_seeds.training.seeds[0] if of_seeds else args.seed
        )
        if of_seeds and "validation" not in rows:
            raise InputError(
                "--seeds: there are no validation data to choose the best model by; give --validation_file or a "
                "--validation_fraction"
            )
        checkpoint = last_checkpoint(directory.path)
        task.data.inspect(rows)
        task.metrics.check(args, run.training.stock.get("metric_for_best_model"))
        tokenizer = make_tokenizer(start, task, args, rows["train"], (of_seeds or run).checkpoints)
        model = make_model(start, task, args, tokenizer, given)
        encoded = encode(task, rows)
        baselines: Baselines = {}
        if run.training.baselines and args.should_save and len(rows) > 1:
            baselines = task.metrics.baselines(rows, encoded)
            for name, by_split in baselines.items():
                shown = ", ".join(
                    f"{split} {by_split[split][task.metrics.main]:.4f}" for split in by_split
                )
                print(f"Baseline, {task.metrics.main}: {name}: {shown}", file=sys.stderr)
        generation_config = task.model.prepare_generation(model, args)
        trainer = make_trainer(options, task, args, model, rows, encoded, started)
        fit(trainer, task, encoded["train"], checkpoint)
        parts, evaluations = measure(options, task, trainer, rows, encoded)
        model.generation_config = generation_config
        finished = FinishedTraining(
            run=of_seeds or run,
            task=task,
            model=model,
            trainer=trainer,
            rows={split: len(rows[split]) for split in rows if isinstance(rows[split], Dataset)},
            example=_example(task, rows),
            evaluations=evaluations,
            baselines=baselines,
            parts=parts,
            is_one_of_several=of_seeds is not None,
        )
        if args.should_save:
            results = save_finished_model(finished, directory)
            if of_seeds is None:
                publish(results, run, args)
        _leave_process_group(trainer)
        return finished


def measure(
    run: Run, task: Task, trainer: Trainer, rows: DatasetDict, encoded: DatasetDict
) -> tuple[Baselines, list[Evaluation]]:
    """Complete the trained model, and measure it: the metrics of its parts alone, and those of the
    whole.

    Raises:
        InputError: when that fails, whatever the reason; the last checkpoint then has the trained
            weights.
    """
    try:
        parts = task.model.complete(run, trainer, rows, encoded, task.metrics)
        evaluations = []
        for split in [name for name in ("validation", "test") if name in rows]:
            evaluations.append(evaluate(trainer, task, split, rows[split], encoded[split]))
            if split == "validation":
                task.model.learn_validation_rows(trainer, encoded)
        return parts, evaluations
    except InputError:
        raise
    except Exception as error:
        kept = last_checkpoint(run.checkpoints)
        raise InputError(
            f"the model is trained, but cannot be measured: {reason(error)}. Its weights and tokenizer are in {kept}; "
            "the same command, also with another --test_file, measures it again"
        ) from error


def _example(task: Task, rows: DatasetDict) -> dict[str, Any]:
    """A row of the data for the card. A stream alone has none."""
    source = rows.get("validation", rows["train"])
    return source[0] if isinstance(source, Dataset) else neutral_example(task)


def _leave_process_group(trainer: Trainer) -> None:
    """End the process group, and the wrapper of `DistributedDataParallel` before it.

    A wrapper that outlives the group's name is the last to hold the group, and would destroy it
    while holding the interpreter's lock. Destroying waits for gloo's threads, one of which may be
    waiting for that lock.
    """
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()
    trainer.accelerator.end_training()
