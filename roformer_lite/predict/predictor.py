"""A saved model that answers texts, whatever its task."""

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from ..errors import InputError, require_packages
from ..output import RESULTS_FILE
from ..saved_model import (
    load_config,
    load_tokenizer,
    most_positions,
    read_optional_object,
    reason,
    try_tokenizer,
    without_reports,
)
from ..tasks.base import Task
from ..tasks.registry import TASKS
from .answers import ANSWERS, Answer, Answers, Input, SavedModel
from .engines import FASTEST, Engine, check_engine, exported_engines, load_engine

_COMPARED = 32  # texts that are answered by every engine, before one of them is taken
_FEWEST = 8  # batches of at most so many texts that are worth it
_WORTH = 0.9  # of the time of the fastest so far, which an engine must stay below

logger = logging.getLogger(__name__)


@dataclass
class Predictor:
    """A saved model, ready to answer.

    Args:
        task: What the model was trained for.
        saved: The model, its tokenizer and settings.
        answers: How it answers.
        compared: The directory whose exported engines are tried on the first inputs; None once one
            was taken.
    """

    task: type[Task]
    saved: SavedModel
    answers: Answers
    compared: str | None = None

    @classmethod
    def load(
        cls,
        directory: str,
        device: str | None = None,
        options: dict[str, Any] | None = None,
        engine: str = "torch",
    ) -> "Predictor":
        """Load what `roformer-lite train` saved, or any checkpoint of this architecture with a
        head.

        Args:
            directory: Of the model, or its name on the Hub.
            device: Where it shall compute. Default: the first GPU, if there is one.
            options: Those that `answer` will get; checked before the weights are read.
            engine: What computes: `torch`; `onnx`, `openvino` or `ctranslate2` with a directory
                that was exported for it; or `auto`, the fastest of torch and those that lie in the
                directory, chosen on the first inputs of `answer`.

        Raises:
            InputError: when there is no model, a file of it is missing or wrong, none of the tasks
                fits its architecture, or it does not use one of the options.
        """
        if engine == FASTEST:
            predictor = cls.load(directory, device, options)
            predictor.compared = directory
            return predictor
        config, results = load_config(directory), read_optional_object(directory, RESULTS_FILE)
        task, settings = _task_of(config, results, directory), results.get("settings", {})
        if not isinstance(settings, dict) or not isinstance(settings.get("pairs", False), bool):
            raise InputError(
                f"{directory}/{RESULTS_FILE}: settings must be an object, and pairs in it true or false"
            )
        tokenizer = load_tokenizer(directory, config)
        if tokenizer is None:
            raise InputError(f"no model can be loaded from {directory}: it has no tokenizer")
        try_tokenizer(tokenizer, directory)
        require_packages(directory, task.arguments.packages)
        kind = ANSWERS[task.name]
        kind.check(task.name, config, settings, options or {})
        if engine not in kind.engines:
            raise InputError(
                f"--engine {engine} is not for {task.name} models, which take {', '.join(kind.engines)}"
            )
        model: PreTrainedModel | Engine
        if engine == "torch":
            model = kind.load(directory, config, _device(device))
        else:
            model = load_engine(engine, directory, config, tokenizer)
        if isinstance(model, PreTrainedModel):
            positions = most_positions(model)
        else:  # a graph, whose table can't be seen
            is_table = getattr(config, "position_embedding_type", None) == "learned"
            positions = config.max_position_embeddings if is_table else None
        if positions is not None:
            tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
        saved = SavedModel(model, tokenizer, settings, positions)
        predictor = cls(task, saved, kind(saved))
        predictor._try(directory)
        return predictor

    def _try(self, directory: str) -> None:
        """Answer one line. Each of the files may be right, and what they say about the model not
        fit together."""
        line = "a\ta" if self.saved.settings.get("pairs") else "a"
        with warnings.catch_warnings(), without_reports():  # about the one token that is generated
            warnings.simplefilter("ignore")
            try:
                self.answer([line], 1, {"max_new_tokens": 1})
            except (InputError, torch.OutOfMemoryError):
                raise
            # whatever the model and the libraries raise, it is about what was saved
            except Exception as error:
                raise InputError(
                    f"{directory}: its configuration, settings and tokenizer do not fit together: {reason(error)}"
                ) from error

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
            options: Those of `predict` for the task, by their names.
            report: Called with the number of inputs that were answered since the last call.
        """
        options, report = options or {}, report or (lambda count: None)
        if self.compared is not None:
            self._take_fastest(inputs, batch_size, options)
        nothing = dict.fromkeys(self.answers.columns(options))
        answers = [Answer("", dict(nothing)) for _ in inputs]
        order = sorted(
            (i for i, given in enumerate(inputs) if not _is_empty(given)),
            key=lambda i: _size(inputs[i]),
        )
        report(len(inputs) - len(order))
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            batch = [
                given.strip("\r\n") if isinstance(given := inputs[i], str) else given
                for i in indices
            ]
            for i, answer in zip(indices, self.answers.answer(batch, options), strict=True):
                answers[i] = answer
            report(len(indices))
        return answers

    def _take_fastest(
        self, inputs: Sequence[Input], batch_size: int, options: dict[str, Any]
    ) -> None:
        """Go on with the engine that answers a part of `inputs` in the shortest time, of torch and
        those whose answers agree with torch's, and log why the others were not taken.

        The texts are those of middle length, which share a batch as they will later. Where tokens
        are drawn at random the most probable ones are compared.
        """
        directory, self.compared = self.compared, None
        texts = sorted((given for given in inputs if not _is_empty(given)), key=_size)
        exported, device = exported_engines(directory), str(self.saved.model.device)
        if not exported or len(texts) < _FEWEST * min(batch_size, _COMPARED):
            few = f"{len(texts)} texts are too few to compare engines"
            logger.info(
                "--engine auto took torch: %s",
                few if exported else f"{directory} has no exported engine",
            )
            return
        first = max(0, len(texts) - _COMPARED) // 2
        arguments = (
            texts[first : first + _COMPARED],
            batch_size,
            {"greedy": "beams" not in options, **options},
        )
        expected, shortest = self._timed(*arguments)
        name, others = "torch", []
        for engine in exported:
            try:
                check_engine(engine, directory, device)
                other = Predictor.load(directory, engine=engine)
                found, seconds = other._timed(*arguments)
                differ = sum(
                    not ours.agrees_with(theirs)
                    for ours, theirs in zip(expected, found, strict=True)
                )
            except Exception as error:  # whatever the engine raises, torch can answer
                others.append(f"{engine}: {reason(error)}")
                continue
            if differ:
                others.append(f"{engine}: {differ} of {len(expected)} answers differ from torch's")
            elif seconds > _WORTH * shortest:
                others.append(f"{engine}: {seconds:.3f} s")
            else:
                others.append(f"{name}: {shortest:.3f} s")
                name, shortest, self.saved, self.answers = (
                    engine,
                    seconds,
                    other.saved,
                    other.answers,
                )
        took = f"{name}, {shortest:.3f} s for {len(expected)} texts"
        logger.info("--engine auto took %s; not %s", took, "; ".join(others))

    def _timed(self, *arguments: Any) -> tuple[list[Answer], float]:
        """The answers, and the seconds that they take once the engine is warm."""
        answers, start = self.answer(*arguments), time.perf_counter()
        self.answer(*arguments)
        return answers, time.perf_counter() - start


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


def _task_of(config: PreTrainedConfig, results: dict[str, Any], directory: str) -> type[Task]:
    """The task whose architecture the model has; of several the one that it was trained for."""
    architectures = config.architectures if isinstance(config.architectures, list) else []
    architecture = str((architectures or ["no architecture"])[0])
    fitting = [
        task for task in TASKS.values() if architecture.endswith(task.model_class.architecture)
    ]
    if not fitting:
        raise InputError(
            f"{directory}/config.json: {architecture} fits none of the tasks {', '.join(TASKS)}"
        )
    return next((task for task in fitting if task.name == results.get("task")), fitting[0])
