"""`--seeds`: trainings, one after another, that differ in the seed alone; the best one is kept."""

import os
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..output import RESULTS_FILE, complete_directory
from ..run import Run
from ..saved_model import read_object
from .defaults import with_defaults
from .finished_model import create_repository, publish, write_results
from .model_card import add_seeds
from .results import chosen_by
from .train import train
from .trainer_classes import trainer_class
from .training_arguments import make_training_arguments
from .training_directory import TrainingDirectory


def train_seeds(run: Run) -> None:
    """Train with each of `--seeds`, save the model that is best on the validation data, and print
    the results.

    The directory of the checkpoints has the finished model of each seed in `seed-N` and its
    checkpoints in `seed-N.training`. Commands that were interrupted continue: a finished seed is
    not trained again.

    Raises:
        InputError: as `train`, and for options that can't be combined with several seeds.
    """
    seeds, directory = run.training.seeds, TrainingDirectory(run)
    if "LOCAL_RANK" in os.environ:
        raise InputError(
            f"--seeds {seeds} can't be trained by a launcher of processes, whose group ends with the first training; "
            "give one --seed to each of several commands, or start this one without the launcher"
        )
    args_class = trainer_class(run.task).args_class
    args = make_training_arguments(with_defaults(run), args_class)
    with directory.opened(args):
        if run.card.push_to_hub:
            create_repository(run.card, args, run.output_dir.name)
        while len(found := _finished(run)) < len(seeds):
            seed = next(seed for seed in seeds if seed not in found)
            print(f"Seed {seed}, {seeds.index(seed) + 1} of {len(seeds)}", file=sys.stderr)
            train(_of_seed(run, seed), run)
            name, value = chosen_by(_finished(run)[seed])
            print(f"Seed {seed} is finished: validation {name} {value:.4f}", file=sys.stderr)
        choose = max if found[seeds[0]]["training"]["greater_is_better"] else min
        best = choose(seeds, key=lambda seed: chosen_by(found[seed])[1])  # the first of equal ones
        results = {**found[best], "seeds": summary(found, best)}
        minutes = round(sum(results["seeds"]["whole_minutes"].values()), 2)
        results["training"]["whole_command_minutes"] = minutes
        with complete_directory(
            run.output_dir, overwrite=run.training.overwrite_output_dir
        ) as folder:
            shutil.copytree(_folder(run, best), folder, dirs_exist_ok=True)
            add_seeds(results, folder)
            write_results(results, folder)
        for path in directory.path.iterdir():
            if path.is_dir() and not (
                run.training.keep_checkpoints and path.name == f"seed-{best}.training"
            ):
                shutil.rmtree(path)
        if not run.training.keep_checkpoints:
            directory.clear()
        publish(results, run, args)


def _folder(run: Run, seed: int) -> Path:
    return run.checkpoints / f"seed-{seed}"


def _finished(run: Run) -> dict[int, dict[str, Any]]:
    """The results of the seeds whose training is finished, in order."""
    files = {seed: _folder(run, seed) / RESULTS_FILE for seed in run.training.seeds}
    return {seed: read_object(path) for seed, path in files.items() if path.is_file()}


def _of_seed(run: Run, seed: int) -> Run:
    """The run of one seed."""
    output_dir = str(_folder(run, seed))
    training = replace(run.training, seed=seed, seeds=None, output_dir=output_dir)
    return replace(run, training=training, card=replace(run.card, push_to_hub=False))


def summary(found: dict[int, dict[str, Any]], best: int) -> dict[str, Any]:
    """What `results.json` says of all seeds: which was kept and why, the metrics of each, mean and
    standard deviation.

    Args:
        found: The results of each seed.
        best: The seed that is kept.
    """
    metrics = {str(seed): results["metrics"] for seed, results in found.items()}

    def of_each(statistic: Callable) -> dict[str, dict[str, float]]:
        return {
            split: {name: statistic([of[split][name] for of in metrics.values()]) for name in names}
            for split, names in found[best]["metrics"].items()
        }

    return {
        "kept": best,
        "chosen_by": f"validation {chosen_by(found[best])[0]}",
        "mean": of_each(statistics.fmean),
        "standard_deviation": of_each(statistics.stdev),
        "metrics": metrics,
        "whole_minutes": {
            str(seed): results["training"]["whole_command_minutes"]
            for seed, results in found.items()
        },
    }
