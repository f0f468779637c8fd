"""The results of a finished training, as they are saved in `results.json` and printed."""

import platform
import shlex
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedModel, Trainer, TrainingArguments

from hf_roformer_lite.version import __version__

from ..baseline.join import Join
from ..data.data_files import Row
from ..data.duplicates import SEEN
from ..evaluation import THIS_MODEL, Evaluation
from ..measuring.metrics import LOWER_IS_BETTER, Metrics
from ..measuring.significance import SIGNIFICANCE_LEVEL, Baselines, RowMetric, p_value
from ..options.common import TrainingOptions
from ..options.run import Run
from ..recipes.base import FittedBaseline, Recipe, Start
from .defaults import own_weights
from .stages import Stages

# The training arguments that shape the result.
SHOWN_ARGUMENTS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "max_grad_norm",
    "label_smoothing_factor",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "max_steps",
    "seed",
    "optim",
    "optim_args",
    "bf16",
    "fp16",
    "generation_num_beams",
    "per_device_eval_batch_size",
)
SHOWN_OPTIONS = (
    "optim",
    "max_tokens_per_batch",
    "time_limit_minutes",
    "ema_decay",
    "word_dropout",
)
RELIABILITY_FILE = "reliability.png"


@dataclass
class FinishedTraining:
    """A finished training and everything known about it.

    Args:
        run: The run as it was given. For one of several seeds, it is the run of all seeds.
        start: The start of the training: the task with the information found in the data, the model,
            which is trained now, and its tokenizer.
        trainer: The trainer, with all arguments and options filled in, its log and its clock.
        rows, encoded: The data as rows and as model inputs.
        baselines: The metrics of the baselines.
        joined: The baseline that joins the answer; None for the answer of the model alone.
        stages: What was done before the steps of the trainer.
        cross_validated: The evaluation by cross-validation, if there is one.
    """

    run: Run
    start: Start
    trainer: Trainer
    rows: DatasetDict
    encoded: DatasetDict
    baselines: Baselines
    joined: FittedBaseline | None
    stages: Stages = field(default_factory=Stages)
    cross_validated: Evaluation | None = None

    @property
    def recipe(self) -> Recipe:
        """The task."""
        return self.start.recipe

    @property
    def model(self) -> PreTrainedModel:
        """The trained model."""
        return self.start.model

    @property
    def chosen_step(self) -> int | None:
        """The step of the checkpoint that is kept; None for the last one."""
        if not self.trainer.args.load_best_model_at_end:
            return None
        return self.trainer.state.best_global_step

    @property
    def row_counts(self) -> dict[str, int]:
        """The number of rows of each split."""
        counts = {split: len(rows) for split, rows in self.rows.items()}
        if self.cross_validated is not None:
            counts[self.cross_validated.split] = self.cross_validated.rows
        return counts

    def example(self, from_data: bool) -> Row:
        """A row for the card: a made-up one, or one of the data if that is requested."""
        if from_data:
            return self.rows.get("validation", self.rows["train"])[0]
        return self.recipe.neutral_example


@dataclass
class Measurements:
    """The evaluations of a saved model.

    Args:
        recipe: The task, with the threshold that the validation data have chosen.
        evaluations: One for each split.
        parts: The metrics of the encoder alone, if a baseline joins the answer.
        join: The weight of the encoder in the answer; None if no baseline joins it.
    """

    recipe: Recipe
    evaluations: list[Evaluation] = field(default_factory=list)
    parts: Baselines = field(default_factory=dict)
    join: Join | None = None


def summarise(finished: FinishedTraining, measured: Measurements) -> dict[str, Any]:
    """All results, in the form of `results.json`."""
    run = finished.run
    recipe = measured.recipe
    evaluations = measured.evaluations
    packages = ("transformers", "torch", "tokenizers", "datasets", "accelerate", recipe.library)
    notes = recipe.notes()
    warnings = []
    for evaluation in evaluations:
        # The training rows are cross-validated.
        rows = finished.rows.get(evaluation.split, finished.rows["train"])
        notes += recipe.notes_on(evaluation.split, rows, evaluation.outcomes)
        if SEEN in rows.column_names:
            warnings.append(note_on_seen(recipe.main_metric, evaluation, rows))
    if measured.join is not None:
        notes.append(note_on_join(finished, measured.join))
    if evaluations and evaluations[-1].scores is not None:
        notes.append(f"![Accuracy of the predictions by their confidence]({RELIABILITY_FILE})")
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
        "system": evaluations[-1].system if evaluations else THIS_MODEL,
        "notes": [*notes, *warnings],
        "warnings": warnings,
        "card_example": run.card.card_example,
        "without_seen_rows": {
            evaluation.split: {recipe.main_metric: evaluation.without_seen}
            for evaluation in evaluations
            if evaluation.without_seen is not None
        },
        "example_line": recipe.example_line(
            finished.example(run.card.card_example), finished.start.tokenizer
        ),
        "parts": metrics_of(measured.parts),
        "baselines": metrics_of(finished.baselines),
        "p_values": p_values(
            recipe.main_metric, evaluations, {**measured.parts, **finished.baselines}
        ),
        "verdict": verdict(recipe.main_metric, evaluations, finished.baselines),
        "rows": finished.row_counts,
        "parameters": finished.model.num_parameters(),
        "vocabulary": len(finished.start.tokenizer),
        "training": facts_of_training(finished),
        "machine": facts_of_machine(finished.trainer.args),
        "versions": {"hf_roformer_lite": __version__, **{name: version(name) for name in packages}},
    }


def facts_of_training(finished: FinishedTraining) -> dict[str, Any]:
    trainer = finished.trainer
    args = trainer.args
    state = trainer.state
    facts = {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0.0, 2),
        "minutes": round(trainer.clock.elapsed / 60, 2),
        "what_happened": what_happened(finished),
        "lengths": finished.recipe.sentence_on_lengths(finished.start, finished.encoded["train"]),
        "chosen_step": finished.chosen_step,
        "metric_for_best_model": args.metric_for_best_model.removeprefix("eval_"),
        "greater_is_better": args.greater_is_better,
        "best_metric": state.best_metric,
        "arguments": shown_arguments(args, trainer.options),
        "own_weights": own_weights(finished.run),
    }
    pairs = finished.stages.pairs
    if pairs is not None:
        facts["pairs"] = asdict(pairs)
    validated = finished.stages.cross_validation
    if validated is not None:
        facts["cross_validation"] = {
            "fitted_accuracy": validated.fitted_accuracy,
            "fine_tuned_accuracy": validated.fine_tuned_accuracy,
            "minutes_to_compare": round(validated.minutes_to_compare, 2),
        }
    if not state.global_step:
        facts["arguments"] = {"seed": args.seed}
    return facts


def facts_of_machine(args: TrainingArguments) -> dict[str, Any]:
    device = f"CPU ({platform.machine()})"
    if args.device.type == "cuda":
        device = torch.cuda.get_device_name(args.device)
    return {"device": device, "processes": args.world_size, "threads": torch.get_num_threads()}


def note_on_join(finished: FinishedTraining, join: Join) -> str:
    """Sentences for the card about the baseline in the answer."""
    name = finished.recipe.baseline_name
    note = (
        f"The answer joins the encoder (weight {join.weight:.2f}) and the baseline {name} "
        f"(weight {1 - join.weight:.2f}). `roformer-lite predict` and `evaluate` return this "
        f"answer; `{finished.recipe.auto_model.__name__}`, pipelines and exported graphs return "
        "that of the encoder alone."
    )
    if finished.joined.final is not finished.joined.of_training:
        note += (
            f" After the validation metrics were measured, the {name} was fitted again, to the "
            "training and the validation rows together."
        )
    return note


def note_on_seen(metric: str, evaluation: Evaluation, rows: Dataset) -> str:
    """A sentence about the rows of a split whose input also occurs in the training data. It names
    files without their folders, because a card shows no path of this machine."""
    is_seen = np.array(rows[SEEN])
    first = Path(rows[int(is_seen.argmax())]["origin"]).name
    sentence = (
        f"{is_seen.sum():,} of the {len(rows):,} rows of the {evaluation.split} data also occur in "
        f"the training data, up to case and spaces, for example {first}."
    )
    if evaluation.without_seen is None:
        return sentence
    return f"{sentence} Without them, {metric} is {evaluation.without_seen:.4f}."


def shown_arguments(args: TrainingArguments, options: TrainingOptions) -> dict[str, Any]:
    values = {name: getattr(args, name, None) for name in SHOWN_ARGUMENTS}
    values |= {name: getattr(options, name) for name in SHOWN_OPTIONS}
    if options.max_tokens_per_batch:
        values["per_device_train_batch_size"] = None
    if args.max_steps > 0:
        values["num_train_epochs"] = None
    return {
        name: getattr(value, "value", value)
        for name, value in values.items()
        # A value of 0 means that something is not used, but 0 is a valid seed.
        if name == "seed" or value not in (None, False, -1)
    }


def metrics_of(baselines: Baselines) -> dict[str, dict[str, Metrics]]:
    """The metrics by baseline and split."""
    return {
        name: {split: measured.metrics for split, measured in by_split.items()}
        for name, by_split in baselines.items()
    }


def p_values(
    metric: str, evaluations: Sequence[Evaluation], others: Baselines
) -> dict[str, dict[str, float]]:
    """The p-value of the difference of each system from the best one, by split and system: of the
    model, of its encoder alone and of the baselines. It is 1 for the best one. Empty if there are
    no others than the model."""
    found = {}
    for evaluation in evaluations if others else ():
        systems = {evaluation.system: evaluation.by_row}
        systems |= {name: others[name][evaluation.split].by_row for name in others}
        best = systems[best_of(metric, systems)]
        found[evaluation.split] = {name: p_value(best, own) for name, own in systems.items()}
    return found


def best_of(metric: str, systems: dict[str, RowMetric]) -> str:
    """The name of the best system. The first one of equally good ones is chosen."""
    choose = min if metric in LOWER_IS_BETTER else max
    return choose(systems, key=lambda name: systems[name].value)


def verdict(metric: str, evaluations: Sequence[Evaluation], baselines: Baselines) -> str:
    """A sentence that compares the model with the best baseline, on the test data or otherwise on
    the validation data. The values are in the table of `comparison_table`. It is empty if there is
    no baseline, or no evaluation of the model itself."""
    own = [evaluation for evaluation in evaluations if evaluation.system == THIS_MODEL]
    if not baselines or not own:
        return ""
    last = own[-1]
    systems = {name: by_split[last.split].by_row for name, by_split in baselines.items()}
    rival = best_of(metric, systems)
    pair = {THIS_MODEL: last.by_row, rival: systems[rival]}
    best = best_of(metric, pair)
    chance = min(p_value(pair[best], by_row) for by_row in pair.values())
    where = f"on the {last.split} data"
    test = f"(paired randomization test, p = {chance:.2g}, n = {len(last.by_row.rows):,})"
    if chance >= SIGNIFICANCE_LEVEL:
        return (
            f"The model and the best baseline, {rival}, do not differ significantly {where} {test}."
        )
    if best == THIS_MODEL:
        return f"The model is significantly better than the best baseline, {rival}, {where} {test}."
    return f"The best baseline, {rival}, is significantly better than the model {where} {test}."


def what_happened(finished: FinishedTraining) -> str:
    """Sentences for the summary and the card about learning from pairs, about the choice between
    the fitted head and fine-tuning, and about the checkpoint that is kept."""
    stages = finished.stages
    state = finished.trainer.state
    sentences = []
    if stages.pairs is not None:
        sentences.append(
            f"The encoder learned from {stages.pairs.pairs:,} pairs of texts, as in SetFit, in "
            f"{stages.pairs.steps:,} steps with up to {stages.pairs.texts_per_batch} texts each."
        )
        if stages.pairs.steps < stages.pairs.planned_steps:
            sentences.append(
                "`--time_limit_minutes` ended this stage, for which "
                f"{stages.pairs.planned_steps:,} steps were planned."
            )
    if stages.cross_validation is not None:
        sentences.append(stages.cross_validation.reason)
        sentences.append(stages.cross_validation.meaning)
    if finished.trainer.clock.is_over and state.global_step < state.max_steps:
        sentences.append(
            f"`--time_limit_minutes` ended the training after {state.global_step:,} of "
            f"{state.max_steps:,} steps."
        )
    if finished.chosen_step is not None:
        metric = finished.trainer.args.metric_for_best_model.removeprefix("eval_")
        owner = "its encoder" if finished.joined else "it"
        sentences.append(
            f"The checkpoint of step {finished.chosen_step:,} is kept, because {owner} has the best "
            f"validation {metric.replace('_', ' ')}, {state.best_metric:.4g}."
        )
    if finished.row_counts.keys() <= {"train"}:
        sentences.append("The model was not measured: there are no validation or test data.")
    return " ".join(filter(None, sentences))


def comparison_table(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The main metric by split of the model, of its encoder alone and of the baselines. It is empty
    if there are no others than the model."""
    metric = results["main_metric"]
    others = {**results["parts"], **results["baselines"]}
    if not others:
        return {}
    rows = {results["system"]: results["metrics"], **others}
    return {
        name: {split: values[metric] for split, values in by_split.items()}
        for name, by_split in rows.items()
    }


def not_worse(results: dict[str, Any]) -> set[tuple[str, str]]:
    """The cells of `comparison_table` that are not significantly worse than the best one of their
    split, as pairs of a name and a split."""
    return {
        (name, split)
        for split, chances in results["p_values"].items()
        for name, chance in chances.items()
        if chance >= SIGNIFICANCE_LEVEL
    }


def chosen_by(results: dict[str, Any]) -> tuple[str, float]:
    """The name and value of the validation metric that decides between models of several seeds. A
    metric that only the Trainer computes has the value of the checkpoint. If no checkpoint was
    evaluated, the main metric decides."""
    training = results["training"]
    name = training["metric_for_best_model"]
    value = results["metrics"]["validation"].get(name, training["best_metric"])
    if value is None:
        name = results["main_metric"]
        value = results["metrics"]["validation"][name]
    return name, value


def seeds_sentence(results: dict[str, Any]) -> str:
    """A sentence with the mean and standard deviation of the main metric over several seeds, and
    the reason for the seed that is kept."""
    seeds = results["seeds"]
    metric = results["main_metric"]
    split = list(results["metrics"])[-1]
    mean = seeds["mean"][split][metric]
    deviation = seeds["standard_deviation"][split][metric]
    name, value = chosen_by(results)
    return (
        f"Over the seeds {', '.join(seeds['metrics'])}, the {metric} on the {split} data is "
        f"{mean:.4f} ± {deviation:.4f} (mean and standard deviation). The model of seed "
        f"{seeds['kept']} is kept, because it has the best validation {name}, {value:.4f}."
    )


def predict_command(line: str, model: str) -> str:
    """A shell command that predicts for one line.

    Args:
        line: The line. A tab in it is written as an escape sequence, because terminals copy it as
            spaces.
        model: The directory of the model, or its name on the Hub.
    """
    command = shlex.join(["echo", line])
    if "\t" in line:
        escaped = line.replace("\\", r"\\").replace("%", "%%").replace("\t", r"\t")
        command = shlex.join(["printf", escaped + r"\n"])
    return f"{command} | roformer-lite predict {shlex.quote(model)}"


def print_summary(results: dict[str, Any], folder: Path) -> None:
    """Print the final metrics as tables, followed by notes and the location of the files."""
    console = Console(markup=False, highlight=False)
    by_split = results["metrics"]
    names: dict[str, float] = next(iter(by_split.values()), {})
    by_name = {
        name: {split: metrics[name] for split, metrics in by_split.items()} for name in names
    }
    tables = {
        f"{results['task']}: {results['parameters']:,} parameters": by_name,
        f"{results['main_metric']} compared": comparison_table(results),
    }
    for title, values in tables.items():
        if values:
            console.print(table_of(values, title, results["rows"], bold=not_worse(results)))
    training = results["training"]
    sentences = [results["verdict"], training["what_happened"], *results["warnings"]]
    if "seeds" in results:
        sentences.append(seeds_sentence(results))
    sentences += [
        durations_sentence(training),
        f"Model, tokenizer, card, results and run.yaml: {folder}",
        f"Use it: {predict_command(results['example_line'], str(folder))}",
    ]
    for sentence in filter(None, sentences):
        print(sentence)


def durations_sentence(training: dict[str, Any]) -> str:
    """The steps and minutes of the stages of a training."""
    parts = []
    if "pairs" in training:
        pairs = training["pairs"]
        steps = _counted(pairs["steps"], "step")
        parts.append(f"{steps} on pairs in {_counted(pairs['seconds'] / 60, 'minute')}")
    if training["steps"]:
        parts.append(
            f"{_counted(training['steps'], 'step')}, {_counted(training['epochs'], 'epoch')}, in "
            f"{_counted(training['minutes'], 'minute')}"
        )
    return f"Training: {'; '.join(parts)}"


def table_of(
    values: dict[str, dict[str, float]],
    title: str,
    rows_of_splits: dict[str, int],
    bold: Collection[tuple[str, str]] = (),
) -> Table:
    """A table of values by name and split, some of them in bold. On a narrow terminal only the names
    are wrapped."""
    splits = list(next(iter(values.values())))
    table = Table(title=title)
    table.add_column(overflow="fold")
    for split in splits:
        heading = f"{split}\n{_counted(rows_of_splits[split], 'row')}"
        table.add_column(heading, justify="right", no_wrap=True)
    for name, by_split in values.items():
        cells = [
            Text(f"{by_split[split]:.4f}", style="bold" if (name, split) in bold else "")
            for split in splits
        ]
        table.add_row(name, *cells)
    return table


def _counted(number: float, word: str) -> str:
    """A number with its unit, such as `1 epoch` or `2.5 minutes`."""
    shown = f"{number:,.2f}".removesuffix("0").removesuffix("0").removesuffix(".")
    plural = "" if number == 1 else "s"
    return f"{shown} {word}{plural}"
