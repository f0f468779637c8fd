"""Cross-validates the training of few rows, none of which are held out.

It measures the model, and decides whether the model is fine-tuned after its head is fitted. In each
fold, a copy of the untrained model is trained on the other folds as the model itself is on all
rows.
"""

import json
import sys
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import DatasetDict
from sklearn.model_selection import PredefinedSplit, StratifiedGroupKFold
from transformers import TrainingArguments, set_seed

from ..data.duplicates import normal_form
from ..evaluation import Evaluation
from ..measuring.significance import Baselines
from ..output import write_json
from ..recipes.base import Start
from .callbacks import BestCheckpoint, TrainingClock
from .fit import completed, fit, make_trainer
from .head import fit_head
from .pairs import PairTrainer, PairTraining
from .trainer import RoFormerLiteTrainer

# The training directory contains this file once the cross-validation is finished.
CROSS_VALIDATION_FILE = "cross_validation.json"
NUM_FOLDS = 5
# Determines the folds, regardless of the seed of the training.
FOLDS_SEED = 0
# The name of the figures in tables.
SPLIT = "cross-validation"
# The encoder is only trained in the folds if that is estimated to take no longer than this.
MAX_MINUTES = 5.0


@dataclass(frozen=True)
class CrossValidation:
    """What is known from cross-validation.

    Args:
        folds: The number of the fold of each row; empty if nothing was cross-validated.
        logits: The logits for each row of a model that has not seen it, `(rows, labels)`, by the
            procedure that is chosen.
        fitted_accuracy: The accuracy with the fitted head.
        fine_tuned_accuracy: The accuracy after fine-tuning.
        why_not: Why the model was not cross-validated.
        of_heads: A sentence on the accuracy of heads on the encoder before training, if these were
            cross-validated instead; else empty.
    """

    folds: list[int] = field(default_factory=list)
    logits: list[list[float]] = field(default_factory=list)
    fitted_accuracy: float = 0.0
    fine_tuned_accuracy: float = 0.0
    why_not: str = ""
    of_heads: str = ""

    @property
    def prefers_fine_tuning(self) -> bool:
        """Whether the model is more accurate after fine-tuning."""
        return self.fine_tuned_accuracy > self.fitted_accuracy

    @property
    def reason(self) -> str:
        """Sentences that say why the model was fine-tuned or not."""
        if self.why_not:
            return (
                "After its head was fitted, the model was not fine-tuned. Cross-validation would "
                f"have shown whether that helps, but {self.why_not}.{self.of_heads}"
            )
        choice = "then" if self.prefers_fine_tuning else "not"
        return (
            f"After its head was fitted, the model was {choice} fine-tuned, because the "
            f"cross-validated accuracy is {self.fitted_accuracy:.4f} with the fitted head and "
            f"{self.fine_tuned_accuracy:.4f} after fine-tuning. In {len(set(self.folds))}-fold "
            "cross-validation, each row is predicted by a model that was trained like this one, "
            "but without the rows of the same fold."
        )

    def evaluation(self, start: Start) -> Evaluation:
        """The evaluation of the logits on the training rows."""
        recipe: Any = start.recipe
        rows = start.rows["train"]
        answers = recipe.answers_of_logits(np.array(self.logits))
        measured = recipe.measured_answers(answers, rows)
        return Evaluation(
            **vars(measured),
            split=SPLIT,
            rows=len(rows),
            report=recipe.report(measured.outcomes),
        )

    def baselines(self, start: Start) -> Baselines:
        """The baselines, trained and measured in the same folds."""
        recipe = start.recipe
        rows = start.rows["train"]
        predicted: dict[str, np.ndarray] = {}
        for learned, held_out in PredefinedSplit(self.folds).split():
            train = rows.select(learned)
            fitted = recipe.fit_baseline(DatasetDict(train=train))
            splits = DatasetDict(train=train, test=rows.select(held_out))
            for name, by_split in recipe.baselines(splits, fitted).items():
                predicted.setdefault(name, np.zeros(len(rows), dtype=int))
                predicted[name][held_out] = by_split["test"]
        return {
            name: {SPLIT: recipe.measured(of_name, rows)} for name, of_name in predicted.items()
        }


def folds_of(texts: list[str], labels: list[int]) -> np.ndarray | None:
    """The number of the fold of each row, `(rows,)`, or None if the rows can't be divided.

    Each fold has about the same labels. Texts that only differ in case and white space are in the
    same fold.

    Args:
        texts: The text of each row.
        labels: Its label.
    """
    groups = [normal_form(text) for text in texts]
    num_folds = min(NUM_FOLDS, len(set(groups)), max(np.bincount(labels)))
    if num_folds < 2:
        return None
    folds = np.zeros(len(labels), dtype=int)
    splitter = StratifiedGroupKFold(num_folds, shuffle=True, random_state=FOLDS_SEED)
    for number, (_, held_out) in enumerate(splitter.split(texts, labels, groups)):
        folds[held_out] = number
    # Nothing can be learned from a single label.
    for learned, _ in PredefinedSplit(folds).split():
        if len(set(np.take(labels, learned))) < 2:
            return None
    return folds


def cross_validate(untrained: Start, pairs: PairTraining) -> CrossValidation:
    """Compare the model with its fitted head and after fine-tuning, if that is fast enough. If not,
    find out at least how accurate a head on the encoder before training is.

    The result is saved, so that a training that is continued makes the same decision.

    Args:
        untrained: The start of the training, with the model before it has learned anything.
        pairs: What the encoder has learned from pairs.
    """
    args = untrained.args
    saved = saved_cross_validation(args)
    if saved is not None:
        return saved
    rows = untrained.rows["train"]
    texts = ["\t".join(untrained.recipe.texts([row])) for row in rows]
    folds = folds_of(texts, untrained.encoded["train"]["labels"])
    texts_of_pairs = pairs.steps * pairs.texts_per_batch
    texts_of_fine_tuning = args.num_train_epochs * len(rows) * (1 - 1 / NUM_FOLDS)
    minutes = NUM_FOLDS * pairs.seconds / 60 * (1 + texts_of_fine_tuning / texts_of_pairs)
    if folds is None:
        found = CrossValidation(why_not="there are too few rows of each label for it")
    elif minutes > MAX_MINUTES:
        why_not = f"it would have taken about {minutes:.1f} minutes, more than {MAX_MINUTES:.0f}"
        heads = _run_folds(folds, untrained, trains=False)
        accuracies = {"head": heads.fitted_accuracy}
        if untrained.run.training.baselines:
            for name, by_split in heads.baselines(untrained).items():
                accuracies[name] = by_split[SPLIT].metrics["accuracy"]
        shown = ", ".join(f"{name} {accuracy:.4f}" for name, accuracy in accuracies.items())
        found = CrossValidation(
            why_not=why_not,
            of_heads=(
                " Instead, a head on the encoder before training was cross-validated, which does "
                f"not measure this model. Accuracy: {shown}."
            ),
        )
    else:
        found = _run_folds(folds, untrained)
    write_json(Path(f"{args.output_dir}/{CROSS_VALIDATION_FILE}"), asdict(found))
    return found


def saved_cross_validation(args: TrainingArguments) -> CrossValidation | None:
    """What an earlier command has found for the same training, if anything."""
    path = Path(f"{args.output_dir}/{CROSS_VALIDATION_FILE}")
    if not path.is_file():
        return None
    return CrossValidation(**json.loads(path.read_text("utf-8")))


def _run_folds(folds: np.ndarray, untrained: Start, trains: bool = True) -> CrossValidation:
    """Train a model in each fold, with its head fitted and then fine-tuned. Without `trains`, only
    fit a head on the encoder."""
    encoded = untrained.encoded["train"]
    labels = np.array(encoded["labels"])
    parts = list(PredefinedSplit(folds).split())
    num_labels: Any = untrained.model.config.num_labels
    fitted = np.zeros((len(labels), num_labels))
    fine_tuned = fitted.copy()
    for number, (learned, held_out) in enumerate(parts, start=1):
        own = copy(untrained.args)
        own.output_dir = f"{own.output_dir}/folds"
        own.report_to = []
        model = deepcopy(untrained.model)
        start = replace(
            untrained,
            args=own,
            rows=DatasetDict(train=untrained.rows["train"].select(learned)),
            encoded=DatasetDict(train=encoded.select(learned)),
            model=model,
            trained=model,
        )
        fold = make_trainer(completed(start))
        _be_quiet(fold)
        if trains:
            stage = PairTrainer(fold, Path(own.output_dir))
            _be_quiet(stage)
            fit(stage, checkpoint=None)
        fit_head(fold)
        unseen = encoded.select(held_out)
        fitted[held_out] = fold.predict(unseen).predictions
        if not trains:
            continue
        set_seed(own.seed)
        fit(fold, checkpoint=None)
        fine_tuned[held_out] = fold.predict(unseen).predictions
        print(
            f"Cross-validation {number}/{len(parts)}: accuracy "
            f"{_accuracy(fitted, labels, held_out):.4f} with the fitted head, "
            f"{_accuracy(fine_tuned, labels, held_out):.4f} after fine-tuning",
            file=sys.stderr,
        )
    found = CrossValidation(
        folds=folds.tolist(),
        logits=fitted.tolist(),
        fitted_accuracy=_accuracy(fitted, labels),
        fine_tuned_accuracy=_accuracy(fine_tuned, labels),
    )
    return replace(found, logits=fine_tuned.tolist()) if found.prefers_fine_tuning else found


def _be_quiet(trainer: RoFormerLiteTrainer) -> None:
    """Let the trainer of a fold print no lines and save no checkpoint at its end."""
    trainer.remove_callback(TrainingClock)
    trainer.remove_callback(BestCheckpoint)
    trainer.args.save_strategy = "no"


def _accuracy(logits: np.ndarray, labels: np.ndarray, rows: Any = slice(None)) -> float:
    return float((logits[rows].argmax(axis=1) == labels[rows]).mean())
