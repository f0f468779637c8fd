"""`roformer-lite train --seeds`: trainings, one after another, that differ in the seed alone; the best one is kept."""

import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError
from ..output_directory import complete_directory
from .finished_model import publish, write_results
from .model_card import add_seeds
from .options import TrainOptions
from .resume import FINISHED_SEEDS, clear_training_directory, run_id
from .seed_directory import SeedDirectory, chosen_by
from .train import prepare_directories, train


def train_seeds(options: TrainOptions, again: Callable[[], TrainOptions]) -> None:
    """Train with each of `--seeds`, save the model that is best on the validation data, and print the results.

    Commands that were interrupted continue: a finished seed is not trained again.

    Args:
        options: Those of the command.
        again: Parses the command once more: a training changes its options, as some follow from the data.

    Raises:
        InputError: as `train`, and for options that do not go with several seeds.
    """
    args, directory = options.training, Path(options.training.output_dir)
    _check(options)
    seeds = SeedDirectory(directory, tuple(args.seeds))
    with ExitStack() as held:
        prepare_directories(options, directory, held)
        is_first = True
        while (seed := seeds.next()) is not None:
            print(f"Seed {seed}, {args.seeds.index(seed) + 1} of {len(args.seeds)}", file=sys.stderr)
            own = again()
            own.take_seed(seed, seeds, is_first)
            is_first = False
            own.training.hub_model_id = args.hub_model_id  # completed where the repository was made
            train(own)
            name, figure = chosen_by(seeds.finished()[seed])
            print(f"Seed {seed} is finished: validation {name} {figure:.4f}", file=sys.stderr)
            seeds.discard(args.keep_checkpoints)
        results = _keep_best(seeds, options)
        publish(results, options)


def _check(options: TrainOptions) -> None:
    """Refuse what does not go with several seeds."""
    args, given = options.training, options.training.shown_seeds
    if args.world_size > 1 or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise InputError(
            f"{given} cannot be trained by a launcher of processes, whose group ends with the first training; give "
            "one --seed to each of several commands, or start this one without the launcher"
        )
    if args.resume_from_checkpoint:
        raise InputError(
            f"--resume_from_checkpoint {args.resume_from_checkpoint} is of one training, and {given} are several; "
            "leave it out: the same command continues each seed from its last checkpoint"
        )


def _keep_best(seeds: SeedDirectory, options: TrainOptions) -> dict[str, Any]:
    """Save the best model with the figures of all seeds as `options.output_dir`, remove the rest, and return its
    results."""
    seeds.discard(options.training.keep_checkpoints)  # left by a command that was killed
    best = seeds.best()
    results = seeds.finished()[best]
    results["seeds"] = seeds.summary()
    minutes = results["seeds"]["whole_minutes"].values()
    results["training"] |= {"id": run_id(seeds.path), "whole_command_minutes": round(sum(minutes), 2)}
    with complete_directory(options.output_dir) as folder:
        shutil.copytree(seeds.model_dir(best), folder, dirs_exist_ok=True)
        add_seeds(results, folder)
        write_results(results, folder)
    if options.training.keep_checkpoints:
        for folder in seeds.path.glob(FINISHED_SEEDS):
            shutil.rmtree(folder)
    else:
        clear_training_directory(seeds.path)
    return results
