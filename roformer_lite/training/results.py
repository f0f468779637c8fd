"""What is known about a finished training: its figures, as `results.json` has them and as they are printed."""

import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.version import __version__

from .baselines import Baselines
from .early_stopping import what_happened
from .metrics import LOWER_IS_BETTER, ByLabel, Metrics
from .options import TrainOptions
from .seed_directory import chosen_by
from .tasks.base import Task
from .trainer_arguments import RoFormerLiteTrainingArguments


@dataclass
class Evaluation:
    """Final figures of one split."""

    split: str
    metrics: Metrics
    rows: int
    seconds: float
    by_label: ByLabel = field(default_factory=dict)


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
    baselines: Baselines = field(default_factory=dict)
    chosen_step: int | None = None  # of the checkpoint that is kept, where it is not the last
    parts: Baselines = field(default_factory=dict)  # figures of the model's parts, each alone
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
        "by_label": {evaluation.split: evaluation.by_label for evaluation in run.evaluations if evaluation.by_label},
        "main_metric": run.task.main_metric,
        "parts": run.parts,
        "baselines": run.baselines,
        "verdict": verdict(run),
        "evaluation_seconds": {evaluation.split: round(evaluation.seconds, 1) for evaluation in run.evaluations},
        "rows": run.rows,
        "parameters": run.model.num_parameters(),
        "vocabulary": len(run.tokenizer),
        "training": {
            "steps": run.steps,
            "epochs": round(run.epochs, 2),
            "minutes": round(run.train_seconds / 60, 2),
            "whole_command_minutes": round(seconds / 60, 2),
            "what_happened": _what_happened(run),
            "chosen_step": run.chosen_step,
            "metric_for_best_model": args.metric_for_best_model.removeprefix("eval_"),
            "greater_is_better": args.greater_is_better,
            "arguments": _chosen_arguments(args),
            **options.fine_tuning.summary(),
        },
        "machine": _machine(args.world_size),
        "versions": {
            "hf_roformer_lite": __version__,
            **{
                name: version(name)
                for name in ("transformers", "torch", "tokenizers", "datasets", "accelerate", run.task.library)
            },
        },
    }


def verdict(run: Run) -> str:
    """A sentence on whether the model is worth its place, from the test data, or else the validation data."""
    if not run.baselines or not run.evaluations:
        return ""
    metric, evaluation = run.task.main_metric, run.evaluations[-1]
    ours = evaluation.metrics.get(metric)
    theirs = {name: by_split[evaluation.split][metric] for name, by_split in run.baselines.items()}
    lower_is_better = metric in LOWER_IS_BETTER
    name = (min if lower_is_better else max)(theirs, key=theirs.get)
    is_better = ours < theirs[name] if lower_is_better else ours > theirs[name]
    figures = f"{metric} on the {evaluation.split} data is {ours:.4f}, that of {name} {theirs[name]:.4f}"
    judgement = "The model is worth its place" if is_better else "Simple means do as well or better"
    return f"{judgement}: its {figures}."


def beside_table(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The main figure by split, of the model, of its parts alone and of simple means, of which there must be some."""
    others, metric = {**results["parts"], **results["baselines"]}, results["main_metric"]
    rows = {"this model": results["metrics"], **others} if others else {}
    return {name: {split: figures[metric] for split, figures in by_split.items()} for name, by_split in rows.items()}


def seeds_sentence(results: dict[str, Any]) -> str:
    """Mean and standard deviation of the main figure over several seeds, and which seed was kept and why."""
    seeds, metric = results["seeds"], results["main_metric"]
    split = list(results["metrics"])[-1]
    mean, deviation = (seeds[name][split][metric] for name in ("mean", "standard_deviation"))
    by, figure = chosen_by(results)
    others = [chosen_by({**results, "metrics": of})[1] for of in seeds["metrics"].values()]
    return (
        f"Over the seeds {', '.join(seeds['metrics'])} the {metric} on the {split} data is {mean:.4f} ± "
        f"{deviation:.4f} (mean and standard deviation). The model of seed {seeds['kept']} is kept: its validation "
        f"{by} is best, {figure:.4f} (from {min(others):.4f} to {max(others):.4f})."
    )


def _what_happened(run: Run) -> str:
    args = run.options.training
    if not args.load_best_model_at_end:
        return ""
    return what_happened(run.history, args.metric_for_best_model, args.greater_is_better, args.num_train_epochs)


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
        "num_train_epochs max_steps time_limit_minutes ema_decay seed optim optim_args bf16 fp16 "
        "generation_num_beams per_device_eval_batch_size"
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
    beside = beside_table(results)
    if beside:
        table = Table(title=f"{results['main_metric']} of the model, of its parts and of simple means")
        table.add_column("")
        for split in results["metrics"]:
            table.add_column(split, justify="right")
        for name, figures in beside.items():
            table.add_row(name, *(f"{figures[split]:.4f}" for split in results["metrics"]))
        console.print(table)
    training = results["training"]
    of_seeds = seeds_sentence(results) if "seeds" in results else ""
    for sentence in filter(None, (results["verdict"], training["what_happened"], of_seeds)):
        console.print(sentence, soft_wrap=True)
    console.print(
        f"{training['steps']:,} steps, {training['epochs']:g} epochs in {training['minutes']:g} minutes "
        f"({training['whole_command_minutes']:g} for the whole command)"
    )
    console.print(f"Model, tokenizer, card, loss curve and results: {folder}", soft_wrap=True)
    console.print(f"Use it: echo … | roformer-lite predict {folder}", soft_wrap=True)
