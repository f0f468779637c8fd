"""What a training does by default when it starts from weights that were trained before."""

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..output_directory import RESULTS_FILE
from ..saved_files import read_optional_object

# Weights learned from much text are lost at the rate of a new model. Those that this command has trained from scratch
# on a person's own text stand closer to their beginning, and need a higher rate.
_DEFAULTS = {
    "learning_rate": 1e-4,
    "num_train_epochs": 4.0,
    "warmup_steps": 0.1,
    "word_dropout": 0.0,
    "ema_decay": None,
}
_DEFAULTS_OF_OWN_WEIGHTS = {**_DEFAULTS, "learning_rate": 3e-4}


@dataclass(frozen=True)
class FineTuning:
    """How one `train` command starts.

    Args:
        own_weights: Whether all weights were trained by this command, from scratch, now or before.
        defaults: Options that were not given, and their values in fine-tuning; empty in training from scratch.
    """

    own_weights: bool = True
    defaults: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, parser: ArgumentParser, argv: Sequence[str]) -> "FineTuning":
        """That of the options `argv`, which `parser` parses later with `defaults` as its own.

        Raises:
            InputError: when a model given is not there.
        """
        before = {name: parser.get_default(name) for name in _DEFAULTS}
        parser.set_defaults(**dict.fromkeys(_DEFAULTS))  # None tells which are not given
        options, _ = parser.parse_known_args(list(argv))
        parser.set_defaults(**before)
        names = ("model_name_or_path", "encoder_name_or_path", "decoder_name_or_path")
        given = [name for name in (getattr(options, option, None) for option in names) if name is not None]
        if not given:
            return cls()
        own_weights = all(map(_trained_from_scratch, given))
        defaults = _DEFAULTS_OF_OWN_WEIGHTS if own_weights else _DEFAULTS
        return cls(own_weights, {name: value for name, value in defaults.items() if getattr(options, name) is None})

    def summary(self) -> dict[str, Any]:
        """What `results.json` says, for the card and for a training that starts from this model."""
        return {"own_weights": self.own_weights, "fine_tuning_defaults": list(self.defaults)}


def _trained_from_scratch(name: str) -> bool:
    """Whether the model at `name` was made by this command without weights of another system."""
    training = read_optional_object(name, RESULTS_FILE).get("training")
    return isinstance(training, dict) and training.get("own_weights") is True
