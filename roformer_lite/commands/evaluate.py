"""`roformer-lite evaluate`: the metrics of a saved model on labelled data, and what it got
wrong."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from hf_roformer_lite.version import __version__

from ..answers import SavedModel, open_model
from ..command_options import (
    EVALUATION_BATCH_SIZE,
    EVALUATION_FILES,
    REPORT_FILE,
    EvaluateArguments,
)
from ..data.splits import load_splits
from ..errors import InputError
from ..evaluate.confusion_picture import draw_confusion
from ..evaluate.evaluation import Evaluation, evaluate
from ..evaluate.report import confused_pairs, example_text, worst
from ..output import RESULTS_FILE, complete_directory
from ..recipes.base import Recipe
from ..tables import TableWriter

PICTURE_FILE = "confusion.png"
# The default seed of a training, which is used if no other was saved with the model.
_SEED = 42
# The names are those of the training.
_DATA = ("dataset_name", "dataset_config_name", "test_split", "column_names")


def main(
    options: EvaluateArguments, given: dict[str, Any], directory: str, argv: Sequence[str]
) -> None:
    """Run `roformer-lite evaluate DIR`.

    Args:
        options: What to measure on, and how.
        given: Of the options by which data are read and measured, those that were given.
        directory: The model's directory, or its name on the Hub.
        argv: The line, which the results show.
    """
    saved = open_model(directory, options.device)
    recipe = recipe_for(saved, options, given, saved.results.get("settings", {}))
    arguments = noted_arguments(saved.results.get("training"), options)
    with TemporaryDirectory(prefix="roformer-lite-evaluate-") as folder:
        rows = load_splits(recipe, recipe.options, Path(folder), seed=0, wanted=("test",))["test"]
        found = evaluate(
            saved=replace(saved, recipe=recipe),
            split="test",
            rows=rows,
            batch_size=arguments["per_device_eval_batch_size"],
            seed=arguments["seed"],
        )
    text = _report_text(found, options.examples)
    print(text)
    _print_metrics(recipe.name, found)
    for note in [*recipe.notes(), *found.warnings]:
        print(note)
    if options.output_dir is not None:
        results = {
            "task": recipe.name,
            "command": shlex.join(["roformer-lite", "evaluate", *argv]),
            "settings": recipe.settings(),
            "metrics": {"test": found.metrics},
            "labels": {} if found.report is None else found.report.scores,
            "evaluation_seconds": {"test": round(found.seconds, 1)},
            "rows": {"test": found.rows},
            "arguments": arguments,
            "device": str(saved.model.device),
            "version": __version__,
        }
        _save(options, results, text, found)
        print(f"Results, report, picture and predictions: {options.output_dir}")


def recipe_for(
    saved: SavedModel, options: EvaluateArguments, given: dict[str, Any], settings: dict[str, Any]
) -> Recipe:
    """The recipe of the model for the data that are given. Explicit options override those of its
    training."""
    kind = type(saved.recipe)
    options_class = kind.options_class
    refused = [name for name in given if name not in options_class.measuring_options]
    if refused:
        theirs = ", ".join(f"--{name}" for name in options_class.measuring_options)
        raise InputError(f"--{refused[0]} is not for {kind.name} models, which take {theirs}")
    noted = {name: getattr(saved.recipe.options, name) for name in options_class.measuring_options}
    data = {name: getattr(options, name) for name in _DATA}
    # Only the test data are read.
    files = {"train_file": options.test_file, "test_file": options.test_file}
    recipe = kind(options_class(**{**data, **files, **noted, **given}))
    recipe.inspect_model(saved.model.config, settings)
    recipe.check_data_options()
    recipe.tokenizer = saved.tokenizer
    if given.keys() & {"max_length", "max_source_length"}:
        longest = min(recipe.max_length, saved.tokenizer.model_max_length)
        saved.tokenizer.model_max_length = longest
    return recipe


def noted_arguments(training: Any, options: EvaluateArguments) -> dict[str, Any]:
    """The arguments of the training that its final metrics depend on, as far as the results of the
    `training` have them."""
    noted = (training.get("arguments") if isinstance(training, dict) else None) or {}
    arguments = {"seed": _SEED, "per_device_eval_batch_size": EVALUATION_BATCH_SIZE}
    arguments |= {name: value for name, value in noted.items() if name in arguments}
    if options.batch_size is not None:
        arguments["per_device_eval_batch_size"] = options.batch_size
    return arguments


def _report_text(found: Evaluation, examples: int) -> str:
    """The report: scores by label, what is confused, the worst answers."""
    lines = []
    if found.report is not None:
        lines.append(found.report.text.rstrip("\n"))
        pairs = confused_pairs(found.report)
        if pairs:
            lines += ["Most often confused (true -> predicted):", *pairs]
    shown = worst(found.outcomes, examples)
    if shown:
        lines += ["", "The worst answers:", *map(example_text, shown)]
    return "\n".join(lines) + "\n"


def _print_metrics(task: str, found: Evaluation) -> None:
    table = Table("metric", title=f"{task}: {found.rows:,} rows in {found.seconds:.1f} s")
    table.add_column("value", justify="right")
    for name, value in found.metrics.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)


def _save(
    options: EvaluateArguments, results: dict[str, Any], text: str, found: Evaluation
) -> None:
    """Write the output directory, as a whole."""
    target = Path(options.output_dir)
    with complete_directory(
        target, "the evaluation", options.overwrite_output_dir, EVALUATION_FILES
    ) as folder:
        table_file = folder / f"predictions.{options.table_format}"
        with table_file.open("w", encoding="utf-8") as stream:
            table = TableWriter(stream, f".{options.table_format}")
            for outcome in found.outcomes:
                table.write({"origin": outcome.origin, **outcome.columns})
        report = found.report
        if report is not None and report.true:
            numbered = draw_confusion(report.true, report.predicted, folder / PICTURE_FILE)
            for name, label in numbered.items():
                text += f"{name} in {PICTURE_FILE} is {label}\n"
        (folder / REPORT_FILE).write_text(text, "utf-8")
        content = json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False)
        (folder / RESULTS_FILE).write_text(content + "\n", "utf-8")
