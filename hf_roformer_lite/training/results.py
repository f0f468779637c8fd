"""What is known about a finished training: its figures, as `results.json` has them and as they are printed."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..version import __version__
from .metrics import Metrics
from .options import TrainOptions
from .tasks.base import Task
from .trainer_arguments import RoFormerLiteTrainingArguments


@dataclass
class Evaluation:
    """Final figures of one split."""

    split: str
    metrics: Metrics
    rows: int
    seconds: float


@dataclass
class Run:
    """A finished training and everything known about it."""

    task: Task
    options: TrainOptions
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    history: list[dict[str, float]]
    steps: int
    epochs: float
    train_seconds: float
    rows: dict[str, int]
    example: dict[str, Any]  # a row of the data, for the card
    evaluations: list[Evaluation]
    earlier_seconds: float = 0.0  # of commands that were interrupted, up to the checkpoint that was continued


def summarise(run: Run, seconds: float) -> dict[str, Any]:
    """Everything measured, as `results.json` has it. `seconds` is what the command took, with those before it that
    were interrupted."""
    options, args = run.options, run.options.training
    return {
        "task": run.task.name,
        "command": options.command,
        "settings": run.task.prediction_settings(),
        "metrics": {evaluation.split: evaluation.metrics for evaluation in run.evaluations},
        "evaluation_seconds": {evaluation.split: round(evaluation.seconds, 1) for evaluation in run.evaluations},
        "rows": run.rows,
        "parameters": run.model.num_parameters(),
        "vocabulary": len(run.tokenizer),
        "training": {
            "steps": run.steps,
            "epochs": round(run.epochs, 2),
            "minutes": round(run.train_seconds / 60, 2),
            "whole_command_minutes": round(seconds / 60, 2),
            "arguments": _chosen_arguments(args),
            **options.fine_tuning.summary(),
        },
        "machine": _machine(args.world_size),
        "versions": {
            "hf_roformer_lite": __version__,
            **{name: version(name) for name in ("transformers", "torch", "tokenizers", "datasets", "accelerate")},
        },
    }


def _machine(world_size: int) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    return {
        "device": device,
        "processes": world_size,
        "threads": torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _chosen_arguments(args: RoFormerLiteTrainingArguments) -> dict[str, Any]:
    """The training arguments that shape the result, in a fixed order."""
    names = (
        "learning_rate lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 max_grad_norm "
        "label_smoothing_factor per_device_train_batch_size gradient_accumulation_steps max_tokens_per_batch "
        "num_train_epochs max_steps time_limit_minutes ema_decay seed optim bf16 fp16 generation_num_beams"
    )
    values = {name: getattr(args, name, None) for name in names.split()}
    if args.max_tokens_per_batch:
        values["per_device_train_batch_size"] = None
    return {name: getattr(value, "value", value) for name, value in values.items() if value not in (None, False, -1)}


def print_summary(results: dict[str, Any], folder: Path) -> None:
    """Print a table of the final figures, and where the files are."""
    console = Console()
    if results["metrics"]:
        table = Table(title=f"{results['task']}: {results['parameters']:,} parameters")
        table.add_column("metric")
        for split in results["metrics"]:
            table.add_column(f"{split} ({results['rows'][split]:,})", justify="right")
        for name in next(iter(results["metrics"].values())):
            table.add_row(name, *(f"{metrics[name]:.4f}" for metrics in results["metrics"].values()))
        console.print(table)
    training = results["training"]
    console.print(
        f"{training['steps']:,} steps, {training['epochs']:g} epochs in {training['minutes']:g} minutes "
        f"({training['whole_command_minutes']:g} for the whole command)"
    )
    console.print(f"Model, tokenizer, card, loss curve and results: {folder}", soft_wrap=True)
    console.print(f"Use it: echo … | roformer-lite predict {folder}", soft_wrap=True)
