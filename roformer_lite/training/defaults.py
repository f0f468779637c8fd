"""Training defaults that depend on the task and on the model to start from."""

from dataclasses import replace
from typing import Any

from ..options.run import Run
from ..options.tasks import ClassifyDataArguments
from ..output import RESULTS_FILE
from ..saved.saved_model import read_optional_object

_DEFAULTS = {
    "learning_rate": 5e-4,
    "warmup_steps": 0.06,
    "per_device_train_batch_size": 32,
    # None means that the number depends on the size of the data.
    "num_train_epochs": None,
    "word_dropout": 0.0,
    "ema_decay": 0.0,
}
# The learning rate of a new model would destroy weights learned from much text. Weights that this
# command has trained from scratch on the user's own text are closer to their initial values and
# need a higher rate.
_FINE_TUNING = {
    "learning_rate": 1e-4,
    "num_train_epochs": 4.0,
    "warmup_steps": 0.1,
    "word_dropout": 0.0,
    "ema_decay": 0.0,
}
_OWN_WEIGHTS_LEARNING_RATE = 3e-4
# The default limits on the tokens of a text to classify. A high limit costs nothing for short
# texts, but the memory that pretrained models need grows with it.
MAX_LENGTH = 2048
MAX_FINE_TUNING_LENGTH = 256


def own_weights(run: Run) -> bool:
    """Whether this command has trained all weights from scratch, in this or an earlier run."""
    name = run.model.model_name_or_path
    if name is None:
        return True
    training = read_optional_object(name, RESULTS_FILE).get("training")
    return isinstance(training, dict) and training.get("own_weights") is True


def with_defaults(run: Run) -> Run:
    """The same run with the training options filled in that were not given and whose defaults
    depend on the task and the model, and with the maximum length of texts to classify."""
    data = run.data
    filled = set()
    if isinstance(data, ClassifyDataArguments) and data.max_length is None:
        filled.add("max_length")
        max_length = MAX_FINE_TUNING_LENGTH if run.model.model_name_or_path else MAX_LENGTH
        data = replace(data, max_length=max_length)
    values: dict[str, Any] = {**_DEFAULTS, **run.data.training_defaults}
    if run.model.model_name_or_path:
        values |= _FINE_TUNING
        if own_weights(run):
            values["learning_rate"] = _OWN_WEIGHTS_LEARNING_RATE
    values = {name: value for name, value in values.items() if getattr(run.training, name) is None}
    training = replace(run.training, **values)
    return replace(run, data=data, training=training, filled=frozenset(filled.union(values)))
