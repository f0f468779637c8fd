"""From a run to a finished model directory. The training loop is the stock Trainer's."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, disable_progress_bars
from transformers import Trainer, TrainerState, set_seed

from ..data.splits import load_splits
from ..errors import InputError
from ..evaluate.baselines import Baselines
from ..evaluate.evaluation import encode, evaluate
from ..output import is_disk_full
from ..tasks.base import Task
from ..tasks.examples import neutral_example
from ..tasks.registry import TASKS
from .bfloat16 import is_faster_in_bfloat16
from .finished_model import create_repository, publish, save_finished_model
from .model_and_tokenizer import make_model, make_tokenizer
from .results import FinishedTraining
from .run import Run
from .seeds import Siblings, train_seeds
from .shards import in_shards
from .training_arguments import epochs_for, is_greater_better, make_training_arguments
from .training_directory import TrainingDirectory, rows_hash

_SAMPLE = 5_000  # blocks of a stream or of prepared data from which baselines learn


def train(run: Run, siblings: Siblings | None = None) -> FinishedTraining | None:
    """Read the data, train tokenizer and model, evaluate, save, and print the results.

    A training that was interrupted continues from its last checkpoint when it is begun again with the same run.

    Args:
        run: The options.
        siblings: Of a training that is one of several seeds.

    Returns:
        What is known about it; None of several seeds.

    Raises:
        InputError: about options and data, before the model is trained; when the disk is full, when another process
            trains into the same directory, and when the training diverges.
    """
    if run.training.seeds:
        return train_seeds(run, train)
    started, given, run = time.monotonic(), run, run.with_defaults()
    task, directory = TASKS[run.task](run.data), TrainingDirectory(run.output_dir)
    args = make_training_arguments(run, task.model.training_classes()[0], str(directory.path))
    with ExitStack() as held:
        held.enter_context(_full_disk_explained(directory.path))
        with args.main_process_first(local=False, desc="preparing the output directory"):
            if args.should_save:
                held.enter_context(open_directory(directory, given, args))
            elif not directory.path.exists():
                raise InputError(f"--output_dir: {directory.path} must be on a disk that all machines share")
        if not args.should_save:
            disable_progress_bars()  # every process prepares the data, but only one shows it
        set_seed(args.seed)
        cache = held.enter_context(_cache_directory(directory.path / f"data-{args.process_index}"))
        rows = load_splits(task, run.data, cache, siblings.seeds[0] if siblings else args.seed)
        with args.main_process_first(local=False, desc="comparing with the interrupted training"):
            if args.should_save:
                check_data(rows, run, directory, siblings)
        task.data.inspect(rows)
        task.metrics.check(args, run.training.stock.get("metric_for_best_model"))
        tokenizer = make_tokenizer(
            run, task, args, rows["train"], (siblings.directory if siblings else directory).path
        )
        model = make_model(run, task, args, tokenizer)
        checkpoint = directory.last_checkpoint(averaged=bool(run.training.ema_decay))
        if run.training.shard_weights:
            model = in_shards(model, args.world_size)
        encoded = encode(task, rows)
        baselines = siblings.baselines() if siblings else None
        if baselines is None:
            baselines = measure_baselines(run, task, args, rows, encoded)
        generation_config = task.model.prepare_generation(model, args)
        choose_epochs_and_metric(run, task, args, encoded)
        trainer = make_trainer(run, task, args, model, rows, encoded, checkpoint, started)
        choose_bfloat16(run, task, trainer, directory)
        if checkpoint is None:
            task.model.prepare_head(trainer, encoded["train"])
        elif args.should_save:
            step = TrainerState.load_from_json(f"{checkpoint}/trainer_state.json").global_step
            print(f"Resuming from step {step}: {checkpoint}", file=sys.stderr)
        trainer.train(resume_from_checkpoint=checkpoint)
        if run.training.shard_weights:
            model = trainer.gather_weights()
        trainer.compute_metrics = None
        vars(trainer.model).pop("forward", None)  # accelerate's autocast: the model is measured as it is saved
        parts = task.model.complete(run, trainer, encoded, task.metrics)
        evaluations = [
            evaluate(trainer, task, split, rows[split], encoded[split])
            for split in ("validation", "test")
            if split in rows
        ]
        model.generation_config = generation_config
        finished = FinishedTraining(
            run=siblings.run if siblings else given,
            task=task,
            args=args,
            options=run.training,
            model=model,
            tokenizer=tokenizer,
            history=trainer.state.log_history,
            steps=trainer.state.global_step,
            epochs=trainer.state.epoch or 0.0,
            train_seconds=trainer.clock.elapsed,
            earlier_seconds=trainer.clock.earlier_commands,
            rows={split: len(rows[split]) for split in rows if isinstance(rows[split], Dataset)},
            example=_example(task, rows),
            evaluations=evaluations,
            baselines=baselines,
            parts=parts,
            chosen_step=trainer.state.best_global_step if args.load_best_model_at_end else None,
            is_one_of_several=siblings is not None,
        )
        if args.should_save:
            results = save_finished_model(finished, directory, started)
            if siblings is None:
                publish(results, run, args)
        _leave_process_group(trainer)
        return finished


@contextmanager
def open_directory(directory: TrainingDirectory, run: Run, args: Any) -> Iterator[None]:
    """Check where the model will be saved, open the directory of the checkpoints, and create the Hub repository, so
    that a mistake shows before the data are read. Inside the `with`, other processes are kept out."""
    with directory.held():
        directory.open(run, devices=args.world_size * max(1, args.n_gpu))
        directory.note(is_kept=run.training.keep_checkpoints)
        if run.card.push_to_hub:
            create_repository(run.card, args, run.output_dir.name)
        yield


def check_data(rows: DatasetDict, run: Run, directory: TrainingDirectory, siblings: Siblings | None) -> None:
    """Compare the data with those of the training that is continued, and with those of other seeds. The test data only
    measure; but those of several seeds are compared."""
    if siblings and "validation" not in rows:
        raise InputError(
            "--seeds: there are no validation data to choose the best model by; give --validation_file or a "
            "--validation_fraction"
        )
    hashes = {split: rows_hash(rows[split]) for split in rows if split != "train" and (split != "test" or siblings)}
    is_large = getattr(run.data, "prepared", None) or isinstance(rows["train"], IterableDataset)
    hashes["train"] = _state_of_files(run) if is_large else rows_hash(rows["train"])
    directory.check_data(hashes, run.training.overwrite_output_dir)
    if siblings:
        siblings.directory.check_data(hashes, siblings.may_start_again)


def _state_of_files(run: Run) -> str:
    """Names, sizes and dates of the files of a stream or of prepared data, which are not read as a whole."""
    prepared = [
        path for folder in getattr(run.data, "prepared", None) or () for path in Path(folder, "train").iterdir()
    ]
    files = sorted([*map(Path, run.data.train_file or ()), *prepared])
    return str([(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files])


def measure_baselines(run: Run, task: Task, args: Any, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
    """Metrics of baselines in the main process, printed before the training begins. Of a stream and of prepared data
    they learn a sample."""
    if not (run.training.baselines and args.should_save) or len(rows) < 2:
        return {}
    if "text" not in (rows["train"].column_names or ()) and task.name in ("mlm", "causal"):
        blocks = [row["input_ids"] for row in encoded["train"].take(_SAMPLE)]
        texts = task.data.tokenizer.batch_decode(blocks, skip_special_tokens=True)
        sample = Dataset.from_dict({"input_ids": blocks, "text": texts})
        rows, encoded = DatasetDict({**rows, "train": sample}), DatasetDict({**encoded, "train": sample})
    metrics = task.metrics.baselines(rows, encoded)
    for name, by_split in metrics.items():
        shown = ", ".join(f"{split} {by_split[split][task.metrics.main]:.4f}" for split in by_split)
        print(f"Baseline, {task.metrics.main}: {name}: {shown}", file=sys.stderr)
    return metrics


def choose_epochs_and_metric(run: Run, task: Task, args: Any, encoded: DatasetDict) -> None:
    """Complete the arguments by what depends on the data."""
    if "validation" not in encoded:
        args.eval_strategy, args.load_best_model_at_end = "no", False
    if run.training.num_train_epochs is None and isinstance(encoded["train"], Dataset):
        args.num_train_epochs = epochs_for(len(encoded["train"]))
    if "metric_for_best_model" not in run.training.stock:
        args.metric_for_best_model = task.metrics.for_best_model
        args.greater_is_better = is_greater_better(task.metrics.for_best_model)


def make_trainer(
    run: Run,
    task: Task,
    args: Any,
    model: Any,
    rows: DatasetDict,
    encoded: DatasetDict,
    checkpoint: str | None,
    started: float,
) -> Trainer:
    """The task's trainer, which measures on the validation data."""
    has_lengths = run.training.max_tokens_per_batch and isinstance(encoded["train"], Dataset)
    return task.model.training_classes()[1](
        args=args,
        processing_class=task.data.tokenizer,
        **task.trainer_parts(run, args, model, rows, encoded),
        options=run.training,
        lengths=task.data.lengths(encoded["train"]) if has_lengths else (),
        resume_from=checkpoint,
        command_started=started,
    )


def choose_bfloat16(run: Run, task: Task, trainer: Trainer, directory: TrainingDirectory) -> None:
    """Train in bfloat16 if that is open and a trial shows that it is faster; a continued training keeps its type."""
    args = trainer.args
    if (
        run.training.bf16 is not None
        or run.training.shard_weights
        or args.mixed_precision != "no"
        or not task.model.tries_bfloat16
    ):
        return
    noted = directory.state().get("bf16")
    args.bf16 = is_faster_in_bfloat16(trainer) if noted is None else noted
    if args.bf16:
        args.mixed_precision = "bf16"
        trainer.accelerator.native_amp = True  # autocast on a CPU is of bfloat16
    if args.should_save:
        directory.note(bf16=args.bf16)


def _example(task: Task, rows: DatasetDict) -> dict[str, Any]:
    """A row of the data for the card; prepared data and a stream have none as it was."""
    source = rows.get("validation", rows["train"])
    return (
        source[0] if isinstance(source, Dataset) and "input_ids" not in source.column_names else neutral_example(task)
    )


@contextmanager
def _full_disk_explained(state_dir: Path) -> Iterator[None]:
    """Inside the `with`, a full disk is reported in a sentence, an `InputError`."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, InputError) and is_disk_full(error, state_dir):
            raise InputError(
                f"{state_dir}: no space left on the disk for data and checkpoints; free some space and give the same "
                "command again, training then continues from the last complete checkpoint"
            ) from error
        raise


@contextmanager
def _cache_directory(directory: Path) -> Iterator[Path]:
    """An empty directory for the prepared data of one process, removed at the end."""
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _leave_process_group(trainer: Trainer) -> None:
    """End the process group, and the wrapper of `DistributedDataParallel` before it.

    A wrapper that outlives the group's name is the last to hold the group, and would destroy it while holding the
    interpreter's lock. Destroying waits for gloo's threads, one of which may be waiting for that lock.
    """
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()
    trainer.accelerator.end_training()
