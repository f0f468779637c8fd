"""The results of a finished training, as they are saved in `results.json` and printed."""

import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from ..baseline.join import Join
from ..data.duplicates import SEEN
from ..evaluation import THIS_MODEL, Evaluation
from ..measuring.metrics import Metrics, best_of
from ..measuring.significance import SIGNIFICANCE_LEVEL, Baselines, p_value
from ..options.run import Run
from ..recipes.base import FittedBaseline, Recipe, Start
from .callbacks import seconds_of
from .cross_validation import CrossValidation
from .defaults import own_weights
from .pairs import PairTraining
from .trainer import RoFormerLiteTrainer

# The values on the card: `evaluate` needs the first two, and the defaults of the others depend on
# the task and the data. The command shows all other options.
SHOWN_ARGUMENTS = (
    "seed",
    "per_device_eval_batch_size",
    "learning_rate",
    "warmup_steps",
    "per_device_train_batch_size",
    "max_tokens_per_batch",
    "word_dropout",
    "ema_decay",
)


@dataclass
class FinishedTraining:
    """A finished training and everything known about it.

    Args:
        run: The run as it was given. For one of several seeds, it is the run of all seeds.
        start: The start of the training: the task with the information found in the data, the data,
            the model, which is trained now, and its tokenizer.
        trainer: The trainer, with all arguments and options filled in, and its log.
        baselines: The metrics of the baselines.
        joined: The baseline that joins the answer; None for the answer of the model alone.
        pairs: What the encoder has learned from pairs, if it has.
        validated: What is known from cross-validation, if rows were too few to hold some out.
    """

    run: Run
    start: Start
    trainer: RoFormerLiteTrainer
    baselines: Baselines
    joined: FittedBaseline | None
    pairs: PairTraining | None = None
    validated: CrossValidation | None = None

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


@dataclass
class Measurements:
    """The evaluations of a saved model.

    Args:
        recipe: The task, with the threshold that the validation data have chosen.
        evaluations: One for each split.
        parts: The metrics of the encoder alone, if a baseline joins the answer.
        settings_of_encoder: The settings of the encoder alone in this case.
        join: The weight of the encoder in the answer; None if no baseline joins it.
    """

    recipe: Recipe
    evaluations: list[Evaluation] = field(default_factory=list)
    parts: Baselines = field(default_factory=dict)
    settings_of_encoder: dict[str, Any] = field(default_factory=dict)
    join: Join | None = None


def summarise(finished: FinishedTraining, measured: Measurements) -> dict[str, Any]:
    """All results, in the form of `results.json`. The card and the printed summary show them."""
    recipe = measured.recipe
    evaluations = measured.evaluations
    metric = recipe.main_metric
    notes = recipe.notes()
    splits = finished.start.rows
    by_label = {}
    for evaluation in evaluations:
        # The training rows are cross-validated.
        rows = splits.get(evaluation.split, splits["train"])
        notes += recipe.notes_on(evaluation.split, rows, evaluation.outcomes)
        if SEEN in rows.column_names:
            notes.append(note_on_seen(metric, evaluation, rows))
        if evaluation.report:
            by_label[evaluation.split] = evaluation.report
    if measured.join is not None:
        notes.append(note_on_join(recipe, measured.join))
    packages = ("hf_roformer_lite", "transformers", "torch", recipe.library)
    others = {**measured.parts, **finished.baselines}
    args = finished.trainer.args
    device = f"CPU ({platform.machine()})"
    if args.device.type == "cuda":
        device = torch.cuda.get_device_name(args.device)
    return {
        "task": recipe.name,
        "command": finished.run.command(),
        "settings": recipe.settings(),
        "settings_of_encoder": measured.settings_of_encoder,
        "metrics": {evaluation.split: evaluation.metrics for evaluation in evaluations},
        "by_label": by_label,
        "main_metric": metric,
        # A note may hold for several splits.
        "notes": list(dict.fromkeys(notes)),
        "example_line": recipe.example_line(finished.start.tokenizer),
        "parts": metrics_of(measured.parts),
        "baselines": metrics_of(finished.baselines),
        "p_values": p_values(metric, evaluations, others),
        "verdict": verdict(metric, evaluations, finished.baselines),
        "rows": {
            **{split: len(rows) for split, rows in splits.items()},
            **{evaluation.split: evaluation.rows for evaluation in evaluations},
        },
        "parameters": finished.model.num_parameters(),
        "vocabulary": len(finished.start.tokenizer),
        "training": facts_of_training(finished),
        "machine": {"device": device, "processes": args.world_size},
        "versions": {name: version(name) for name in packages},
    }


def facts_of_training(finished: FinishedTraining) -> dict[str, Any]:
    trainer = finished.trainer
    state = trainer.state
    values = {**vars(trainer.options), **vars(trainer.args)}
    facts = {
        "steps": state.global_step,
        "epochs": round(state.epoch or 0.0, 2),
        "minutes": round(seconds_of(state) / 60, 2),
        "what_happened": what_happened(finished),
        "chosen_step": finished.chosen_step,
        "best_metric": state.best_metric,
        "arguments": {name: values[name] for name in SHOWN_ARGUMENTS},
        "own_weights": own_weights(finished.run),
    }
    if finished.pairs is not None:
        facts["pairs"] = asdict(finished.pairs)
    validated = finished.validated
    if validated is not None and validated.folds:
        facts["cross_validation"] = {
            "fitted_accuracy": validated.fitted_accuracy,
            "fine_tuned_accuracy": validated.fine_tuned_accuracy,
        }
    return facts


def note_on_join(recipe: Recipe, join: Join) -> str:
    """Sentences for the card about the baseline in the answer."""
    baseline: Any = recipe.baseline_class
    return (
        f"The answer joins the encoder (weight {join.weight:.2f}) and the baseline {baseline.name} "
        f"(weight {1 - join.weight:.2f}). `roformer-lite predict` and `evaluate` return this "
        f"answer; `{recipe.auto_model.__name__}`, pipelines and exported graphs return "
        "that of the encoder alone."
    )


def note_on_seen(metric: str, evaluation: Evaluation, rows: Dataset) -> str:
    """A sentence about the rows of a split whose input also occurs in the data used for training.
    It names files without their folders, because a card shows no path of this machine."""
    is_seen = np.array(rows[SEEN])
    first = Path(rows[int(is_seen.argmax())]["origin"]).name
    sentence = (
        f"{is_seen.sum():,} of the {len(rows):,} rows of the {evaluation.split} data also occur in "
        f"the data used for training, up to case and spaces, for example {first}."
    )
    if evaluation.without_seen is None:
        return sentence
    return f"{sentence} Without them, {metric} is {evaluation.without_seen:.4f}."


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
        systems = {THIS_MODEL: evaluation.by_row}
        systems |= {name: others[name][evaluation.split].by_row for name in others}
        values = {name: system.value for name, system in systems.items()}
        best = systems[best_of(metric, values)]
        found[evaluation.split] = {name: p_value(best, own) for name, own in systems.items()}
    return found


def verdict(metric: str, evaluations: Sequence[Evaluation], baselines: Baselines) -> str:
    """A sentence that compares the model with the best baseline, on the test data or otherwise on
    the validation data. The values are in the table of `comparison_table`. It is empty if there is
    no baseline or no evaluation."""
    if not baselines or not evaluations:
        return ""
    last = evaluations[-1]
    systems = {name: by_split[last.split].by_row for name, by_split in baselines.items()}
    values = {name: system.value for name, system in systems.items()}
    rival = best_of(metric, values)
    chance = p_value(last.by_row, systems[rival])
    relation = "does not differ significantly from"
    if chance < SIGNIFICANCE_LEVEL:
        pair = {"better": last.by_row.value, "worse": values[rival]}
        relation = f"is significantly {best_of(metric, pair)} than"
    return (
        f"The model {relation} the best baseline, {rival}, on the {last.split} data (paired "
        f"randomization test, p = {chance:.2g}, n = {len(last.by_row.rows):,})."
    )


def what_happened(finished: FinishedTraining) -> str:
    """Sentences for the summary and the card about learning from pairs, about the choice between
    the fitted head and fine-tuning, and about the checkpoint that is kept."""
    pairs = finished.pairs
    validated = finished.validated
    sentences = []
    if pairs is not None:
        sentences.append(
            f"The encoder first learned from pairs of texts, as in SetFit, in {pairs.steps} steps "
            f"of up to {pairs.texts_per_batch} texts ({pairs.seconds / 60:.2f} minutes)."
        )
    if validated is not None:
        sentences.append(validated.reason)
    if finished.chosen_step is not None:
        metric = finished.trainer.args.metric_for_best_model.removeprefix("eval_")
        owner = "its encoder" if finished.joined else "it"
        sentences.append(
            f"The checkpoint of step {finished.chosen_step:,} is kept, because {owner} has the "
            f"best validation {metric.replace('_', ' ')}, {finished.trainer.state.best_metric:.4g}."
        )
    if len(finished.start.rows) == 1 and (validated is None or not validated.folds):
        sentences.append("The model was not measured: there are no validation or test data.")
    return " ".join(sentences)


def comparison_table(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The main metric by split of the model, of its encoder alone and of the baselines. It is empty
    if there are no others than the model."""
    metric = results["main_metric"]
    others = {**results["parts"], **results["baselines"]}
    if not others:
        return {}
    rows = {THIS_MODEL: results["metrics"], **others}
    return {
        name: {split: values[metric] for split, values in by_split.items()}
        for name, by_split in rows.items()
    }


def predict_command(line: str, model: str) -> str:
    """A shell command that predicts for one line.

    Args:
        line: The line. A tab in it is written as an escape sequence, because terminals copy it as
            spaces.
        model: The directory of the model, or its name on the Hub.
    """
    escaped = line.replace("\\", r"\\").replace("%", "%%").replace("\t", r"\t")
    command = shlex.join(["printf", escaped + r"\n"])
    return f"{command} | roformer-lite predict {shlex.quote(model)}"


def print_summary(results: dict[str, Any], folder: Path) -> None:
    """Print the results of the card, followed by the location of the files."""
    compared = comparison_table(results)
    if results["metrics"]:
        print(table_of(pandas.DataFrame(results["metrics"]), results["task"], results["rows"]))
    if compared:
        title = f"{results['main_metric']} compared"
        print(table_of(pandas.DataFrame(compared).T, title, results["rows"]))
    sentences = [
        results["verdict"],
        *results["notes"],
        results["training"]["what_happened"],
        results.get("seeds", {}).get("sentence"),
        f"Model, tokenizer, card, results and run.yaml: {folder}",
        f"Use it: {predict_command(results['example_line'], str(folder))}",
    ]
    for sentence in filter(None, sentences):
        print(sentence)


def table_of(values: pandas.DataFrame, title: str, rows_of_splits: dict[str, int]) -> str:
    """A table of values by name and split, as text."""
    columns = [f"{split} ({rows_of_splits[split]:,} rows)" for split in values]
    return f"\n{title}\n{values.to_string(header=columns, float_format='{:.4f}'.format)}\n"
