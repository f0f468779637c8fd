"""A saved model that answers texts, whatever its task."""

import copy
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from ..engines.loading import Engine, load_engine
from ..errors import InputError
from ..output_directory import RESULTS_FILE
from ..saved_files import read_optional_object, reason
from ..saved_model import (
    load_config,
    load_tokenizer,
    try_tokenizer,
    without_reports,
)
from ..training.tasks import TASKS
from ..training.tasks.answers import Answer, Input, SavedModel
from ..training.tasks.base import Task
from .required_packages import require_packages

_TRIED_BATCHES, _MIN_GAIN = 4, 1.1  # a smaller gain could be chance
_FOUND_IN_TRAINING = {"pairs": bool, "unit": str}  # settings that are no options of `train`, or not only


@dataclass
class Predictor:
    """A saved model, ready to answer."""

    task: type[Task]
    saved: SavedModel

    @classmethod
    def load(
        cls,
        directory: str,
        device: str | None = None,
        options: dict[str, Any] | None = None,
        engine: str = "torch",
    ) -> "Predictor":
        """Load what `roformer-lite train` saved, or any checkpoint of this architecture with a head.

        Args:
            directory: Of the model, or its name on the Hub.
            device: Where it shall compute. Default: the first GPU, if there is one.
            options: Those that `answer` will get; checked before the weights are read.
            engine: What computes: `torch`, or `onnx`, `openvino` or `ctranslate2` with a directory that was exported
                for it.

        Raises:
            InputError: when there is no model, a file of it is missing or wrong, none of the tasks fits its
                architecture, or it does not use one of the options.
        """
        config = load_config(directory)
        task = _task_of(config, directory)
        tokenizer = load_tokenizer(directory)
        if tokenizer is None:
            raise InputError(f"no model can be loaded from {directory}: it has no tokenizer")
        _check_tokenizer(tokenizer, config, directory)
        settings = _settings(directory, task)
        require_packages(directory, task.arguments.packages)
        task.check_prediction_options(config, settings, options or {})
        model: PreTrainedModel | Engine
        if engine not in task.engines:
            raise InputError(f"--engine {engine} is not for {task.name} models, which take {', '.join(task.engines)}")
        if engine == "torch":
            place = _device(device)
            model = task.load(directory, config, place)
        else:
            model = load_engine(engine, directory, config, tokenizer)
        predictor = cls(task, SavedModel(model, tokenizer, settings))
        predictor._try(directory)
        return predictor

    def _try(self, directory: str) -> None:
        """Answer one line. Each of the files may be right, and what they say about the model not fit together."""
        line = "a\ta" if self.saved.settings.get("pairs") else "a"
        with warnings.catch_warnings(), without_reports():  # about the one token that is generated
            warnings.simplefilter("ignore")
            try:
                self.answer([line], 1, {"max_new_tokens": 1})
            except (InputError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # whatever the model and the libraries raise, it is about what was saved
                raise InputError(
                    f"{directory}: config.json, generation_config.json and the tokenizer do not fit together: "
                    f"{reason(error)}"
                ) from error

    @property
    def is_half(self) -> bool:
        """Whether the model computes in bfloat16."""
        return next(self.saved.model.parameters()).dtype == torch.bfloat16

    def take_bfloat16(self) -> None:
        """Compute in bfloat16 from now on."""
        self.saved.model.to(torch.bfloat16)

    def take_faster_type(self, inputs: Sequence[Input], batch_size: int, options: dict[str, Any]) -> float:
        """Answer a few batches in float32 and in bfloat16, and take bfloat16 where it is faster by a tenth or more.

        Returns:
            How many times as fast bfloat16 is.
        """
        by_length = sorted(inputs, key=_size)
        sample = by_length[:: max(1, len(by_length) // (_TRIED_BATCHES * batch_size))]
        half = Predictor(self.task, replace(self.saved, model=copy.deepcopy(self.saved.model)))
        half.take_bfloat16()
        seconds, device = {}, self.saved.model.device
        for _ in range(2):  # the first round compiles the shapes
            for predictor in (self, half):
                started = time.perf_counter()
                with torch.random.fork_rng([device] if device.type == "cuda" else []):
                    predictor.answer(sample, batch_size, options)
                seconds[predictor is half] = time.perf_counter() - started
        gain = seconds[False] / seconds[True]
        if gain >= _MIN_GAIN:
            self.saved = half.saved
        return gain

    @torch.inference_mode()
    def answer(
        self,
        inputs: Sequence[Input],
        batch_size: int,
        options: dict[str, Any] | None = None,
        report: Callable[[int], Any] | None = None,
    ) -> list[Answer]:
        """An answer to each input, in order; an empty input has an empty answer.

        Inputs of similar length share a batch, which costs least.

        Args:
            inputs: Texts, pairs of texts or lists of tokens, whatever the task takes.
            batch_size: Number of inputs in a batch.
            options: Of the task's `predict`, by their names.
            report: Called with the number of inputs that were answered since the last call.
        """
        options, report = options or {}, report or (lambda count: None)
        nothing = dict.fromkeys(self.task.answer_columns(self.saved, options))
        answers = [Answer("", dict(nothing)) for _ in inputs]
        order = sorted((i for i, given in enumerate(inputs) if not _is_empty(given)), key=lambda i: _size(inputs[i]))
        report(len(inputs) - len(order))
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = [given.strip("\r\n") if isinstance(given := inputs[i], str) else given for i in indices]
            for i, answer in zip(indices, self.task.predict(self.saved, batch, options), strict=True):
                answers[i] = answer
            report(len(indices))
        return answers


def _is_empty(given: Input) -> bool:
    parts = [given] if isinstance(given, str) else given
    return not parts or not all(part.strip() for part in parts)


def _size(given: Input) -> int:
    return len(given) if isinstance(given, str) else sum(map(len, given))


def _device(name: str | None) -> torch.device:
    """Where to compute.

    Raises:
        InputError: when torch knows no such device, or this machine has none.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise InputError(f"--device {name} cannot be used here: {reason(error)}") from error
    return device


def _task_of(config: PreTrainedConfig, directory: str) -> type[Task]:
    architectures = config.architectures if isinstance(config.architectures, list) else []
    architecture = str((architectures or ["no architecture"])[0])
    fitting = [task for task in TASKS.values() if architecture.endswith(task.architecture)]
    if not fitting:
        raise InputError(f"{directory}/config.json: {architecture} fits none of the tasks {', '.join(TASKS)}")
    noted = read_optional_object(directory, RESULTS_FILE).get("task")
    return next((task for task in fitting if task.name == noted), fitting[0])


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, directory: str) -> None:
    vocab_size = getattr(getattr(config, "encoder", config), "vocab_size", None)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if vocab_size and largest >= vocab_size:
        raise InputError(
            f"{directory}: the tokenizer has {largest + 1} tokens, but config.json says vocab_size={vocab_size}; give "
            "the tokenizer that the model was trained with"
        )
    try_tokenizer(tokenizer, directory)


def _settings(directory: str, task: type[Task]) -> dict[str, Any]:
    """What the training has noted in its results for later commands.

    Raises:
        InputError: when it is not what a training notes.
    """
    settings = read_optional_object(directory, RESULTS_FILE).get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"{directory}/{RESULTS_FILE}: settings must be an object")
    hints = get_type_hints(task.arguments)
    kinds = {**{name: hints[name] for name in task.arguments.measuring_options}, **_FOUND_IN_TRAINING}
    for name, kind in kinds.items():
        if name in settings and not _is_of(settings[name], kind):
            shown = getattr(kind, "__name__", str(kind))
            raise InputError(
                f"{directory}/{RESULTS_FILE}: settings.{name} must be of type {shown}, not {settings[name]!r}"
            )
    return settings


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
