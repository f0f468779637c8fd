"""The trainings of `--seeds` while they are under way: where each one is, and which is the best so far."""

import json
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..output_directory import RESULTS_FILE
from .resume import training_directory


@dataclass(frozen=True)
class SeedDirectory:
    """A directory with a finished model, `seed-N`, and an unfinished training, `seed-N.training`, of each seed.

    Of a finished model that is not the best only the results stay.

    Args:
        path: The directory.
        seeds: In the order in which they are trained.
    """

    path: Path
    seeds: tuple[int, ...]

    def model_dir(self, seed: int) -> Path:
        """Where the finished model of `seed` is."""
        return self.path / f"seed-{seed}"

    def finished(self) -> dict[int, dict[str, Any]]:
        """The results of the seeds whose training is finished, in order."""
        files = {seed: self.model_dir(seed) / RESULTS_FILE for seed in self.seeds}
        return {seed: json.loads(path.read_text("utf-8")) for seed, path in files.items() if path.is_file()}

    def next(self) -> int | None:
        """The first seed whose training is not finished."""
        finished = self.finished()
        return next((seed for seed in self.seeds if seed not in finished), None)

    def best(self) -> int:
        """The finished seed that is best on the validation data, by the figure that chooses the best checkpoint of
        each; the first of equal ones."""
        finished = self.finished()
        training = next(iter(finished.values()))["training"]
        choose = max if training["greater_is_better"] else min
        return choose(finished, key=lambda seed: chosen_by(finished[seed])[1])

    def discard(self, keep_checkpoints: bool) -> None:
        """Remove the models that are not the best, and the checkpoints of finished trainings.

        Args:
            keep_checkpoints: Whether the best model's stay.
        """
        best = self.best()
        for seed in self.finished():
            folder = self.model_dir(seed)
            if seed != best or not keep_checkpoints:
                shutil.rmtree(training_directory(folder), ignore_errors=True)
            for path in folder.iterdir() if seed != best else ():
                if path.name != RESULTS_FILE:
                    path.unlink() if path.is_file() else shutil.rmtree(path)

    def summary(self) -> dict[str, Any]:
        """What `results.json` says of all seeds: which was kept and why, the figures of each, mean and standard
        deviation."""
        finished = self.finished()
        best = self.best()
        figures = {str(seed): results["metrics"] for seed, results in finished.items()}
        names = {split: list(metrics) for split, metrics in finished[best]["metrics"].items()}
        samples = {
            split: {name: [of[split][name] for of in figures.values()] for name in names[split]} for split in names
        }
        return {
            "kept": best,
            "chosen_by": f"validation {chosen_by(finished[best])[0]}",
            "mean": _of_each(statistics.fmean, samples),
            "standard_deviation": _of_each(statistics.stdev, samples),
            "metrics": figures,
            "whole_minutes": {
                str(seed): results["training"]["whole_command_minutes"] for seed, results in finished.items()
            },
        }


def chosen_by(results: dict[str, Any]) -> tuple[str, float]:
    """The validation figure by which a model is held against those of other seeds: its name and value."""
    name = results["training"]["metric_for_best_model"]
    return name, results["metrics"]["validation"][name]


def _of_each(statistic: Any, samples: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {split: {name: statistic(values) for name, values in by_name.items()} for split, by_name in samples.items()}
