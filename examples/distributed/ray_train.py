"""Trains on the machines of a Ray cluster, by the command line's own options:

    python examples/distributed/ray_train.py --workers 2 mlm --train_file text.txt --output_dir model

Ray starts the workers, sets up torch.distributed among them, and starts all again when one dies; they go on from the
last checkpoint. All machines must see the files and the output directory. Name them from the root (`/data/…`), as
workers have directories of their own. Needs `pip install "ray[train]"`.
"""

import argparse
import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to Ray's makers
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from roformer_lite.commands.train import check_options
from roformer_lite.training.task_arguments import TASK_ARGUMENTS


def train(command: dict[str, list[str]]) -> None:
    """What each worker runs."""
    from roformer_lite.cli import main

    status = main(["train", *command["options"]])
    if status:
        raise SystemExit(f"roformer-lite train ended with status {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description="roformer-lite train, by Ray Train.")
    parser.add_argument("--workers", type=int, default=2, help="processes of the whole cluster")
    parser.add_argument("--use_gpu", action="store_true", help="give each worker a GPU")
    parser.add_argument("--restarts", type=int, default=3, help="how often workers may die")
    parser.add_argument("--results", default=None, help="a directory that all machines see, for Ray's own notes")
    parser.add_argument("task", choices=list(TASK_ARGUMENTS), metavar="task", help="mlm, causal, seq2seq …")
    arguments, options = parser.parse_known_args()
    check_options(arguments.task, options)  # before anything is started
    TorchTrainer(
        train,
        train_loop_config={"options": [arguments.task, *options]},
        scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=arguments.use_gpu),
        run_config=RunConfig(
            storage_path=arguments.results, failure_config=FailureConfig(max_failures=arguments.restarts)
        ),
    ).fit()


if __name__ == "__main__":
    main()
