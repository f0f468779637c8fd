"""`roformer-lite train TASK …` or `roformer-lite train run.yaml …`: train a model on your own
data."""

from ..options.run import Run
from ..train.seeds import train_seeds
from ..train.train import train


def main(run: Run) -> None:
    """Run `roformer-lite train`."""
    if run.training.seeds:
        train_seeds(run)
    else:
        train(run)
