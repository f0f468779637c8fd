"""`roformer-lite train TASK …` or `roformer-lite train run.yaml …`: train a model on your own
data."""

from typing import Any

from ..options.run import Run
from ..training.results import print_summary
from ..training.seeds import train_seeds
from ..training.train import train


def main(run: Run) -> None:
    """Run `roformer-lite train`."""
    results = train_run(run)
    if results is not None:
        print_summary(results, run.output_dir)


def train_run(run: Run) -> dict[str, Any] | None:
    """Train with one seed or with several. Returns the contents of `results.json`, and None in a
    process that does not save the model."""
    return train_seeds(run) if run.training.seeds else train(run)
