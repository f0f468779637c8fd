"""What is known about a finished training: its metrics, as `results.json` has them and as they are
printed."""

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hf_roformer_lite.version import __version__

from ..evaluate.baselines import Baselines
from ..evaluate.metrics import FRACTIONS, LOWER_IS_BETTER, ByLabel, Metrics, is_within_chance
from ..tasks.base import Task
from ..tasks.examples import example_line, neutral_example
from .options import TrainingOptions
from .run import Run

# Of the training arguments, those that shape the result.
_SHOWN = (
    "learning_rate lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 max_grad_norm "
    "label_smoothing_factor per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps seed "
    "optim optim_args bf16 fp16 generation_num_beams per_device_eval_batch_size"
).split()
_SHOWN_OPTIONS = ("max_tokens_per_batch", "time_limit_minutes", "ema_decay", "word_dropout")
_SIGNIFICANT = 0.05  # below this probability a difference is not put down to chance


@dataclass
class Evaluation:
    """Final metrics of one split."""

    split: str
    metrics: Metrics
    measurements: int  # that the metrics are means of: rows, or queries
    seconds: float
    by_label: ByLabel = field(default_factory=dict)


@dataclass
class FinishedTraining:
    """A finished training and everything known about it."""

    run: Run  # as it was given; of one of several seeds, that of all
    task: Task
    model: PreTrainedModel
    trainer: Trainer  # its arguments and options with their defaults, its log, and its clock
    rows: dict[str, int]
    example: dict[str, Any]  # a row of the data, for the card
    evaluations: list[Evaluation]
    baselines: Baselines
    parts: Baselines  # metrics of the model's parts, each alone
    is_one_of_several: bool = False

    @property
    def chosen_step(self) -> int | None:
        """The step of the checkpoint that is kept, where it is not the last."""
        return (
            self.trainer.state.best_global_step
            if self.trainer.args.load_best_model_at_end
            else None
        )


def summarise(finished: FinishedTraining) -> dict[str, Any]:
    """Everything measured, as `results.json` has it."""
    run, task, evaluations = finished.run, finished.task, finished.evaluations
    args, state, clock = finished.trainer.args, finished.trainer.state, finished.trainer.clock
    packages = ("transformers", "torch", "tokenizers", "datasets", "accelerate", task.library)
    return {
        "task": task.name,
        "command": run.command(),
        "settings": task.data.settings(),
        "metrics": {evaluation.split: evaluation.metrics for evaluation in evaluations},
        "by_label": {
            evaluation.split: evaluation.by_label
            for evaluation in evaluations
            if evaluation.by_label
        },
        "main_metric": task.metrics.main,
        "example_line": example_line(task, neutral_example(task)),
        "parts": finished.parts,
        "baselines": finished.baselines,
        "verdict": verdict(
            task.metrics.main,
            evaluations,
            finished.baselines,
            task.metrics.paired_tests(evaluations[-1].split) if evaluations else {},
        ),
        "evaluation_seconds": {
            evaluation.split: round(evaluation.seconds, 1) for evaluation in evaluations
        },
        "rows": finished.rows,
        "parameters": finished.model.num_parameters(),
        "vocabulary": len(task.data.tokenizer),
        "training": {
            "steps": state.global_step,
            "epochs": round(state.epoch or 0.0, 2),
            "minutes": round(clock.elapsed / 60, 2),
            "whole_command_minutes": round(clock.whole_command / 60, 2),
            "what_happened": what_happened(
                args,
                state.log_history,
                evaluations,
                finished.parts,
                stopped_early=state.global_step < state.max_steps and not clock.is_over,
            ),
            "chosen_step": finished.chosen_step,
            "metric_for_best_model": args.metric_for_best_model.removeprefix("eval_"),
            "greater_is_better": args.greater_is_better,
            "arguments": _shown_arguments(args, finished.trainer.options),
            "own_weights": run.own_weights(),
            "fine_tuning_defaults": run.fine_tuning_defaults(),
        },
        "machine": {
            "device": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else f"CPU ({platform.machine()})",
            "processes": args.world_size,
            "threads": torch.get_num_threads(),
            "cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
        },
        "versions": {"hf_roformer_lite": __version__, **{name: version(name) for name in packages}},
    }


def _shown_arguments(args: TrainingArguments, options: TrainingOptions) -> dict[str, Any]:
    values = {name: getattr(args, name, None) for name in _SHOWN}
    values |= {"optim": options.optim, **{name: getattr(options, name) for name in _SHOWN_OPTIONS}}
    if options.max_tokens_per_batch:
        values["per_device_train_batch_size"] = None
    return {
        name: getattr(value, "value", value)
        for name, value in values.items()
        if value not in (None, False, -1)
    }


def verdict(
    metric: str,
    evaluations: Sequence[Evaluation],
    baselines: Baselines,
    paired: Mapping[str, float] | None = None,
) -> str:
    """A sentence on the model and the best baseline, by the test data, or else the validation data.
    `paired` has the probabilities of a paired test against baselines, where there is one."""
    if not baselines or not evaluations:
        return ""
    last = evaluations[-1]
    ours, sign = last.metrics[metric], -1 if metric in LOWER_IS_BETTER else 1
    theirs = {name: by_split[last.split][metric] for name, by_split in baselines.items()}
    name = max(theirs, key=lambda name: sign * theirs[name])
    values = f"{metric} on the {last.split} data is {ours:.4f}, that of the best baseline, {name}, {theirs[name]:.4f}"
    chance = (paired or {}).get(name)
    if chance is not None:
        values += f" (McNemar's test of both on the same rows: p = {chance:.2g})"
    if (
        is_within_chance(metric, ours, theirs[name], last.measurements)
        if chance is None
        else chance >= _SIGNIFICANT
    ):
        equal = f"{last.measurements:,} rows can't tell them apart"
        return f"The model and the best baseline are about equal: its {values}; {equal}."
    if sign * ours > sign * theirs[name]:
        return f"The model is better than the baselines: its {values}."
    return f"A baseline is better: the model's {values}."


def what_happened(
    args: TrainingArguments,
    history: Sequence[dict[str, float]],
    evaluations: Sequence[Evaluation],
    parts: Baselines,
    stopped_early: bool,
) -> str:
    """A sentence on a training whose best checkpoint was kept, for the summary and the card.

    Args:
        args, history: Of the trainer, and its log.
        evaluations: The final metrics.
        parts: The metrics of the model's parts alone.
        stopped_early: Whether neither the number of steps nor a time limit ended it.
    """
    measured = _of_validation(history, args.metric_for_best_model)
    if not args.load_best_model_at_end or not measured:
        return ""
    best, value = measured[_best(measured, args.greater_is_better)]
    name = args.metric_for_best_model.removeprefix("eval_").replace("_", " ")
    alone = " of the encoder alone" if parts else ""
    text = f"The checkpoint after epoch {best['epoch']:.4g}, step {best['step']:,}, is kept, with the best validation "
    text += f"{name}{alone}, {value:.4g}."
    last = measured[-1][0]
    if stopped_early and last["epoch"] < args.num_train_epochs - 0.5:
        text += f" Training stopped after epoch {last['epoch']:.4g}, as it no longer helped."
    losses = _of_validation(history, "loss")
    lowest = losses[_best(losses, False)][0] if losses else None
    validation = evaluations[0].metrics if evaluations else {}
    is_perfect = any(validation.get(fraction) == 1 for fraction in FRACTIONS)
    if losses and lowest is not losses[-1][0]:
        text += f" The validation loss has risen since epoch {lowest['epoch']:.4g}: from there on it overfits."
    elif best is last and not is_perfect:
        text += " It was still getting better: a longer training may help."
    return text


def _of_validation(
    history: Sequence[dict[str, float]], metric: str
) -> list[tuple[dict[str, float], float]]:
    """The entries of a log that hold `metric`, with its value."""
    name = f"eval_{metric.removeprefix('eval_')}"
    return [(entry, entry[name]) for entry in history if name in entry]


def _best(measured: Sequence[tuple[dict[str, float], float]], greater_is_better: bool) -> int:
    """Where the best value is; the first of equal ones."""
    values = [value for _, value in measured]
    return values.index(max(values) if greater_is_better else min(values))


def beside_table(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The main metric by split, of the model, of its parts alone and of baselines, of which there
    must be some."""
    others, metric = {**results["parts"], **results["baselines"]}, results["main_metric"]
    rows = {"this model": results["metrics"], **others} if others else {}
    return {
        name: {split: values[metric] for split, values in by_split.items()}
        for name, by_split in rows.items()
    }


def chosen_by(results: dict[str, Any]) -> tuple[str, float]:
    """The validation metric by which a model is compared with those of other seeds: its name and
    value."""
    name = results["training"]["metric_for_best_model"]
    return name, results["metrics"]["validation"][name]


def seeds_sentence(results: dict[str, Any]) -> str:
    """Mean and standard deviation of the main metric over several seeds, and which seed was kept
    and why."""
    seeds, metric = results["seeds"], results["main_metric"]
    split = list(results["metrics"])[-1]
    mean, deviation = (seeds[name][split][metric] for name in ("mean", "standard_deviation"))
    by, value = chosen_by(results)
    others = [chosen_by({**results, "metrics": of})[1] for of in seeds["metrics"].values()]
    return (
        f"Over the seeds {', '.join(seeds['metrics'])} the {metric} on the {split} data is {mean:.4f} ± "
        f"{deviation:.4f} (mean and standard deviation). The model of seed {seeds['kept']} is kept: its validation "
        f"{by} is best, {value:.4f} (from {min(others):.4f} to {max(others):.4f})."
    )


def print_summary(results: dict[str, Any], folder: Path) -> None:
    """Print a table of the final metrics, and where the files are."""
    console, splits = Console(), list(results["metrics"])
    by_name = {
        name: {split: results["metrics"][split][name] for split in splits}
        for name in next(iter(results["metrics"].values()), {})
    }
    title = f"{results['task']}: {results['parameters']:,} parameters"
    compared = f"{results['main_metric']}: this model, its parts and baselines"
    for heading, first, rows in ((title, "metric", by_name), (compared, "", beside_table(results))):
        if rows:
            table = Table(first, title=heading)
            for split in splits:
                table.add_column(f"{split} ({results['rows'][split]:,})", justify="right")
            for name, values in rows.items():
                table.add_row(name, *(f"{values[split]:.4f}" for split in splits))
            console.print(table)
    training = results["training"]
    of_seeds = seeds_sentence(results) if "seeds" in results else ""
    for sentence in filter(None, (results["verdict"], training["what_happened"], of_seeds)):
        console.print(sentence, soft_wrap=True)
    console.print(
        f"{_counted(training['steps'], 'step')}, {_counted(training['epochs'], 'epoch')}; "
        f"{_counted(training['minutes'], 'minute')} of training, "
        f"{_counted(training['whole_command_minutes'], 'minute')} for the whole command"
    )
    console.print(
        f"Model, tokenizer, card, loss curve, results and run.yaml: {folder}", soft_wrap=True
    )
    line = f"echo {shlex.quote(results['example_line'])} | roformer-lite predict {shlex.quote(str(folder))}"
    console.print(f"Use it: {line}", soft_wrap=True, markup=False)


def _counted(number: float, word: str) -> str:
    """`1 epoch`, `2.5 minutes`."""
    return f"{number:,g} {word}{'' if number == 1 else 's'}"
