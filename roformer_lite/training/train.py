"""`roformer-lite train`: from the options to a finished model directory. The training loop is the stock Trainer's."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, disable_progress_bars
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerState,
    set_seed,
)

from ..errors import InputError
from ..output_directory import check_output_dir, is_disk_full
from .baselines import Baselines
from .corpus.stream import TextStream
from .devices import processes_of
from .divergence import check_figures
from .fingerprint import config_fingerprint, rows_fingerprint, tokenizer_fingerprint
from .finished_model import publish, save_finished_model
from .hub_upload import create_repository
from .lock import training_lock
from .measuring import measure
from .model_and_tokenizer import make_model, make_tokenizer
from .number_type import make_trainer_of_faster_type, without_autocast
from .options import TrainOptions
from .results import Evaluation, Run
from .resume import (
    FINISHED_SEEDS,
    check_checkpoint,
    check_fingerprints,
    check_resumed_options,
    clear_finished_training,
    last_complete_checkpoint,
    open_training_directory,
)
from .shards import in_shards
from .splits import load_splits
from .tasks.base import Task
from .trainer_arguments import RoFormerLiteTrainingArguments


def train(options: TrainOptions) -> Run:
    """Read the data, train tokenizer and model, evaluate, save, and print the results.

    A training that was interrupted continues from its last checkpoint when the same command is given again.

    Raises:
        InputError: about options and data, before the model is trained; when the disk is full, when another process
            trains into the same directory, and when the training diverges.
    """
    started = time.monotonic()
    args, state_dir = options.training, Path(options.training.output_dir)
    if args.seeds and options.siblings is None:
        raise InputError(f"{args.shown_seeds} are several trainings: `train_seeds` makes them")
    with ExitStack() as held, _full_disk_explained(state_dir):
        prepare_directories(options, state_dir, held)
        if not args.should_save:
            disable_progress_bars()  # every process prepares the data, but only one shows it
        set_seed(args.seed)
        data_dir = held.enter_context(_data_directory(state_dir, args.process_index))
        return _train(options, state_dir, data_dir, started)


def _train(options: TrainOptions, state_dir: Path, data_dir: Path, started: float) -> Run:
    task, args = options.task, options.training
    rows = load_splits(task, options.data, data_dir, options.split_seed)
    if args.seeds and "validation" not in rows:
        raise InputError(
            f"{args.shown_seeds}: there are no validation data to choose the best model by; give --validation_file "
            "or a --validation_fraction"
        )
    _check_unchanged(options, state_dir, _data_fingerprints(rows, options), forget=("checkpoint-*", "tokenizer*"))
    task.inspect_training_data(rows["train"])
    tokenizer = make_tokenizer(options, rows["train"], options.tokenizer_dir)
    model = make_model(options, tokenizer)
    fingerprints = {"the tokenizer": tokenizer_fingerprint(tokenizer), "the configuration": config_fingerprint(model)}
    _check_unchanged(options, state_dir, fingerprints, forget=("checkpoint-*",))
    resume_from = _checkpoint(options, state_dir)
    if args.shard_weights:
        model = in_shards(model, args.world_size)
    encoded = encode(task, rows, tokenizer)
    baselines = _measure_baselines(options, rows, encoded, tokenizer)
    generation_config = _set_generation(task, model, args)
    make = partial(make_trainer, options, model, tokenizer, rows, encoded, resume_from, started)
    trainer = make() if task.makes_modules else make_trainer_of_faster_type(make, args, state_dir, resume_from)
    if resume_from and trainer.is_world_process_zero():
        step = TrainerState.load_from_json(f"{resume_from}/trainer_state.json").global_step
        print(f"Resuming from step {step}: {resume_from}", file=sys.stderr)
        written_by = processes_of(resume_from)
        if written_by not in (None, args.world_size):
            print(
                f"It was written by {written_by} processes, and {args.world_size} continue it: with the same rows in "
                "each step, but other random numbers and sums in another order",
                file=sys.stderr,
            )
    if not resume_from:
        task.prepare_head(trainer, encoded["train"])
    trainer.train(resume_from_checkpoint=resume_from)
    if args.shard_weights:
        model = trainer.gather_weights()
    trainer.compute_metrics = None
    without_autocast(trainer.model)
    parts = task.complete_model(options, trainer, encoded, tokenizer)
    evaluations = [
        evaluate(trainer, task, split, rows[split], encoded[split], tokenizer)
        for split in ("validation", "test")
        if split in rows
    ]
    model.generation_config = generation_config
    run = _run(options, model, trainer, tokenizer, rows, evaluations)
    run.baselines, run.parts = baselines, parts
    if trainer.is_world_process_zero():
        results = save_finished_model(run, started)
        if options.siblings is None:
            publish(results, options)
    _leave_process_group(trainer)
    return run


def prepare_directories(options: TrainOptions, state_dir: Path, held: ExitStack) -> None:
    """Check where the model will be saved, open the directory of the checkpoints, and create the Hub repository.

    All of this happens in the main process, so that a mistake shows before the data are read. That process also keeps
    others out until `held` is closed.
    """
    args = options.training
    with args.main_process_first(local=False, desc="preparing the output directory"):
        if args.should_save:
            held.enter_context(training_lock(state_dir, options.output_dir))
            clear_finished_training(state_dir, options.model_dir, args.overwrite_output_dir)
            check_output_dir(options.model_dir, args.overwrite_output_dir)
            open_training_directory(
                state_dir, options.identity(), args.overwrite_output_dir, keep_checkpoints=args.keep_checkpoints
            )
            if options.push_to_hub and options.siblings is None:
                create_repository(args, options.output_dir.name)
        elif not state_dir.exists():
            raise InputError(
                f"--output_dir {options.output_dir}: the main process made {state_dir}, but this machine does not see "
                "it; give a directory on a disk that all machines share"
            )


def _data_fingerprints(rows: DatasetDict, options: TrainOptions) -> dict[str, Any]:
    """What a continued training must share with the one before, apart from its options. The test data only measure;
    figures of several seeds are of the same ones."""
    splits = ("train", "validation", *(["test"] if options.siblings else []))
    return {f"the {split} data": rows_fingerprint(rows[split]) for split in splits if split in rows}


def _check_unchanged(
    options: TrainOptions, state_dir: Path, fingerprints: dict[str, Any], forget: tuple[str, ...]
) -> None:
    args = options.training
    with args.main_process_first(local=False, desc="comparing with the interrupted training"):
        if args.should_save:
            check_fingerprints(state_dir, fingerprints, args.overwrite_output_dir, forget)
            if options.siblings is not None:
                path, forgotten = options.siblings.path, (FINISHED_SEEDS, *forget)
                check_fingerprints(path, fingerprints, options.overwrites_siblings, forgotten)


def _checkpoint(options: TrainOptions, state_dir: Path) -> str | None:
    """The checkpoint to continue from, which must be whole."""
    args = options.training
    checkpoint = args.resume_from_checkpoint
    if checkpoint:
        check_resumed_options(Path(checkpoint), options.identity())
    else:
        checkpoint = last_complete_checkpoint(state_dir, averaged=bool(args.ema_decay))
    if checkpoint:
        check_checkpoint(Path(checkpoint), args)
    return checkpoint


@contextmanager
def _full_disk_explained(state_dir: Path) -> Iterator[None]:
    """Inside the `with`, a full disk is told in a sentence, an `InputError`."""
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
def _data_directory(state_dir: Path, process_index: int) -> Iterator[Path]:
    """An empty directory for the prepared data of one process, removed at the end."""
    directory = state_dir / f"data-{process_index}"
    shutil.rmtree(directory, ignore_errors=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(
    options: TrainOptions,
    model: PreTrainedModel,
    trainer: Trainer,
    tokenizer: PreTrainedTokenizerBase,
    rows: DatasetDict,
    evaluations: list[Evaluation],
) -> Run:
    return Run(
        task=options.task,
        options=options,
        model=model,
        tokenizer=tokenizer,
        history=trainer.state.log_history,
        steps=trainer.state.global_step,
        epochs=trainer.state.epoch or 0.0,
        train_seconds=trainer.clock.elapsed,
        rows={split: len(dataset) for split, dataset in rows.items() if isinstance(dataset, Dataset)},
        example=_example(options.task, rows),
        evaluations=evaluations,
        earlier_seconds=trainer.clock.earlier_commands,
        chosen_step=trainer.state.best_global_step if trainer.args.load_best_model_at_end else None,
    )


def _example(task: Task, rows: DatasetDict) -> dict[str, Any]:
    """A row of the data for the card; a corpus and a stream have none as it was."""
    source = rows.get("validation", rows["train"])
    return source[0] if isinstance(source, Dataset) else task.neutral_example()


def _leave_process_group(trainer: Trainer) -> None:
    """End the process group, and the wrapper of `DistributedDataParallel` before it.

    A wrapper that outlives the group's name is the last to hold the group, and would destroy it while holding the
    interpreter's lock. Destroying waits for gloo's threads, one of which may be waiting for that lock.
    """
    trainer.model_wrapped = trainer.model
    trainer.accelerator.free_memory()
    trainer.accelerator.end_training()


def encode(task: Task, rows: DatasetDict, tokenizer: PreTrainedTokenizerBase) -> DatasetDict:
    """Model inputs of every split.

    Validation and test are sorted, longest example first, in `rows` too: generating a batch takes as long as its
    longest example.
    """
    encoded = DatasetDict()
    for split, dataset in rows.items():
        if not isinstance(dataset, Dataset):
            encoded[split] = dataset.encoded_by(tokenizer)
            continue
        encoded[split] = task.encode(dataset, tokenizer, training=split == "train")
        if split != "train" and len(encoded[split]) == len(dataset):
            lengths = task.lengths(encoded[split])
            order = sorted(range(len(dataset)), key=lambda i, lengths=lengths: -lengths[i])
            encoded[split], rows[split] = encoded[split].select(order), dataset.select(order)
    return encoded


def make_trainer(
    options: TrainOptions,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: DatasetDict,
    encoded: DatasetDict,
    resume_from: str | None,
    command_started: float | None = None,
) -> Trainer:
    """The task's trainer, which measures on the validation data."""
    task, args = options.task, options.training
    if "validation" not in encoded:
        args.eval_strategy, args.load_best_model_at_end = "no", False
    if not isinstance(encoded["train"], TextStream):
        args.follow_data(len(encoded["train"]))
    if not args.has_metric:
        args.metric_for_best_model = task.metric_for_best_model
        args.greater_is_better = not args.metric_for_best_model.endswith("loss")
    has_lengths = args.max_tokens_per_batch and isinstance(encoded["train"], Dataset)
    _, trainer_class = task.training_classes()
    return trainer_class(
        args=args,
        processing_class=tokenizer,
        **task.trainer_parts(options, model, tokenizer, rows, encoded),
        lengths=task.lengths(encoded["train"]) if has_lengths else (),
        averaging_from=resume_from,
        command_started=command_started,
    )


def _measure_baselines(
    options: TrainOptions, rows: DatasetDict, encoded: DatasetDict, tokenizer: PreTrainedTokenizerBase
) -> Baselines:
    """Figures of simple means in the main process, printed before the training begins. Of a corpus they learn a
    sample."""
    args = options.training
    if not (args.baselines and args.should_save) or len(rows) < 2:
        return {}
    if options.siblings is not None and (finished := options.siblings.finished()):
        return next(iter(finished.values()))["baselines"]  # which no seed changes
    if not isinstance(encoded["train"], Dataset):
        sample = encoded["train"].sample(tokenizer)
        encoded = DatasetDict({**encoded, "train": sample})
        if not isinstance(rows["train"], Dataset):
            rows = DatasetDict({**rows, "train": sample})
    figures = options.task.baselines(rows, encoded)
    for name, by_split in figures.items():
        shown = ", ".join(f"{split} {by_split[split][options.task.main_metric]:.4f}" for split in by_split)
        print(f"Simple means, {options.task.main_metric}: {name}: {shown}", file=sys.stderr)
    return figures


def evaluate(
    trainer: Trainer, task: Task, split: str, rows: Dataset, encoded: Dataset, tokenizer: PreTrainedTokenizerBase
) -> Evaluation:
    """The final figures of a split, and the time they took."""
    started = time.monotonic()
    if trainer.is_world_process_zero():
        print(f"Measuring on the {split} data, {len(rows):,} rows", file=sys.stderr)  # the Trainer's bar has the time
    metrics, prediction = measure(trainer, task, split, rows, encoded, tokenizer)
    check_figures(metrics, split, trainer.args)
    by_label = task.figures_by_label(prediction, rows)
    return Evaluation(split, metrics, len(rows), time.monotonic() - started, by_label)


def _set_generation(
    task: Task, model: PreTrainedModel, args: RoFormerLiteTrainingArguments
) -> GenerationConfig | None:
    """Set the task's defaults of `generate`; returns a copy to save, because the Trainer fills in others."""
    if not model.can_generate():
        return None
    task.prepare_generation(model, args)
    return GenerationConfig.from_dict(model.generation_config.to_dict())
