"""From a run to a finished model directory. The training loop is the stock Trainer's."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, disable_progress_bars
from transformers import PreTrainedModel, Trainer, set_seed

from ..data.splits import load_splits
from ..errors import InputError
from ..evaluate.baselines import Baselines
from ..evaluate.evaluation import encode, evaluate
from ..output import is_disk_full
from ..saved_model import reason
from ..tasks.base import Task
from ..tasks.examples import neutral_example
from ..tasks.registry import TASKS
from .bfloat16 import choose_bfloat16, use_bfloat16
from .checkpoint import check_checkpoint
from .finished_model import create_repository, publish, save_finished_model
from .models import make_model
from .results import Evaluation, FinishedTraining
from .run import Run
from .tokenizers import make_tokenizer
from .training_arguments import epochs_for, is_greater_better, make_training_arguments
from .training_directory import TrainingDirectory, rows_hash

_SAMPLE = 5_000  # blocks of a stream or of prepared data from which baselines learn


@dataclass
class Shared:
    """What the trainings of several seeds have in common.

    Args:
        run: With all seeds.
        directory: Of all of them; the one tokenizer is there.
        baselines: Measured by the first training; None before that.
        may_start_again: Whether trainings on other data are discarded. That is for the first seed of a command.
    """

    run: Run
    directory: TrainingDirectory
    baselines: Baselines | None
    may_start_again: bool


def train(run: Run, shared: Shared | None = None) -> FinishedTraining:
    """Read the data, train tokenizer and model, evaluate, save, and print the results.

    A training that was interrupted continues from its last checkpoint when it is begun again with the same run.

    Args:
        run: The options, with one seed; see `train_seeds` for several.
        shared: Of a training that is one of several seeds.

    Raises:
        InputError: about options and data, before the model is trained; when the disk is full, when another process
            trains into the same directory, and when the training diverges.
    """
    started, given, run = time.monotonic(), run, run.with_defaults()
    task, directory = TASKS[run.task](run.data), TrainingDirectory(run.output_dir)
    args = make_training_arguments(run, task.model.training_classes()[0], str(directory.path))
    with prepared_directory(directory, given, args) as cache:
        rows = load_splits(task, run.data, cache, shared.run.training.seeds[0] if shared else args.seed)
        with args.main_process_first(local=False, desc="comparing with the interrupted training"):
            if args.should_save:
                check_data(rows, run, directory, shared)
        task.data.inspect(rows)
        task.metrics.check(args, run.training.stock.get("metric_for_best_model"))
        tokenizer = make_tokenizer(run, task, args, rows["train"], (shared.directory if shared else directory).path)
        model = make_model(run, task, args, tokenizer)
        encoded = encode(task, rows)
        baselines = shared.baselines if shared else None
        if baselines is None:
            baselines = measure_baselines(run, task, args, rows, encoded)
        generation_config = task.model.prepare_generation(model, args)
        choose_epochs_and_metric(run, task, args, encoded)
        checkpoint = directory.last_checkpoint(averaged=bool(run.training.ema_decay))
        trainer = make_trainer(run, task, args, model, rows, encoded, checkpoint, started)
        fit(run, task, trainer, encoded["train"], directory, checkpoint)
        parts, evaluations = measure(run, task, trainer, model, rows, encoded, directory)
        model.generation_config = generation_config
        finished = FinishedTraining(
            run=shared.run if shared else given,
            options=run.training,
            task=task,
            model=model,
            trainer=trainer,
            rows={split: len(rows[split]) for split in rows if isinstance(rows[split], Dataset)},
            example=_example(task, rows),
            evaluations=evaluations,
            baselines=baselines,
            parts=parts,
            is_one_of_several=shared is not None,
        )
        if args.should_save:
            results = save_finished_model(finished, directory, started)
            if shared is None:
                publish(results, run, args)
        _leave_process_group(trainer)
        return finished


@contextmanager
def prepared_directory(directory: TrainingDirectory, run: Run, args: Any) -> Iterator[Path]:
    """Check where the model will be saved, open the directory of the checkpoints, and create the Hub repository, so
    that a mistake shows before the data are read.

    Inside the `with`, other trainings are kept out, a full disk is reported in a sentence, and there is an empty
    directory for the prepared data of this process, which is yielded.
    """
    with ExitStack() as held:
        held.enter_context(_full_disk_explained(directory.path))
        with args.main_process_first(local=False, desc="preparing the output directory"):
            if args.should_save:
                held.enter_context(directory.opened(run, devices=args.world_size * max(1, args.n_gpu)))
                if run.card.push_to_hub:
                    create_repository(run.card, args, run.output_dir.name)
            elif not directory.path.exists():
                raise InputError(f"--output_dir: {directory.path} must be on a disk that all machines share")
        if not args.should_save:
            disable_progress_bars()  # every process prepares the data, but only one shows it
        set_seed(args.seed)
        cache = directory.path / f"data-{args.process_index}"
        shutil.rmtree(cache, ignore_errors=True)
        held.callback(shutil.rmtree, cache, ignore_errors=True)
        yield cache


def check_data(rows: DatasetDict, run: Run, directory: TrainingDirectory, shared: Shared | None) -> None:
    """Compare the data with those of the training that is continued, and with those of other seeds. The test data only
    measure; but those of several seeds are compared."""
    if shared and "validation" not in rows:
        raise InputError(
            "--seeds: there are no validation data to choose the best model by; give --validation_file or a "
            "--validation_fraction"
        )
    hashes = {split: rows_hash(rows[split]) for split in rows if split != "train" and (split != "test" or shared)}
    is_large = getattr(run.data, "prepared", None) or isinstance(rows["train"], IterableDataset)
    hashes["train"] = _state_of_files(run) if is_large else rows_hash(rows["train"])
    directory.check_data(hashes, run.training.overwrite_output_dir)
    if shared:
        shared.directory.check_data(hashes, shared.may_start_again)


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
    parts = task.trainer_parts(run, args, model, rows, encoded)
    try:
        return task.model.training_classes()[1](
            args=args,
            processing_class=task.data.tokenizer,
            **parts,
            options=run.training,
            lengths=task.data.lengths(encoded["train"]) if has_lengths else (),
            resume_from=checkpoint,
            command_started=started,
        )
    except (ImportError, ValueError) as error:
        raise InputError(f"--training_arguments: the Trainer refuses them here: {reason(error)}") from error


def fit(
    run: Run, task: Task, trainer: Trainer, train: Dataset, directory: TrainingDirectory, checkpoint: str | None
) -> None:
    """Train, from the beginning or from a checkpoint; the trainer then has the weights that are kept."""
    if run.training.bf16 is None and task.model.tries_bfloat16 and trainer.args.mixed_precision == "no":
        known = directory.state().get("bf16")  # a continued training keeps its type
        chosen = choose_bfloat16(trainer) if known is None else use_bfloat16(trainer, known)
        if trainer.args.should_save:
            directory.note(bf16=chosen)
    if checkpoint is None:
        task.model.prepare_head(trainer, train)
    else:
        step = check_checkpoint(trainer, checkpoint)
        if trainer.args.should_save:
            print(f"Resuming from step {step}: {checkpoint}", file=sys.stderr)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.compute_metrics = None
    vars(trainer.model).pop("forward", None)  # accelerate's autocast: the model is measured as it is saved


def measure(
    run: Run,
    task: Task,
    trainer: Trainer,
    model: PreTrainedModel,
    rows: DatasetDict,
    encoded: DatasetDict,
    directory: TrainingDirectory,
) -> tuple[Baselines, list[Evaluation]]:
    """Complete the trained model, and measure it: the metrics of its parts alone, and those of the whole.

    Raises:
        InputError: when that fails, whatever the reason; the trained weights are then kept beside the checkpoints.
    """
    try:
        parts = task.model.complete(run, trainer, encoded, task.metrics)
        evaluations = []
        for split in [name for name in ("validation", "test") if name in rows]:
            evaluations.append(evaluate(trainer, task, split, rows[split], encoded[split]))
            if split == "validation":
                task.model.learn_validation_rows(trainer, encoded)
        return parts, evaluations
    except InputError:
        raise
    except Exception as error:
        if trainer.args.should_save:
            for part in (model, task.data.tokenizer):
                part.save_pretrained(directory.unmeasured)
        raise InputError(
            f"the model is trained, but cannot be measured: {reason(error)}. Its weights and tokenizer are in "
            f"{directory.unmeasured}; the same command, also with another --test_file, measures it again"
        ) from error


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


def _leave_process_group(trainer: Trainer) -> None:
    """End the process group, and the wrapper of `DistributedDataParallel` before it.

    A wrapper that outlives the group's name is the last to hold the group, and would destroy it while holding the
    interpreter's lock. Destroying waits for gloo's threads, one of which may be waiting for that lock.
    """
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()
    trainer.accelerator.end_training()
