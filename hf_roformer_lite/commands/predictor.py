"""A saved model that answers lines of text, whatever its task."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from ..errors import InputError
from ..output_directory import RESULTS_FILE
from ..saved_files import read_optional_object, reason
from ..saved_model import (
    load_complete_model,
    load_config,
    load_tokenizer,
    model_class_of,
    try_tokenizer,
    without_reports,
)
from ..training.tasks import TASKS
from ..training.tasks.base import SavedModel, Task

_SETTINGS = {"pairs": bool, "label_separator": str, "unit": str}  # of all tasks' `prediction_settings`


@dataclass
class Predictor:
    """A saved model, ready to answer lines."""

    task: type[Task]
    saved: SavedModel

    @classmethod
    def load(cls, directory: str, device: str | None = None) -> "Predictor":
        """Load what `roformer-lite train` saved, or any checkpoint of this architecture with a head.

        Raises:
            InputError: when there is no model, a file of it is missing or wrong, or none of the tasks fits its
                architecture.
        """
        config = load_config(directory)
        task = _task_of(config, directory)
        tokenizer = load_tokenizer(directory)
        if tokenizer is None:
            raise InputError(f"no model can be loaded from {directory}: it has no tokenizer")
        _check_tokenizer(tokenizer, config, directory)
        settings = _settings(directory)
        model = load_complete_model(directory, config, model_class_of(config, directory))
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        predictor = cls(task, SavedModel(model.to(device).eval(), tokenizer, settings))
        predictor._try(directory)
        return predictor

    def _try(self, directory: str) -> None:
        """Answer one line. Each of the files may be right, and what they say about the model not fit together."""
        line = "a\ta" if self.saved.settings.get("pairs") else "a"
        with warnings.catch_warnings(), without_reports():  # about the one token that is generated
            warnings.simplefilter("ignore")
            try:
                self.answer([line], 1, {"max_new_tokens": 1, "max_length": None})
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever the model and the libraries raise, it is about what was saved
                raise InputError(
                    f"{directory}: config.json, generation_config.json and the tokenizer do not fit together: "
                    f"{reason(error)}"
                ) from error

    @torch.inference_mode()
    def answer(self, lines: list[str], batch_size: int, generation: dict[str, Any]) -> list[str]:
        """One answer for each line, in order; an empty line has an empty answer.

        Lines of similar length share a batch, which costs least.
        """
        answers = [""] * len(lines)
        order = sorted((i for i, line in enumerate(lines) if line.strip()), key=lambda i: len(lines[i]))
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = [lines[i].strip("\r\n") for i in indices]
            outputs = self.task.predict(self.saved, batch, generation)
            for i, output in zip(indices, outputs, strict=True):
                answers[i] = " ".join(output.split("\n")).strip()
        return answers


def _task_of(config: PreTrainedConfig, directory: str) -> type[Task]:
    architectures = config.architectures if isinstance(config.architectures, list) else []
    architecture = str((architectures or ["no architecture"])[0])
    fitting = [task for task in TASKS.values() if architecture.endswith(task.architecture)]
    if not fitting:
        raise InputError(f"{directory}/config.json: {architecture} fits none of the tasks {', '.join(TASKS)}")
    return fitting[0]


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, directory: str) -> None:
    vocab_size = getattr(getattr(config, "encoder", config), "vocab_size", None)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if vocab_size and largest >= vocab_size:
        raise InputError(
            f"{directory}: the tokenizer has {largest + 1} tokens, but config.json says vocab_size={vocab_size}; give "
            "the tokenizer that the model was trained with"
        )
    try_tokenizer(tokenizer, directory)


def _settings(directory: str) -> dict[str, Any]:
    """What the training has noted for predictions in its results.

    Raises:
        InputError: when it is not what a training notes.
    """
    settings = read_optional_object(directory, RESULTS_FILE).get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"{directory}/{RESULTS_FILE}: settings must be an object")
    for name, kind in _SETTINGS.items():
        if not isinstance(settings.get(name, kind()), kind):
            raise InputError(f"{directory}/{RESULTS_FILE}: settings.{name} must be a {kind.__name__}")
    return settings
