"""`python -m benchmarks ablations --task TASK --out DIR …`: change positions, norms, gating
and ways of training, one at a time.

Each training is a separate `roformer-lite train`, and options that are not listed here are options
of that command. Its results stay in `DIR/runs` and are not measured again, so that the same command
continues after an interruption.
"""

import json
import resource
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from transformers import HfArgumentParser

from roformer_lite.errors import InputError
from roformer_lite.options.run import Run, parse_run, shown_command
from roformer_lite.options.tasks import TASK_ARGUMENTS, LabelArguments

from .report import machine, save
from .training_changes import CHANGES, CHANGES_OF_TRAININGS, TASKS_OF_CHANGES
from .variants import DEFAULT, VARIANTS, planned

# No run may stop earlier than another or use another data type. The last weights are measured.
FIXED_OPTIONS = {"--baselines": "false", "--bf16": "false", "--disable_tqdm": "true"}
FIXED_STRATEGIES = ("eval_strategy", "save_strategy")
REFUSED_OPTIONS = {
    "--seed": "give --seeds",
    "--output_dir": "give --out",
    "--overwrite_output_dir": "models are not kept; remove a file of --out to repeat its run",
    "--time_limit_minutes": "a clock would end the runs at different steps; give --max_steps",
}
# Variants that make their own batches cannot be combined with these.
OPTIONS_OF_BATCHES = ("packing", "dataloader_num_workers", "gradient_accumulation_steps")
LOSS = "loss"


@dataclass
class Options:
    """The options of the comparison itself."""

    out: Path = field(
        metadata={"help": "directory of the figures of every run and of their summary"}
    )
    task: Literal["mlm", "causal", "classify", "tag", "seq2seq"] = field(
        metadata={"help": "the task that is trained"}
    )
    seeds: list[int] = field(
        default_factory=lambda: [0, 1, 2],
        metadata={"help": "one training of each variant per seed"},
    )
    variants: list[str] = field(
        default_factory=lambda: list(VARIANTS),
        metadata={
            "help": "variants to compare with the default. Default: all of the configuration; "
            f"others are {', '.join(CHANGES)}"
        },
    )
    config: list[str] = field(
        default_factory=list, metadata={"help": "fields of the default, as name=value"}
    )

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(
                f"--seeds {' '.join(map(str, self.seeds))} must be different numbers, at least one"
            )


def plan_runs(options: Options, words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The options of all trainings, and the values of `--config` for each variant.

    Raises:
        InputError: for options that make training impossible.
    """
    check_options(words)
    typed = [*fixed_words(options.task), *words]
    given = [*typed, "--output_dir", str(options.out / "model"), *config_words(options.config)]
    training = parse_run(options.task, given)
    check_training(training)
    for variant in options.variants:
        check_variant(variant, options.task, training)
    changes = planned(training, [variant for variant in options.variants if variant not in CHANGES])
    for variant in options.variants:
        if variant in CHANGES:
            changes[variant] = []
    return typed, {variant: [*options.config, *own] for variant, own in changes.items()}


def fixed_words(task: str) -> list[str]:
    """The options that are the same in all runs."""
    words = list(chain(*FIXED_OPTIONS.items()))
    words.append("--training_arguments")
    words += [f"{strategy}=no" for strategy in FIXED_STRATEGIES]
    if issubclass(TASK_ARGUMENTS[task], LabelArguments):
        # N-grams would hide differences between encoders.
        words += ["--linear_model", "false"]
    return words


def config_words(values: list[str]) -> list[str]:
    if not values:
        return []
    return ["--config", *values]


def check_options(words: list[str]) -> None:
    """Refuse options with which runs would differ in more than their variants."""
    for word in words:
        name = word.partition("=")[0].replace("-", "_").replace("__", "--", 1)
        if name in FIXED_OPTIONS:
            raise InputError(
                f"{name} is not possible here: it is {FIXED_OPTIONS[name]} in all runs"
            )
        if name in REFUSED_OPTIONS:
            raise InputError(f"{name} is not possible here: {REFUSED_OPTIONS[name]}")


def check_training(training: Run) -> None:
    """Refuse a training that begins with a saved model, has no validation data, or does not
    evaluate the last weights."""
    if training.model.pretrained:
        raise InputError(
            f"{' '.join(training.model.pretrained)} is not possible: variants are trained from "
            "scratch"
        )
    data = training.data
    if not (data.validation_file or data.validation_fraction or data.dataset_name):
        raise InputError(
            "give --validation_file or --validation_fraction, data to compare the variants on"
        )
    if any(training.training.training_arguments[name] != "no" for name in FIXED_STRATEGIES):
        raise InputError(
            "eval_strategy and save_strategy are no in all runs: the last weights are measured"
        )


def check_variant(variant: str, task: str, training: Run) -> None:
    """Refuse variants of other tasks, and variants whose batches the options would change."""
    tasks = TASKS_OF_CHANGES.get(variant, (task,))
    if task not in tasks:
        raise InputError(f"--variants {variant} is for {' and '.join(tasks)}, not for {task}")
    if variant not in CHANGES_OF_TRAININGS:
        return
    given = [
        name
        for name in OPTIONS_OF_BATCHES
        if getattr(training.data, name, None) or name in training.training.training_arguments
    ]
    if training.training.max_tokens_per_batch:
        given.append("max_tokens_per_batch")
    if not given and training.training.max_steps is not None:
        return
    without = "".join(f" and no {name}" for name in given)
    raise InputError(f"--variants {variant} makes its own batches: give --max_steps{without}")


def run_once(path: Path, variant: str, seed: int, command: list[str]) -> dict[str, Any]:
    """The results of a training, read from `path` if it exists, otherwise measured and written
    there.

    Raises:
        InputError: if the results in `path` are those of another command.
        SystemExit: if the training fails.
    """
    if path.exists():
        found = json.loads(path.read_text("utf-8"))
        if found["command"] != command:
            raise InputError(
                f"{path} is of another training, `roformer-lite {' '.join(found['command'])}`; "
                "give another --out, or remove it"
            )
        return found
    figures = {"variant": variant, "seed": seed, "command": command, **train(variant, command)}
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
    unfinished.replace(path)
    return figures


def train(variant: str, command: list[str]) -> dict[str, Any]:
    """Train in a separate process, and delete the model."""
    module = ["roformer_lite.cli"]
    if variant in CHANGES:
        module = ["benchmarks.training_changes", variant]
    before = _processor_seconds()
    with TemporaryDirectory() as folder:
        program = [sys.executable, "-m", *module, *command, "--output_dir", f"{folder}/model"]
        done = subprocess.run(program, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(
                f"python -m {' '.join([*module, *command])} failed:\n{done.stderr[-2000:]}"
            )
        results = json.loads((Path(folder) / "model" / "results.json").read_text("utf-8"))
    kept = {name: results[name] for name in ("parameters", "main_metric", "metrics", "versions")}
    return {**kept, "processor_minutes": (_processor_seconds() - before) / 60}


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def summarise(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The means and sample standard deviations of the runs of each variant, which are in the same
    order of seeds.

    Each figure, such as `validation_loss`, has a `mean` and a `deviation`. `difference` and
    `difference_deviation` are the mean and the deviation of its differences from the default with
    the same seed. With a single seed, deviations are None.
    """
    rows = {}
    for variant, of_variant in runs.items():
        first = of_variant[0]
        row: dict[str, Any] = {"parameters": first["parameters"]}
        for split in first["metrics"]:
            for name in dict.fromkeys((LOSS, first["main_metric"])):
                values = [run["metrics"][split][name] for run in of_variant]
                defaults = [run["metrics"][split][name] for run in runs[DEFAULT]]
                differences = [
                    value - default for value, default in zip(values, defaults, strict=True)
                ]
                row[f"{split}_{name}"] = {
                    "mean": statistics.mean(values),
                    "deviation": _deviation(values),
                    "difference": statistics.mean(differences),
                    "difference_deviation": _deviation(differences),
                }
        row["processor_minutes"] = statistics.mean(run["processor_minutes"] for run in of_variant)
        rows[variant] = row
    return rows


def _deviation(values: list[float]) -> float | None:
    if len(values) < 2:
        return None
    return statistics.stdev(values)


def table(result: dict[str, Any]) -> Table:
    """A table with a row for each variant. Each figure is followed by its difference from the
    default with the same seed. Only the main figure of the test data is shown.
    """
    rows = result["contenders"]
    figures = [
        name
        for name, value in rows[DEFAULT].items()
        if isinstance(value, dict) and name != "test_loss"
    ]
    seeds = ", ".join(map(str, result["seeds"]))
    title = f"{result['task']}: mean ± sample standard deviation of the seeds {seeds}"
    shown = Table("variant", title=title)
    shown.add_column("parameters", justify="right")
    for name in figures:
        shown.add_column(name.replace("_", " "), justify="right")
        shown.add_column("difference", justify="right")
    shown.add_column("processor minutes", justify="right")
    for variant, row in rows.items():
        cells = []
        for name in figures:
            value = row[name]
            cells.append(_with_deviation(f"{value['mean']:.4f}", value["deviation"]))
            change = ""
            if variant != DEFAULT:
                change = f"{value['difference']:+.4f}"
                change = _with_deviation(change, value["difference_deviation"])
            cells.append(change)
        shown.add_row(variant, f"{row['parameters']:,}", *cells, f"{row['processor_minutes']:.2f}")
    return shown


def _with_deviation(value: str, deviation: float | None) -> str:
    if deviation is None:
        return value
    return f"{value} ± {deviation:.4f}"


def compare(options: Options, words: list[str]) -> dict[str, Any]:
    """Train the missing runs, one seed at a time, so that after an interruption the comparisons of
    the finished seeds are complete."""
    typed, configs = plan_runs(options, words)
    folder = options.out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in configs}
    console = Console(stderr=True)
    for seed in options.seeds:
        for variant, config in configs.items():
            command = ["train", options.task, *typed, *config_words(config), "--seed", str(seed)]
            figures = run_once(folder / f"{variant}-{seed}.json", variant, seed, command)
            runs[variant].append(figures)
            loss = figures["metrics"].get("validation", {}).get(LOSS)
            console.print(
                f"{variant}, seed {seed}: validation loss {loss}, "
                f"{figures['processor_minutes']:.2f} minutes"
            )
    return {
        "task": f"ablations-{options.task}",
        "command": shown_command(["roformer-lite", "train", options.task, *typed]),
        "seeds": options.seeds,
        "configs": configs,
        "contenders": summarise(runs),
        "machine": machine("cpu"),
    }


def main(arguments: list[str]) -> None:
    """`python -m benchmarks ablations`."""
    parser = HfArgumentParser(
        Options, prog="python -m benchmarks ablations", description=__doc__, allow_abbrev=False
    )
    try:
        options, words = parser.parse_args_into_dataclasses(
            arguments, return_remaining_strings=True
        )
        result = compare(options, words)
    except InputError as error:
        raise SystemExit(str(error)) from error
    save(result, options.out)
    Console(width=160).print(table(result))
