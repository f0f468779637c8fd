"""`roformer-lite evaluate`: the metrics of a saved model on labelled data, and its worst
predictions."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas
from datasets import disable_progress_bars

from ..answers import SavedModel, open_model
from ..data.splits import load_splits
from ..errors import InputError
from ..evaluation import Evaluation, evaluate
from ..measuring.report import worst
from ..options.common import TrainingOptions
from ..recipes.base import Recipe
from ..saved.onnx_model import is_exported
from ..training.results import table_of
from .evaluate_options import EvaluateArguments

# The report shows this many of the worst predictions. Longer values are cut.
NUM_EXAMPLES = 5
MAX_SHOWN_CHARACTERS = 80


def main(options: EvaluateArguments, given: dict[str, Any], directory: str) -> None:
    """Run `roformer-lite evaluate DIR`. The arguments are those of `evaluate_model`."""
    # A file is read in less time than it takes to read a progress bar.
    disable_progress_bars()
    results = evaluate_model(options, given, directory)
    print(results["report"])
    print(table_of(pandas.DataFrame(results["metrics"]), results["task"], results["rows"]))
    for note in results["notes"]:
        print(note)


def evaluate_model(
    options: EvaluateArguments, given: dict[str, Any], directory: str
) -> dict[str, Any]:
    """Evaluate a saved model.

    Args:
        options: The options of the command.
        given: The given options about reading and measuring data, by name.
        directory: The directory of the model, or its name on the Hub.

    Returns:
        The results that `roformer_lite.evaluate` returns.

    Raises:
        InputError: for an exported model that generates text.
    """
    saved = open_model(directory, options.device)
    if is_exported(directory) and saved.model.can_generate():
        raise InputError(
            f"{directory}: exported models that generate text cannot be evaluated; pass the "
            "directory of the trained model"
        )
    recipe = recipe_for(saved, options, given)
    # The final metrics of the training depend on these arguments.
    of_training = saved.results.get("training", {}).get("arguments", {})
    batch_size = options.batch_size or of_training.get(
        "per_device_eval_batch_size", TrainingOptions.per_device_eval_batch_size
    )
    with TemporaryDirectory() as folder:
        rows = load_splits(recipe.reader, recipe.options, Path(folder), wanted=("test",))["test"]
        recipe = recipe.for_rows(saved, rows)
        found = evaluate(
            saved,
            recipe,
            split="test",
            rows=rows,
            batch_size=batch_size,
            seed=of_training.get("seed", TrainingOptions.seed),
        )
        notes = [*recipe.notes(), *recipe.notes_on("test", rows, found.outcomes)]
    return {
        "task": recipe.name,
        "settings": recipe.settings(),
        "metrics": {"test": found.metrics},
        "labels": found.report,
        "rows": {"test": found.rows},
        "notes": notes,
        "predictions": [
            {"origin": outcome.origin, **outcome.columns} for outcome in found.outcomes
        ],
        "report": _report_text(found),
    }


def recipe_for(saved: SavedModel, options: EvaluateArguments, given: dict[str, Any]) -> Recipe:
    """The recipe of the model for the given data. Given options override those of the training.

    Raises:
        InputError: for an option that models of this task do not have.
    """
    kind = type(saved.recipe)
    kind.refuse_others(given, kind.options_class.measuring_options)
    options_of_data = replace(
        saved.recipe.options,
        dataset_name=None,
        # The options require training data, but only the test data are read.
        train_file=options.test_file,
        test_file=options.test_file,
        column_names=options.column_names,
        **given,
    )
    return kind.of_model(options_of_data, saved.model.config, saved.results.get("settings", {}))


def _report_text(found: Evaluation) -> str:
    """The metrics of each label, and the worst predictions."""
    lines = []
    if found.report:
        table = pandas.DataFrame.from_dict(found.report, orient="index")
        lines.append(table.to_string(float_format="{:.4f}".format))
    shown = worst(found.outcomes, NUM_EXAMPLES)
    if shown:
        origins = [outcome.origin for outcome in shown]
        table = pandas.DataFrame([outcome.columns for outcome in shown], index=origins)
        lines += ["", "The worst answers:", table.to_string(max_colwidth=MAX_SHOWN_CHARACTERS)]
    return "\n".join(lines) + "\n"
