"""Measuring a model on labelled data: at the end of its training, and later by `roformer-lite evaluate`."""

from datasets import Dataset
from transformers import EvalPrediction, PreTrainedTokenizerBase, Trainer, set_seed

from .metrics import Metrics
from .tasks.base import Task


def measure(
    trainer: Trainer, task: Task, split: str, rows: Dataset, encoded: Dataset, tokenizer: PreTrainedTokenizerBase
) -> tuple[Metrics, EvalPrediction]:
    """The metrics of a split, and the predictions that they are of.

    Args:
        trainer: Has the model, the batch size and the seed, which determines the masks of masked language models.
        task: Defines the metrics.
        split: The name of the data.
        rows, encoded: The data, as rows and as inputs of the model.
        tokenizer: That of the model.
    """
    set_seed(trainer.args.seed)  # the same masks, however long the training was
    trainer.compute_metrics = None
    if hasattr(trainer.args, "predict_with_generate"):
        trainer.args.predict_with_generate = True
    return task.measure(trainer, split, rows, encoded, tokenizer)
