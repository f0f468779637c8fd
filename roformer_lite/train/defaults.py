"""Defaults of a training that depend on its task and on the model that it starts from."""

from dataclasses import replace
from typing import Any

from ..output import RESULTS_FILE
from ..run import Run
from ..saved_model import read_optional_object
from ..task_options import ClassifyDataArguments

_DEFAULTS = {
    "learning_rate": 5e-4,
    "warmup_steps": 0.06,
    "per_device_train_batch_size": 32,
    # None stands for as many as the size of the data suggests.
    "num_train_epochs": None,
    "word_dropout": 0.0,
    "ema_decay": 0.0,
}
# Weights learned from much text are lost at the rate of a new model. Those that this command has
# trained from scratch on a person's own text stand closer to their beginning, and need a higher
# rate.
_FINE_TUNING = {
    "learning_rate": 1e-4,
    "num_train_epochs": 4.0,
    "warmup_steps": 0.1,
    "word_dropout": 0.0,
    "ema_decay": 0.0,
}
_RATE_OF_OWN_WEIGHTS = 3e-4
# Tokens of a text to classify. Short texts cost nothing more; the memory that pretrained models
# need grows with the limit.
_LONGEST_TEXT = 2048
_LONGEST_FINE_TUNED = 256


def own_weights(run: Run) -> bool:
    """Whether all weights are trained by this command, from scratch, now or before."""
    for name in run.model.pretrained:
        training = read_optional_object(name, RESULTS_FILE).get("training")
        if not isinstance(training, dict) or training.get("own_weights") is not True:
            return False
    return True


def default_values(run: Run) -> dict[str, Any]:
    """The values of the options of training that were not given and whose defaults depend on task
    and model."""
    values = {**_DEFAULTS, **run.data.training_defaults}
    if run.model.pretrained:
        values |= _FINE_TUNING
        if own_weights(run):
            values["learning_rate"] = _RATE_OF_OWN_WEIGHTS
    return {name: value for name, value in values.items() if getattr(run.training, name) is None}


def fine_tuning_defaults(run: Run) -> list[str]:
    """The options that were not given and have a default of their own in fine-tuning."""
    if not run.model.pretrained:
        return []
    return [name for name in _FINE_TUNING if getattr(run.training, name) is None]


def with_defaults(run: Run) -> Run:
    """The same run with those values filled in, and the longest text of a task that leaves it
    open."""
    data = run.data
    if isinstance(data, ClassifyDataArguments) and data.max_length is None:
        longest = _LONGEST_FINE_TUNED if run.model.pretrained else _LONGEST_TEXT
        data = replace(data, max_length=longest)
    values = default_values(run)
    training = replace(run.training, **values)
    return replace(run, data=data, training=training, filled=frozenset(values))
