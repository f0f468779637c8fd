"""What is known about a finished training: its metrics, as `results.json` has them and as they are
printed."""

import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hf_roformer_lite.version import __version__

from ..data.data_files import Row
from ..evaluate.baselines import Baselines, BaselinesRight
from ..evaluate.evaluation import Evaluation
from ..evaluate.metrics import (
    FRACTIONS,
    LOWER_IS_BETTER,
    calibration_error,
    is_within_chance,
    mcnemar,
)
from ..options import TrainingOptions
from ..recipes.base import Recipe
from ..run import Run
from .defaults import fine_tuning_defaults, own_weights

# Of the training arguments, those that shape the result.
_SHOWN = (
    "learning_rate lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 max_grad_norm "
    "label_smoothing_factor per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps seed "
    "optim optim_args bf16 fp16 generation_num_beams per_device_eval_batch_size"
).split()
_SHOWN_OPTIONS = ("max_tokens_per_batch", "time_limit_minutes", "ema_decay", "word_dropout")
# Below this probability a difference is not put down to chance.
SIGNIFICANCE_LEVEL = 0.05
# A smaller rise of a loss says nothing.
SMALL_RISE = 0.01


RELIABILITY_FILE = "reliability.png"
# Scores that are further than this from the fraction of right answers are no probabilities.
LARGE_CALIBRATION_ERROR = 0.1


@dataclass
class FinishedTraining:
    """A finished training and everything known about it.

    Args:
        run: As it was given; of one of several seeds, that of all.
        recipe: What was found in the data.
        model: As it was trained.
        trainer: Its arguments and options with their defaults, its log, and its clock.
        rows, encoded: The data, as rows and as inputs of the model.
        baselines, baselines_right: Metrics of the baselines, and whether their answers are right.
        parts: Metrics of the model's parts, each alone.
        is_one_of_several: Whether this is one of several seeds.
    """

    run: Run
    recipe: Recipe
    model: PreTrainedModel
    trainer: Trainer
    rows: DatasetDict
    encoded: DatasetDict
    baselines: Baselines
    baselines_right: BaselinesRight
    parts: Baselines
    is_one_of_several: bool = False

    @property
    def chosen_step(self) -> int | None:
        """The step of the checkpoint that is kept, where it is not the last."""
        if not self.trainer.args.load_best_model_at_end:
            return None
        return self.trainer.state.best_global_step

    @property
    def row_counts(self) -> dict[str, int]:
        """The number of rows of each split; that of a stream is not known."""
        return {split: len(rows) for split, rows in self.rows.items() if isinstance(rows, Dataset)}

    def example(self, from_data: bool) -> Row:
        """A row for the card: one that is nobody's data, or one of the data, if they have any as it
        was."""
        source = self.rows.get("validation", self.rows["train"])
        if from_data and isinstance(source, Dataset):
            return source[0]
        return self.recipe.neutral_example()


def summarise(finished: FinishedTraining, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Everything measured, as `results.json` has it."""
    run = finished.run
    recipe = finished.recipe
    trainer = finished.trainer
    packages = ("transformers", "torch", "tokenizers", "datasets", "accelerate", recipe.library)
    notes = recipe.notes()
    if evaluations:
        notes += notes_on_scores(recipe, evaluations[-1])
    return {
        "task": recipe.name,
        "command": run.command(),
        "settings": recipe.settings(),
        "metrics": {evaluation.split: evaluation.metrics for evaluation in evaluations},
        "by_label": {
            evaluation.split: evaluation.report.scores
            for evaluation in evaluations
            if evaluation.report is not None
        },
        "main_metric": recipe.main_metric,
        "notes": notes,
        "example_line": recipe.example_line(recipe.neutral_example()),
        "parts": finished.parts,
        "baselines": finished.baselines,
        "verdict": verdict(
            recipe.main_metric, evaluations, finished.baselines, finished.baselines_right
        ),
        "evaluation_seconds": {
            evaluation.split: round(evaluation.seconds, 1) for evaluation in evaluations
        },
        "rows": finished.row_counts,
        "parameters": finished.model.num_parameters(),
        "vocabulary": len(recipe.tokenizer),
        "training": facts_of_training(finished, evaluations),
        "machine": facts_of_machine(trainer.args),
        "versions": {"hf_roformer_lite": __version__, **{name: version(name) for name in packages}},
    }


def facts_of_training(
    finished: FinishedTraining, evaluations: Sequence[Evaluation]
) -> dict[str, Any]:
    trainer = finished.trainer
    args = trainer.args
    state = trainer.state
    return {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0.0, 2),
        "minutes": round(trainer.clock.elapsed / 60, 2),
        "whole_command_minutes": round(trainer.clock.whole_command / 60, 2),
        "what_happened": what_happened(
            args,
            state.log_history,
            evaluations,
            finished.parts,
            finished.baselines,
            stopped_early=state.global_step < state.max_steps and not trainer.clock.is_over,
        ),
        "chosen_step": finished.chosen_step,
        "metric_for_best_model": args.metric_for_best_model.removeprefix("eval_"),
        "greater_is_better": args.greater_is_better,
        "best_metric": state.best_metric,
        "arguments": _shown_arguments(args, trainer.options),
        "own_weights": own_weights(finished.run),
        "fine_tuning_defaults": fine_tuning_defaults(finished.run),
    }


def facts_of_machine(args: TrainingArguments) -> dict[str, Any]:
    device = f"CPU ({platform.machine()})"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    cores = os.cpu_count()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return {
        "device": device,
        "processes": args.world_size,
        "threads": torch.get_num_threads(),
        "cores": cores,
    }


def notes_on_scores(recipe: Recipe, evaluation: Evaluation) -> list[str]:
    """What the scores of the answers are worth."""
    if evaluation.scores is None:
        return []
    error = calibration_error(evaluation.scores, evaluation.right)
    split = evaluation.split
    note = (
        f"On average a score of `predict` is {error:.3f} away from the fraction of answers that are "
        f"right (expected calibration error on the {split} data). "
        f"![Fraction of right answers]({RELIABILITY_FILE})"
    )
    if error > LARGE_CALIBRATION_ERROR:
        note += " These scores rank answers; they are not probabilities."
    return [note, *recipe.notes_on_threshold(evaluation.scores, evaluation.right, split)]


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
    baselines_right: BaselinesRight,
) -> str:
    """A sentence on the model and the best baseline, by the test data, or else the validation
    data."""
    if not baselines or not evaluations:
        return ""
    last = evaluations[-1]
    ours = last.metrics[metric]
    sign = -1 if metric in LOWER_IS_BETTER else 1
    theirs = {name: by_split[last.split][metric] for name, by_split in baselines.items()}
    name = max(theirs, key=lambda name: sign * theirs[name])
    values = (
        f"{metric} on the {last.split} data is {ours:.4f}, that of the best baseline, {name}, "
        f"{theirs[name]:.4f}"
    )
    are_equal = is_within_chance(metric, ours, theirs[name], last.measurements)
    if metric == "accuracy" and name in baselines_right:
        chance = mcnemar(last.right, baselines_right[name][last.split])
        are_equal = chance >= SIGNIFICANCE_LEVEL
        values += f" (McNemar's test of both on the same rows: p = {chance:.2g})"
    if are_equal:
        return (
            f"The model and the best baseline are about equal: its {values}; "
            f"{last.measurements:,} rows can't tell them apart."
        )
    if sign * ours > sign * theirs[name]:
        return f"The model is better than the baselines: its {values}."
    return f"A baseline is better: the model's {values}."


def what_happened(
    args: TrainingArguments,
    history: Sequence[dict[str, float]],
    evaluations: Sequence[Evaluation],
    parts: Baselines,
    baselines: Baselines,
    stopped_early: bool,
) -> str:
    """A sentence on a training whose best checkpoint was kept, for the summary and the card.

    Args:
        args, history: Of the trainer, and its log.
        evaluations: The final metrics.
        parts: The metrics of the model's parts alone.
        baselines: The metrics of the baselines, the simplest first.
        stopped_early: Whether neither the number of steps nor a time limit ended it.
    """
    metric = args.metric_for_best_model.removeprefix("eval_")
    measured = _of_validation(history, metric)
    if not args.load_best_model_at_end or not measured:
        return ""
    best, value = measured[_best(measured, args.greater_is_better)]
    name = metric.replace("_", " ")
    alone = " of the encoder alone" if parts else ""
    text = (
        f"The checkpoint after epoch {best['epoch']:.4g}, step {best['step']:,}, is kept, with the "
        f"best validation {name}{alone}, {value:.4g}."
    )
    last = measured[-1][0]
    if stopped_early and last["epoch"] < args.num_train_epochs - 0.5:
        text += f" Training stopped after epoch {last['epoch']:.4g}, as it no longer helped."
    validation = evaluations[0].metrics if evaluations else {}
    simplest = next(iter(baselines.values()), {}).get("validation", {})
    is_chance = metric in simplest and is_within_chance(
        metric, value, simplest[metric], evaluations[0].measurements
    )
    losses = _of_validation(history, "loss")
    lowest = losses[_best(losses, False)] if losses else None
    if is_chance:
        return f"{text} That is no better than the simplest baseline: it did not learn."
    if lowest is not None and losses[-1][1] > lowest[1] * (1 + SMALL_RISE):
        return (
            f"{text} The validation loss has risen since epoch {lowest[0]['epoch']:.4g}: from there "
            "on the model overfits."
        )
    is_perfect = any(validation.get(fraction) == 1 for fraction in FRACTIONS)
    if best is last and not is_perfect:
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
    value. A metric that only the Trainer measures is that of the checkpoint."""
    training = results["training"]
    name = training["metric_for_best_model"]
    return name, results["metrics"]["validation"].get(name, training["best_metric"])


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
    sentences = [results["verdict"], training["what_happened"], of_seeds]
    for sentence in filter(None, sentences):
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
