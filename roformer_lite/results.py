"""The results of the functions `train` and `evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TrainingResult:
    """The results of a finished training.

    Args:
        output_dir: The directory of the finished model.
        results: The contents of its `results.json`; empty in a process of a distributed training
            that does not save the model.
    """

    output_dir: Path
    results: dict[str, Any]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of the saved model by split (`validation`, `test`) and name."""
        return self.results.get("metrics", {})

    @property
    def baselines(self) -> dict[str, dict[str, dict[str, float]]]:
        """The metrics of the baselines by baseline, split and name."""
        return self.results.get("baselines", {})

    @property
    def verdict(self) -> str:
        """A sentence that compares the model with the best baseline; empty without a comparison."""
        return self.results.get("verdict", "")


@dataclass(frozen=True)
class EvaluationResult:
    """The evaluation of a saved model on labelled data.

    Args:
        metrics: The metrics by name.
        rows: The table of predictions: a dictionary for each row, with its `origin`, its input, its
            true value and its prediction.
        report: The metrics of each label and the worst predictions, as text.
        results: The metrics, with the settings of the model, the metrics of each label and notes.
    """

    metrics: dict[str, float]
    rows: list[dict[str, Any]]
    report: str
    results: dict[str, Any]
