"""`--seeds`: trainings, one after another, that differ in the seed alone; the best one is kept."""

import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..output import RESULTS_FILE, complete_directory
from ..tasks.registry import TASKS
from .finished_model import create_repository, publish, write_results
from .model_card import add_seeds
from .results import chosen_by
from .run import Run
from .train import Shared, train
from .training_arguments import make_training_arguments
from .training_directory import TrainingDirectory

_FOLDERS = "seed-*[0-9]"


@dataclass
class Siblings:
    """The trainings of several seeds while they are under way. Each has a finished model, `seed-N`, and an unfinished
    training, `seed-N.training`, in `directory`. Of a finished model that is not the best only the results stay.

    Args:
        run: With the seeds.
        directory: Of all of them.
    """

    run: Run
    directory: TrainingDirectory

    @property
    def seeds(self) -> list[int]:
        """In the order in which they are trained. The rows that are held out are those of the first one."""
        return self.run.training.seeds

    def folder(self, seed: int) -> Path:
        """Where the finished model of `seed` is."""
        return self.directory.path / f"seed-{seed}"

    def finished(self) -> dict[int, dict[str, Any]]:
        """The results of the seeds whose training is finished, in order."""
        files = {seed: self.folder(seed) / RESULTS_FILE for seed in self.seeds}
        return {seed: json.loads(path.read_text("utf-8")) for seed, path in files.items() if path.is_file()}

    def next(self) -> int | None:
        """The first seed whose training is not finished."""
        finished = self.finished()
        return next((seed for seed in self.seeds if seed not in finished), None)

    def best(self) -> int:
        """The finished seed that is best on the validation data, by the metric that chooses the best checkpoint of
        each; the first of equal ones."""
        finished = self.finished()
        choose = max if next(iter(finished.values()))["training"]["greater_is_better"] else min
        return choose(finished, key=lambda seed: chosen_by(finished[seed])[1])

    def discard(self, keep_checkpoints: bool) -> None:
        """Remove the models that are not the best, and the checkpoints of finished trainings, but for those of the
        best where they are to be kept."""
        best = self.best()
        for seed in self.finished():
            folder = self.folder(seed)
            if seed != best or not keep_checkpoints:
                shutil.rmtree(TrainingDirectory(folder).path, ignore_errors=True)
            for path in folder.iterdir() if seed != best else ():
                if path.name != RESULTS_FILE:
                    path.unlink() if path.is_file() else shutil.rmtree(path)

    def summary(self) -> dict[str, Any]:
        """What `results.json` says of all seeds: which was kept and why, the metrics of each, mean and standard
        deviation."""
        finished, best = self.finished(), self.best()
        metrics = {str(seed): results["metrics"] for seed, results in finished.items()}

        def of_each(statistic: Callable) -> dict[str, dict[str, float]]:
            return {
                split: {name: statistic([of[split][name] for of in metrics.values()]) for name in names}
                for split, names in finished[best]["metrics"].items()
            }

        return {
            "kept": best,
            "chosen_by": f"validation {chosen_by(finished[best])[0]}",
            "mean": of_each(statistics.fmean),
            "standard_deviation": of_each(statistics.stdev),
            "metrics": metrics,
            "whole_minutes": {
                str(seed): results["training"]["whole_command_minutes"] for seed, results in finished.items()
            },
        }


def train_seeds(run: Run) -> None:
    """Train with each of `--seeds`, save the model that is best on the validation data, and print the results.

    Commands that were interrupted continue: a finished seed is not trained again.

    Raises:
        InputError: as `train`, and for options that can't be combined with several seeds.
    """
    if "LOCAL_RANK" in os.environ:
        raise InputError(
            f"--seeds {run.training.seeds} can't be trained by a launcher of processes, whose group ends with the "
            "first training; give one --seed to each of several commands, or start this one without the launcher"
        )
    directory, seeds = TrainingDirectory(run.output_dir), run.training.seeds
    overwrite = run.training.overwrite_output_dir
    siblings = Siblings(run, directory)
    args = make_training_arguments(
        run.with_defaults(), TASKS[run.task].model_class.training_classes()[0], str(directory.path)
    )
    with directory.opened(run, devices=max(1, args.n_gpu)):
        if run.card.push_to_hub:
            create_repository(run.card, args, run.output_dir.name)
        while (seed := siblings.next()) is not None:
            print(f"Seed {seed}, {seeds.index(seed) + 1} of {len(seeds)}", file=sys.stderr)
            # No seed changes the baselines, which the first training measures.
            baselines = next((results["baselines"] for results in siblings.finished().values()), None)
            train(_of_seed(run, seed, siblings), Shared(run, directory, baselines, may_start_again=overwrite))
            overwrite = False
            name, value = chosen_by(siblings.finished()[seed])
            print(f"Seed {seed} is finished: validation {name} {value:.4f}", file=sys.stderr)
            siblings.discard(run.training.keep_checkpoints)
        publish(_keep_best(siblings, run), run, args)


def _of_seed(run: Run, seed: int, siblings: Siblings) -> Run:
    """The run of one seed. All take the type of numbers of the first one: they differ in the seed alone."""
    folder, finished = str(siblings.folder(seed)), siblings.finished()
    bf16 = run.training.bf16
    if bf16 is None and finished:
        bf16 = next(iter(finished.values()))["training"]["arguments"].get("bf16", False)
    training = replace(run.training, seed=seed, seeds=None, output_dir=folder, bf16=bf16)
    return replace(run, training=training, card=replace(run.card, push_to_hub=False))


def _keep_best(siblings: Siblings, run: Run) -> dict[str, Any]:
    """Save the best model with the metrics of all seeds as the finished one, remove the rest; its results."""
    siblings.discard(run.training.keep_checkpoints)  # left by a command that was killed
    best = siblings.best()
    results = siblings.finished()[best]
    results["seeds"] = siblings.summary()
    minutes = results["seeds"]["whole_minutes"].values()
    results["training"] |= {"id": siblings.directory.state()["id"], "whole_command_minutes": round(sum(minutes), 2)}
    with complete_directory(run.output_dir, overwrite=run.training.overwrite_output_dir) as folder:
        shutil.copytree(siblings.folder(best), folder, dirs_exist_ok=True)
        add_seeds(results, folder)
        write_results(results, folder)
    if run.training.keep_checkpoints:
        for folder in siblings.directory.path.glob(_FOLDERS):
            shutil.rmtree(folder)
    else:
        siblings.directory.clear()
    return results
