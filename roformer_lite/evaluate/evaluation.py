"""Evaluation on labelled data: at the end of a training, and of a saved model, in the same way."""

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset, DatasetDict, disable_progress_bars
from transformers import EvalPrediction, Trainer, set_seed

from ..data.splits import load_splits
from ..errors import InputError
from ..predict.answers import SavedModel
from ..saved_model import reason
from ..tasks.base import Task
from ..tasks.sentence import SentenceTask
from ..train.callbacks import check_metrics
from ..train.results import Evaluation
from .metrics import Metrics
from .report import Outcome


def encode(task: Task, rows: DatasetDict) -> DatasetDict:
    """Model inputs of every split.

    Validation and test are sorted, longest example first, in `rows` too: generating a batch takes
    as long as its longest example.
    """
    encoded = DatasetDict()
    for split, dataset in rows.items():
        encoded[split] = task.data.encode(dataset, training=split == "train")
        if split != "train" and len(encoded[split]) == len(dataset):
            lengths = task.data.lengths(encoded[split])
            order = sorted(range(len(dataset)), key=lambda i, lengths=lengths: -lengths[i])
            encoded[split], rows[split] = encoded[split].select(order), dataset.select(order)
    return encoded


def measure(
    trainer: Trainer, task: Task, split: str, rows: Dataset, encoded: Dataset
) -> tuple[Metrics, EvalPrediction]:
    """The metrics of a split, and the predictions that they are of.

    Args:
        trainer: Has the model, the batch size and the seed, which determines the masks of masked
            language models.
        task: Defines the metrics.
        split: The name of the data.
        rows, encoded: The data, as rows and as inputs of the model.
    """
    set_seed(trainer.args.seed)  # the same masks, however long the training was
    trainer.compute_metrics = None
    if hasattr(trainer.args, "predict_with_generate"):
        trainer.args.predict_with_generate = True
    return task.metrics.measure(trainer, split, rows, encoded)


def evaluate(
    trainer: Trainer, task: Task, split: str, rows: Dataset, encoded: Dataset
) -> Evaluation:
    """The final metrics of a split, and the time they took."""
    started = time.monotonic()
    if trainer.is_world_process_zero():
        # the Trainer's bar has the time
        print(f"Measuring on the {split} data, {len(rows):,} rows", file=sys.stderr)
    metrics, prediction = measure(trainer, task, split, rows, encoded)
    check_metrics(metrics, split, trainer.args)
    by_label = task.metrics.by_label(prediction, rows)
    return Evaluation(
        split, metrics, task.metrics.measurements(rows), time.monotonic() - started, by_label
    )


@dataclass
class SavedEvaluation:
    """The metrics of a saved model, and what it answered, in the order of the data."""

    metrics: Metrics
    outcomes: list[Outcome]
    rows: int
    seconds: float


def evaluate_saved(task: Task, saved: SavedModel, arguments: dict[str, Any]) -> SavedEvaluation:
    """Measure a saved model on the test data that the options of `task` name.

    Args:
        task: With its options; what depends on the model is found here.
        saved: The model, on the device that it shall compute on.
        arguments: Fields of the training arguments that the metrics depend on, such as the seed and
            the batch size.

    Raises:
        InputError: about the data, about options that do not fit the model, and when a metric is
            not a number.
    """
    disable_progress_bars()  # of preparing the data; the evaluation itself has one
    task.data.inspect_model(saved.model.config, saved.settings)
    with TemporaryDirectory(prefix="roformer-lite-evaluate-") as folder:
        rows = load_splits(task, task.args, Path(folder), seed=0, wanted=("test",))
        places = {origin: place for place, origin in enumerate(rows["test"]["origin"])}
        task.data.tokenizer = saved.tokenizer
        encoded = encode(task, rows)
        started = time.monotonic()
        outcomes: list[Outcome] = []
        if isinstance(task, SentenceTask):
            metrics = task.metrics.measure_saved(
                saved.model, encoded["test"], arguments["per_device_eval_batch_size"]
            )
        else:
            trainer = _trainer(task, saved, {**arguments, "output_dir": f"{folder}/trainer"})
            metrics, prediction = measure(trainer, task, "test", rows["test"], encoded["test"])
            outcomes = task.metrics.outcomes(prediction, rows["test"], encoded["test"])
        seconds = time.monotonic() - started
        count = len(rows["test"])
    bad = [f"{name} {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        raise InputError(f"on these data the model gives {', '.join(bad)} instead of a number")
    # blocks have no place, and stay as they are
    outcomes.sort(key=lambda outcome: places.get(outcome.origin, 0))
    return SavedEvaluation(metrics, outcomes, count, seconds)


def _trainer(task: Task, saved: SavedModel, arguments: dict[str, Any]) -> Trainer:
    """The trainer of the task, with which the training measured."""
    arguments_class, trainer_class = task.model.training_classes()
    with _only(saved.model.device):
        try:
            # One device, even where the process sees several: the one that was asked for.
            kind = type(arguments_class.__name__, (arguments_class,), {"n_gpu": 1})
            args = kind(
                **arguments,
                eval_strategy="no",
                disable_tqdm=not sys.stderr.isatty(),
                use_cpu=saved.model.device.type == "cpu",
                report_to="none",
                dataloader_pin_memory=torch.cuda.is_available(),
            )
        # the model was trained in bfloat16, which this device does not have
        except ValueError as error:
            raise InputError(
                f"the model cannot be measured as in its training: {reason(error)}"
            ) from error
    return trainer_class(
        model=saved.model,
        args=args,
        data_collator=task.data.collator(saved.model),
        processing_class=saved.tokenizer,
        preprocess_logits_for_metrics=task.metrics.reduce_logits,
    )


@contextmanager
def _only(device: torch.device) -> Iterator[None]:
    """Inside the `with`, accelerate takes this device; it would take the first one."""
    if device.type == "cpu":
        yield
        return
    name, before = "ACCELERATE_TORCH_DEVICE", os.environ.get("ACCELERATE_TORCH_DEVICE")
    os.environ[name] = f"{device.type}:{device.index or 0}"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
