"""`--seeds`: consecutive trainings that differ only in the seed; the best model is kept."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas

from ..errors import InputError
from ..measuring.metrics import best_of
from ..options.run import Run
from ..output import RESULTS_FILE, complete_directory, write_json
from ..saved.saved_model import read_object
from .model_card import add_seeds
from .train import train
from .training_directory import TrainingDirectory


def train_seeds(run: Run) -> dict[str, Any]:
    """Train with each of `--seeds`, and save the model that is best on the validation data.

    The directory of the checkpoints contains the finished model of each seed in `seed-N` and its
    checkpoints in `seed-N.training`. An interrupted command can be continued without training the
    finished seeds again.

    Returns:
        The contents of `results.json`.

    Raises:
        InputError: in the same cases as `train`, and for options that can't be combined with
            several seeds.
    """
    seeds = run.training.seeds
    if "LOCAL_RANK" in os.environ:
        raise InputError(
            f"--seeds {seeds} can't be used with a launcher of processes, because its process "
            "group ends with the first training; run one command per --seed, or start this one "
            "without the launcher"
        )
    directory = TrainingDirectory(run)
    found = {}
    with directory.held():
        for number, seed in enumerate(seeds, 1):
            path = _folder(run, seed) / RESULTS_FILE
            is_trained = path.is_file()
            state = ", already trained" if is_trained else ""
            print(f"Seed {seed}, {number} of {len(seeds)}{state}", file=sys.stderr)
            if not is_trained:
                train(_of_seed(run, seed), seeds=run)
            found[seed] = read_object(path)
        # The best model on the validation data is kept.
        metric = found[seeds[0]]["main_metric"]
        values = {seed: own["metrics"]["validation"][metric] for seed, own in found.items()}
        best = best_of(metric, values)
        results = {**found[best], "seeds": summary(found, best)}
        with complete_directory(
            run.output_dir, overwrite=run.training.overwrite_output_dir
        ) as folder:
            shutil.copytree(_folder(run, best), folder, dirs_exist_ok=True)
            add_seeds(results, folder)
            write_json(folder / RESULTS_FILE, results)
        if not run.training.keep_checkpoints:
            directory.clear()
        return results


def _folder(run: Run, seed: int) -> Path:
    return run.checkpoints / f"seed-{seed}"


def _of_seed(run: Run, seed: int) -> Run:
    """The run of one seed. All seeds hold out the same rows."""
    data = run.data
    if data.validation_seed is None and not data.validation_file:
        data = replace(data, validation_seed=run.training.seeds[0])
    output_dir = str(_folder(run, seed))
    training = replace(run.training, seed=seed, seeds=[], output_dir=output_dir)
    return replace(run, data=data, training=training)


def summary(found: dict[int, dict[str, Any]], best: int) -> dict[str, Any]:
    """The entry of `results.json` about all seeds: which one is kept and why, the metrics of each,
    and their mean and standard deviation.

    Args:
        found: The results of each seed.
        best: The seed that is kept.
    """
    metrics = {str(seed): results["metrics"] for seed, results in found.items()}
    table = pandas.concat([pandas.DataFrame(of_seed) for of_seed in metrics.values()])
    by_metric = table.groupby(level=0, sort=False)
    mean = by_metric.mean().to_dict()
    deviation = by_metric.std().to_dict()
    metric = found[best]["main_metric"]
    split = list(mean)[-1]
    return {
        "kept": best,
        "mean": mean,
        "standard_deviation": deviation,
        "metrics": metrics,
        "sentence": (
            f"Over the seeds {', '.join(metrics)}, the {metric} on the {split} data is "
            f"{mean[split][metric]:.4f} ± {deviation[split][metric]:.4f} (mean and standard "
            f"deviation). The model of seed {best} is kept, because it has the best validation "
            f"{metric}, {metrics[str(best)]['validation'][metric]:.4f}."
        ),
    }
