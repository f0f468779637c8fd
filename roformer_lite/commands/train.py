"""`roformer-lite train TASK …` or `roformer-lite train run.yaml …`: train a model on your own
data."""

from ..options.run import Run
from ..train.finished_model import publish
from ..train.seeds import train_seeds
from ..train.train import train


def main(run: Run) -> None:
    """Run `roformer-lite train`."""
    results = train_seeds(run) if run.training.seeds else train(run)
    if results is not None:
        publish(results, run)
