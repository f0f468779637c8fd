"""The predictions of a saved model.

All commands use the same predictions: `predict` writes them as a table, and `evaluate`, the card,
the verdict, the thresholds and the page are based on them.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import Pipeline, PreTrainedTokenizerBase, pipeline
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.integrations import RERANKER_FIELDS
from hf_roformer_lite.padding_free import padding_free

from .errors import InputError, require_packages
from .onnx_model import OnnxModel
from .output import RESULTS_FILE
from .recipes import RECIPES
from .recipes.base import Input, Recipe
from .saved_model import (
    load_config,
    max_positions,
    read_optional_object,
    reason,
    require_tokenizer,
    try_tokenizer,
    without_reports,
)

logger = logging.getLogger(__name__)

# A tokenizer adds at most this many tokens to a text or a pair of texts.
MAX_ADDED_TOKENS = 8
# In these types of rotary positions, the angles depend on the longest text of a batch.
BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


@dataclass
class SavedModel:
    """A saved model that is ready to predict.

    Args:
        recipe: The task, with the settings of the training.
        model: A model of transformers or sentence-transformers, or an exported graph.
        tokenizer: The saved tokenizer.
        positions: The maximum number of positions; None if there is no limit.
        results: The saved results of its training; empty for other checkpoints.
    """

    recipe: Recipe
    model: Any
    tokenizer: PreTrainedTokenizerBase
    positions: int | None = None
    results: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def pipe(self) -> Pipeline:
        """The stock pipeline of the task."""
        # The type of the function lists every task of transformers.
        make: Callable[..., Pipeline] = pipeline
        # Some pipelines change their tokenizer, so they get a copy.
        return make(
            self.recipe.pipeline_tag,
            model=self.model,
            tokenizer=copy(self.tokenizer),
            device=self.model.device,
        )

    @torch.inference_mode()
    def answers(
        self,
        inputs: Sequence[Input],
        batch_size: int,
        options: dict[str, Any] | None = None,
        report: Callable[[int], Any] | None = None,
    ) -> list[Any]:
        """The predictions for the inputs in their order, with None for an empty input.

        Inputs of similar length share a batch, which saves time in models that compute padding.

        Args:
            inputs: Texts, pairs of texts or lists of words, depending on the task.
            batch_size: The number of inputs in a batch.
            options: The options of `predict` for the task by name.
            report: Called with the number of inputs that were processed since the last call.
        """
        options = options or {}
        answers: list[Any] = [None] * len(inputs)
        places = [place for place, given in enumerate(inputs) if not is_empty(given)]
        places.sort(key=lambda place: len("".join(inputs[place])))
        if self.recipe.truncates:
            self.warn_of_truncation([inputs[place] for place in places])
        if report is not None:
            report(len(inputs) - len(places))
        for start in range(0, len(places), batch_size):
            batch = places[start : start + batch_size]
            found = self.recipe.answer(self, [inputs[place] for place in batch], options)
            for place, answer in zip(batch, found, strict=True):
                answers[place] = answer
            if report is not None:
                report(len(batch))
        return answers

    def lengths(self, inputs: Sequence[Input], **options: Any) -> list[int]:
        """The number of tokens of each text, or of each pair of texts."""
        texts = [given if isinstance(given, str) else tuple(given) for given in inputs]
        encoded = self.tokenizer(texts, truncation=False, verbose=False, **options)
        return [len(ids) for ids in encoded["input_ids"]]

    def warn_of_truncation(self, inputs: Sequence[Input]) -> None:
        """Warn about inputs that are too long for the model."""
        longest = getattr(self.model, "max_seq_length", None) or self.tokenizer.model_max_length
        # A token has at least one byte, so texts with fewer bytes fit and need not be tokenized.
        room = longest - MAX_ADDED_TOKENS
        doubtful = [given for given in inputs if len("".join(given).encode()) > room]
        if not doubtful:
            return
        truncated = sum(length > longest for length in self.lengths(doubtful))
        if truncated:
            logger.warning("%d lines are truncated to %d tokens", truncated, longest)

    def check_positions(self, inputs: list[str], more: int = 0, **options: Any) -> None:
        """Refuse an input that, together with `more` tokens, exceeds the positions of the model.

        Raises:
            InputError: with the input and both numbers.
        """
        if self.positions is None:
            return
        for given, length in zip(inputs, self.lengths(inputs, **options), strict=True):
            if length + more > self.positions:
                generated = f", including {more} to generate (--max_new_tokens)" if more else ""
                raise InputError(
                    f"{given[:40]!r} needs {length + more} positions{generated}, but this model has "
                    f"positions for only {self.positions}"
                )


def open_model(
    directory: str | Path,
    device: str | None = None,
    options: dict[str, Any] | None = None,
    engine: str = "torch",
) -> SavedModel:
    """Open a model that `roformer-lite train` saved, or any checkpoint with a head of one of the
    tasks.

    Args:
        directory: The directory of the model, or its name on the Hub.
        device: The device to use. Default: the first GPU, if there is one.
        options: The options that `answers` will get. They are checked before the weights are read.
        engine: `torch`, or `onnx` for a directory that was exported for it.

    Raises:
        InputError: if there is no model, if one of its files is missing or wrong, if none of the
            tasks fits its architecture, or if the model does not use one of the options.
    """
    directory = str(directory)
    config = load_config(directory)
    results = read_optional_object(directory, RESULTS_FILE)
    recipe = recipe_of(directory, config, results)
    tokenizer = require_tokenizer(directory, config)
    try_tokenizer(tokenizer, directory)
    require_packages(directory, recipe.options.packages)
    recipe.tokenizer = tokenizer
    recipe.check_options(config, options or {})
    if engine not in recipe.engines:
        raise InputError(
            f"--engine {engine} is not for {recipe.name} models, which take "
            f"{', '.join(recipe.engines)}"
        )
    if engine == "onnx":
        model = OnnxModel.load(directory, config)
    else:
        model = recipe.open(directory, config, device_named(device))
        # A model that does not support this computes padding. The training reports the reason.
        with suppress(ValueError):
            padding_free(model)
        model.eval()
        if getattr(config, "quantization_config", None) is None:
            # The weights may be saved in half precision.
            model.float()
    positions = positions_of(model, config)
    if positions is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
        if hasattr(model, "max_seq_length"):
            model.max_seq_length = min(model.max_seq_length or positions, positions)
    saved = SavedModel(
        recipe=recipe, model=model, tokenizer=tokenizer, positions=positions, results=results
    )
    try_model(saved, directory)
    batch_dependent = BATCH_DEPENDENT_ROPE.intersection(rope_types_of(config))
    if batch_dependent:
        logger.warning(
            "%s has positions of the type %s, which are scaled by the longest text of a batch: "
            "predictions depend on the batch (with --batch_size 1 each text has a batch of its own)",
            directory,
            ", ".join(sorted(batch_dependent)),
        )
    return saved


def recipe_of(directory: str, config: PreTrainedConfig, results: dict[str, Any]) -> Recipe:
    """The recipe of the task that fits the architecture of a model, with the settings of its
    training. If several tasks fit, it is the one that the model was trained for.

    Raises:
        InputError: if no task fits, or if the settings are damaged.
    """
    named = config.architectures if isinstance(config.architectures, list) else []
    architecture = str((named or ["no architecture"])[0])
    fitting = [kind for kind in RECIPES.values() if architecture.endswith(kind.architecture)]
    if not fitting:
        raise InputError(
            f"{directory}/config.json: {architecture} fits none of the tasks {', '.join(RECIPES)}"
        )
    # Rerankers of other programs have the class of a classifier, and these fields of
    # sentence-transformers.
    has_field = any(hasattr(config, name) for name in RERANKER_FIELDS)
    is_reranker = config.num_labels == 1 and has_field
    task = results.get("task", "rerank" if is_reranker else None)
    kind = next((kind for kind in fitting if kind.name == task), fitting[0])
    settings = results.get("settings", {})
    if not isinstance(settings, dict):
        raise InputError(f"{directory}/{RESULTS_FILE}: settings must be an object")
    known = {
        name: settings[name] for name in kind.options_class.measuring_options & settings.keys()
    }
    try:
        recipe = kind(kind.options_class(dataset_name="-", **known))
        recipe.inspect_model(config, settings)
    except (InputError, TypeError, AttributeError) as error:
        raise InputError(f"{directory}/{RESULTS_FILE}: settings: {error}") from error
    return recipe


def positions_of(model: Any, config: PreTrainedConfig) -> int | None:
    """The maximum number of positions of a model; None if there is no limit. For a graph, the
    number comes from the configuration, because the tables of a graph are not accessible."""
    if isinstance(model, torch.nn.Module):
        return max_positions(model)
    tables = [
        stack.max_position_embeddings
        for stack in configs_of_stacks(config)
        if getattr(stack, "position_embedding_type", None) == "learned"
    ]
    return min(tables, default=None)


def configs_of_stacks(config: PreTrainedConfig) -> list[Any]:
    """The configuration of a model, followed by those of its encoder and decoder if it has two."""
    parts = (config, getattr(config, "encoder", None), getattr(config, "decoder", None))
    return [part for part in parts if part is not None]


def rope_types_of(config: PreTrainedConfig) -> set[str]:
    """The types of rotary positions of a model. They may differ between encoder and decoder and
    between kinds of layers."""
    found = set()
    for part in configs_of_stacks(config):
        parameters = getattr(part, "rope_parameters", None) or {}
        for each in (parameters, *parameters.values()):
            if isinstance(each, dict):
                found.add(each.get("rope_type", "default"))
    return found


def try_model(saved: SavedModel, directory: str) -> None:
    """Predict for two lines of different lengths, to check that the files of the model fit together.

    Raises:
        InputError: if they do not.
    """
    with warnings.catch_warnings(), without_reports():
        warnings.simplefilter("ignore")
        try:
            lines = ["a\ta", "a a a\ta"] if saved.recipe.takes_pairs else ["a", "a a a"]
            given = [saved.recipe.input_of_line(line) for line in lines]
            saved.answers(given, batch_size=2, options={"max_new_tokens": 2})
        except (InputError, torch.OutOfMemoryError):
            raise
        # Any other error, of the model or of a library, means that the saved files are wrong.
        except Exception as error:
            raise InputError(
                f"{directory}: its configuration, settings and tokenizer do not fit together: "
                f"{reason(error)}"
            ) from error


def device_named(name: str | None) -> torch.device:
    """The device with this name, or the default device.

    Raises:
        InputError: if torch does not know the device, or if this machine does not have it.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    # A build of torch without CUDA raises an AssertionError.
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {name} cannot be used here: {reason(error)}") from error
    return device


def is_empty(given: Input) -> bool:
    parts = [given] if isinstance(given, str) else given
    return not parts or not all(part.strip() for part in parts)
