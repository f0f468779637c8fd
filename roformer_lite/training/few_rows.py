"""What is done because the data have few rows.

A classifier that starts from a sentence encoder learns the labels from pairs of rows, as SetFit
does (Tunstall et al. 2022, arXiv:2209.11055). It may then be better without further training, which
cross-validation finds out, so that no rows need to be held out.
"""

from dataclasses import dataclass

from datasets import DatasetDict
from transformers import TrainingArguments

from ..data.splits import MIN_ROWS_TO_SPLIT
from ..options.run import Run
from ..options.tasks import ClassifyDataArguments
from ..recipes.classify_rows import SINGLE, problem_type_in

# The options that request something that only fine-tuning does.
FINE_TUNING_OPTIONS = {
    # Rows are held out, which a training without fine-tuning does not use.
    "validation_seed",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "max_tokens_per_batch",
    "warmup_steps",
    "weight_decay",
    "optim",
    "word_dropout",
    "ema_decay",
    "early_stopping_patience",
    # Fields of `training_arguments`.
    "metric_for_best_model",
    "label_smoothing_factor",
}
# With more rows, the training itself teaches the encoder enough.
MAX_CONTRASTIVE_ROWS = 500


@dataclass(frozen=True)
class FewRows:
    """What is done because the data have few rows. It is decided before the data are split.

    Args:
        min_rows_to_split: Data with fewer rows are not split by default.
        learns_from_pairs: Whether a RoFormerLite encoder with a new head first learns the
            labels from pairs of rows.
        stops_after_fitting: Whether the head that is fitted then may be final, if there are no
            validation data. Cross-validation decides whether the model is fine-tuned further.
    """

    min_rows_to_split: int = MIN_ROWS_TO_SPLIT
    learns_from_pairs: bool = False
    stops_after_fitting: bool = False


def decide(
    run: Run,
    args: TrainingArguments,
    rows: DatasetDict,
    from_sentence_encoder: bool,
) -> FewRows:
    """Decide what is done because the data have few rows. Only classifiers with one label in each
    row learn from pairs, and only in one process.

    Args:
        run: The run with its defaults filled in.
        args: The arguments of the Trainer.
        rows: All rows of the data.
        from_sentence_encoder: Whether the training starts from a converted sentence encoder.
    """
    data = run.data
    if not isinstance(data, ClassifyDataArguments) or problem_type_in(data, rows) != SINGLE:
        return FewRows()
    are_many = len(rows["train"]) >= MAX_CONTRASTIVE_ROWS
    if are_many or not data.fit_head or args.world_size > 1:
        return FewRows()
    given = [*run.given, *run.training.training_arguments]
    may_stop = not data.join_baseline and FINE_TUNING_OPTIONS.isdisjoint(given)
    min_rows = MAX_CONTRASTIVE_ROWS if may_stop and from_sentence_encoder else MIN_ROWS_TO_SPLIT
    return FewRows(
        min_rows_to_split=min_rows,
        learns_from_pairs=True,
        stops_after_fitting=may_stop,
    )
