"""`roformer-lite evaluate`: the metrics of a saved model on labelled data, and its worst
predictions."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datasets import disable_progress_bars
from rich.console import Console

from hf_roformer_lite.version import __version__

from ..answers import SavedModel, open_model
from ..api import EvaluationResult
from ..data.splits import load_splits
from ..data.tables import TableWriter
from ..evaluation import Evaluation, evaluate
from ..measuring.confusion_picture import draw_confusion
from ..measuring.report import example_text, worst
from ..options.common import TrainingOptions
from ..output import RESULTS_FILE, complete_directory, write_json
from ..recipes.base import Recipe
from ..training.results import table_of
from .evaluate_options import EVALUATION_FILES, REPORT_FILE, EvaluateArguments

PICTURE_FILE = "confusion.png"
# These options about data have the same names as in the training.
_DATA = (
    "test_file",
    "dataset_name",
    "dataset_config_name",
    "test_split",
    "column_names",
    "delimiter",
)


def main(
    options: EvaluateArguments, given: dict[str, Any], directory: str, argv: Sequence[str]
) -> None:
    """Run `roformer-lite evaluate DIR`. The arguments are those of `evaluate_model`."""
    # A file is read in less time than it takes to read a progress bar.
    disable_progress_bars()
    evaluated = evaluate_model(options, given, directory, argv)
    results = evaluated.results
    print(evaluated.report)
    metrics = {name: {"test": value} for name, value in evaluated.metrics.items()}
    Console().print(table_of(metrics, results["task"], results["rows"]))
    for note in results["notes"]:
        print(note)
    if options.output_dir is not None:
        print(f"The evaluation is saved in {options.output_dir}")


def evaluate_model(
    options: EvaluateArguments, given: dict[str, Any], directory: str, argv: Sequence[str]
) -> EvaluationResult:
    """Evaluate a saved model, and write the output directory if there is one.

    Args:
        options: The options of the command.
        given: The given options about reading and measuring data, by name.
        directory: The directory of the model, or its name on the Hub.
        argv: The command line, which is written to the results.
    """
    saved = open_model(directory, options.device)
    recipe = recipe_for(saved, options, given, saved.results.get("settings", {}))
    # The final metrics of the training depend on these arguments.
    arguments = {
        "seed": TrainingOptions.seed,
        "per_device_eval_batch_size": TrainingOptions.per_device_eval_batch_size,
    }
    training = saved.results.get("training")
    if isinstance(training, dict) and isinstance(training.get("arguments"), dict):
        of_training = training["arguments"]
        arguments |= {name: of_training[name] for name in arguments if name in of_training}
    if options.batch_size is not None:
        arguments["per_device_eval_batch_size"] = options.batch_size
    with TemporaryDirectory(prefix="roformer-lite-evaluate-") as folder:
        rows = load_splits(recipe.reader, recipe.options, Path(folder), wanted=("test",))["test"]
        recipe = recipe.for_rows(saved, rows)
        found = evaluate(
            replace(saved, recipe=recipe),
            recipe,
            split="test",
            rows=rows,
            batch_size=arguments["per_device_eval_batch_size"],
            seed=arguments["seed"],
        )
        notes = [*recipe.notes(), *recipe.notes_on("test", rows, found.outcomes)]
    results = {
        "task": recipe.name,
        "command": shlex.join(["roformer-lite", "evaluate", *argv]),
        "settings": recipe.settings(),
        "metrics": {"test": found.metrics},
        "labels": {} if found.report is None else found.report.scores,
        "rows": {"test": found.rows},
        "notes": notes,
        "arguments": arguments,
        "device": str(saved.model.device),
        "version": __version__,
    }
    evaluated = EvaluationResult(
        metrics=found.metrics,
        rows=[{"origin": outcome.origin, **outcome.columns} for outcome in found.outcomes],
        report=_report_text(found, options.examples),
        results=results,
    )
    if options.output_dir is not None:
        _save(evaluated, found, Path(options.output_dir), options)
    return evaluated


def recipe_for(
    saved: SavedModel, options: EvaluateArguments, given: dict[str, Any], settings: dict[str, Any]
) -> Recipe:
    """The recipe of the model for the given data. Given options override those of the training.

    Raises:
        InputError: for an option that models of this task do not have, and for a length beyond the
            positions of the model.
    """
    kind = type(saved.recipe)
    kind.refuse_others(given, kind.options_class.measuring_options)
    data = {name: getattr(options, name) for name in _DATA}
    # The options require training data, but only the test data are read.
    data["train_file"] = options.test_file
    options_of_data = replace(saved.recipe.options, **data, **given)
    recipe = kind.of_model(options_of_data, saved.model.config, settings)
    if saved.positions is not None:
        recipe = recipe.limited_to(saved.positions, recipe.options)
    set_lengths(saved, recipe, given)
    return recipe


def set_lengths(saved: SavedModel, recipe: Recipe, given: dict[str, Any]) -> None:
    """Let the model read and generate as many tokens as the given options say."""
    if given.keys() & {"max_length", "max_source_length"}:
        saved.tokenizer.model_max_length = recipe.max_length
        if hasattr(saved.model, "max_seq_length"):
            # Models of sentence-transformers have a limit of their own.
            saved.model.max_seq_length = recipe.max_length
    if "max_target_length" in given:
        # The length includes the start token.
        saved.model.generation_config.max_length = given["max_target_length"] + 1
        saved.model.generation_config.max_new_tokens = None


def _report_text(found: Evaluation, examples: int) -> str:
    """The metrics of each label, and the worst predictions."""
    lines = []
    if found.report is not None:
        lines.append(found.report.text.rstrip("\n"))
    shown = worst(found.outcomes, examples)
    if shown:
        lines += ["", "The worst answers:", *map(example_text, shown)]
    return "\n".join(lines) + "\n"


def _save(
    evaluated: EvaluationResult, found: Evaluation, target: Path, options: EvaluateArguments
) -> None:
    """Write the output directory."""
    with complete_directory(
        target, "the evaluation", options.overwrite_output_dir, EVALUATION_FILES
    ) as folder:
        if evaluated.rows:
            table_file = folder / f"predictions.{options.table_format}"
            with table_file.open("w", encoding="utf-8") as stream:
                table = TableWriter(stream, f".{options.table_format}")
                for row in evaluated.rows:
                    table.write(row)
        report = found.report
        if report is not None and report.true:
            draw_confusion(report.true, report.predicted, folder / PICTURE_FILE)
        (folder / REPORT_FILE).write_text(evaluated.report, "utf-8")
        write_json(folder / RESULTS_FILE, evaluated.results)
