"""`roformer-lite evaluate`: the metrics of a saved model on labelled data, and what it got
wrong."""

import json
import shlex
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from transformers.hf_argparser import HfArg

from ..command_parser import CommandParser
from ..errors import (
    LARGEST_BATCH,
    TRAINING_PACKAGES,
    InputError,
    check_file,
    check_model_name,
    check_number,
    require_packages,
)
from ..output import RESULTS_FILE, check_output_dir, check_place, complete_directory
from ..tables import TableWriter
from ..task_options import TASK_ARGUMENTS

if TYPE_CHECKING:
    from ..answers import SavedModel
    from ..evaluate.evaluation import Evaluation
    from ..recipes.base import Recipe

REPORT_FILE, PICTURE_FILE = "report.txt", "confusion.png"
_SIGNS = (REPORT_FILE, RESULTS_FILE)  # of a finished evaluation
_BATCH_SIZE, _SEED = 64, 42  # of a training, unless it notes others
# The names are those of the training.
_DATA = ("dataset_name", "dataset_config_name", "test_split", "column_names")


@dataclass
class EvaluateArguments:
    """Options of `roformer-lite evaluate`, besides the model directory and how the data are
    read."""

    test_file: list[str] | None = HfArg(
        default=None,
        help=(
            "Labelled data: .tsv, .csv, .jsonl or .txt, also .gz; several are read one after "
            "another."
        ),
    )
    dataset_name: str | None = HfArg(default=None, help="A dataset on the Hub, instead of files.")
    dataset_config_name: str | None = HfArg(
        default=None, help="Configuration of that dataset, if it has several."
    )
    test_split: str = HfArg(default="test", help="Split of that dataset.")
    column_names: list[str] | None = HfArg(
        default=None, help="Names of the columns of .tsv and .csv files that have no header line."
    )
    output_dir: str | None = HfArg(
        default=None,
        help=(
            "Directory for results, report, picture and the table of all predictions. "
            "Default: none."
        ),
    )
    overwrite_output_dir: bool = HfArg(default=False, help="Replace an earlier evaluation there.")
    table_format: Literal["csv", "jsonl"] = HfArg(default="csv", help="Format of that table.")
    examples: int = HfArg(default=5, help="How many of the worst answers to print.")
    batch_size: int | None = HfArg(
        default=None,
        help=f"Rows in a batch. Default: as in the evaluation after training, otherwise {_BATCH_SIZE}.",
    )
    device: str | None = HfArg(
        default=None, help="cpu, cuda, cuda:1 … Default: cuda if there is one."
    )

    def __post_init__(self):
        if (self.test_file is None) == (self.dataset_name is None):
            raise InputError("give either --test_file or --dataset_name")
        for path in self.test_file or ():
            check_file("test_file", path)
        check_number("examples", self.examples, at_least=0)
        check_number("batch_size", self.batch_size, at_least=1, at_most=LARGEST_BATCH)
        if self.output_dir is not None:
            self.output_dir = check_place("output_dir", self.output_dir)
            check_output_dir(
                Path(self.output_dir), self.overwrite_output_dir, _SIGNS, "an evaluation"
            )


def measuring_arguments() -> type:
    """A dataclass of the options of `train` by which labelled data are read and measured, of all
    tasks together. None stands for what the model was trained with."""
    found: dict[str, tuple[Any, str, list[str]]] = {}  # type, help and tasks of each option
    for task, arguments in TASK_ARGUMENTS.items():
        hints = get_type_hints(arguments)
        for each in fields(arguments):
            if each.name in arguments.measuring_options:
                found.setdefault(each.name, (hints[each.name] | None, each.metadata["help"], []))[
                    2
                ].append(task)
    made = make_dataclass(
        "MeasuringArguments",
        [
            (name, hint, HfArg(default=None, help=f"{', '.join(tasks)}: {help}"))
            for name, (hint, help, tasks) in found.items()
        ],
    )
    made._argument_group_name = "reading and measuring (defaults are those of the model's training)"
    return made


def main(argv: list[str]) -> None:
    """Run `roformer-lite evaluate DIR`."""
    parser = CommandParser(
        "evaluate",
        "Measure a trained model on labelled data: the metrics of its model card, scores by label, and the worst "
        "answers.",
        [EvaluateArguments, measuring_arguments()],
        DIR="the model's directory, or its name on the Hub",
    )
    options, measuring, paths = parser.parse(argv)
    given = {name: value for name, value in vars(measuring).items() if value is not None}
    require_packages("evaluating", TRAINING_PACKAGES)
    check_model_name(paths.dir)

    from transformers.utils.logging import disable_progress_bar

    from hf_roformer_lite.version import __version__

    from ..answers import open_model
    from ..data.splits import load_splits
    from ..evaluate.evaluation import evaluate

    disable_progress_bar()
    saved = open_model(paths.dir, options.device)
    recipe = recipe_for(saved, options, given, paths.dir)
    arguments = noted_arguments(paths.dir, options)
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
    for note in recipe.notes():
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
    saved: "SavedModel", options: EvaluateArguments, given: dict[str, Any], directory: str
) -> "Recipe":
    """The recipe of the model for the data that are given. Explicit options override those of its
    training."""
    from ..saved_model import read_optional_object

    kind = type(saved.recipe)
    options_class = kind.options_class
    foreign = [name for name in given if name not in options_class.measuring_options]
    if foreign:
        theirs = ", ".join(f"--{name}" for name in options_class.measuring_options)
        raise InputError(f"--{foreign[0]} is not for {kind.name} models, which take {theirs}")
    noted = {name: getattr(saved.recipe.options, name) for name in options_class.measuring_options}
    data = {name: getattr(options, name) for name in _DATA}
    # Only the test data are read.
    files = {"train_file": options.test_file, "test_file": options.test_file}
    recipe = kind(options_class(**{**data, **files, **noted, **given}))
    settings = read_optional_object(directory, RESULTS_FILE).get("settings", {})
    recipe.inspect_model(saved.model.config, settings)
    recipe.check_data_options()
    recipe.tokenizer = saved.tokenizer
    if given.keys() & {"max_length", "max_source_length"}:
        longest = min(recipe.max_length, saved.tokenizer.model_max_length)
        saved.tokenizer.model_max_length = longest
    return recipe


def noted_arguments(directory: str, options: EvaluateArguments) -> dict[str, Any]:
    """The arguments of the training that its final metrics depend on."""
    from ..saved_model import read_optional_object

    training = read_optional_object(directory, RESULTS_FILE).get("training") or {}
    noted = (training.get("arguments") if isinstance(training, dict) else None) or {}
    arguments = {"seed": _SEED, "per_device_eval_batch_size": _BATCH_SIZE}
    arguments |= {name: value for name, value in noted.items() if name in arguments}
    if options.batch_size is not None:
        arguments["per_device_eval_batch_size"] = options.batch_size
    return arguments


def _report_text(found: "Evaluation", examples: int) -> str:
    """The report: scores by label, what is confused, the worst answers."""
    from ..evaluate.report import confused_pairs, example_text, worst

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


def _print_metrics(task: str, found: "Evaluation") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", title=f"{task}: {found.rows:,} rows in {found.seconds:.1f} s")
    table.add_column("value", justify="right")
    for name, value in found.metrics.items():
        table.add_row(name, f"{value:.4f}")
    Console().print(table)


def _save(
    options: "EvaluateArguments", results: dict[str, Any], text: str, found: "Evaluation"
) -> None:
    """Write the output directory, as a whole."""
    from ..evaluate.confusion_picture import draw_confusion

    target = Path(options.output_dir)
    with complete_directory(
        target, "the evaluation", options.overwrite_output_dir, _SIGNS
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
