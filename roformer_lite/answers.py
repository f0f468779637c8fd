"""The one way in which a saved model answers.

`predict` writes the table of these answers; `evaluate`, the card, the verdict, thresholds and the
page read it.
"""

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import Pipeline, PreTrainedTokenizerBase, pipeline
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.padding_free import padding_free

from .errors import InputError, require_packages
from .onnx_model import OnnxModel
from .output import RESULTS_FILE
from .recipes import RECIPES
from .recipes.base import Input, Recipe
from .saved_model import (
    load_config,
    load_tokenizer,
    max_positions,
    read_optional_object,
    reason,
    try_tokenizer,
    without_reports,
)

logger = logging.getLogger(__name__)

# Tokens that a tokenizer may add to a text, or to a pair of texts.
MAX_ADDED_TOKENS = 8
# The types of rotary positions whose angles depend on the longest text of a batch.
BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


@dataclass
class SavedModel:
    """A saved model, ready to answer.

    Args:
        recipe: Of its task, with the settings of its training.
        model: Of transformers or sentence-transformers, or a graph in its place.
        tokenizer: As saved.
        positions: The number of tokens that the model has positions for, if they end.
    """

    recipe: Recipe
    model: Any
    tokenizer: PreTrainedTokenizerBase
    positions: int | None = None

    @cached_property
    def pipe(self) -> Pipeline:
        """The stock pipeline of the task."""
        # Some pipelines change their tokenizer.
        return pipeline(
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
        """An answer to each input, in order; None to an empty one.

        Inputs of similar length share a batch, which costs least where padding is computed.

        Args:
            inputs: Texts, pairs of texts or lists of words, whatever the task takes.
            batch_size: The number of inputs in a batch.
            options: Those of `predict` for the task, by their names.
            report: Called with the number of inputs that were answered since the last call.
        """
        options = options or {}
        answers: list[Any] = [None] * len(inputs)
        places = [place for place, given in enumerate(inputs) if not is_empty(given)]
        places.sort(key=lambda place: size_of(inputs[place]))
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
        """Say how many inputs are longer than what the model takes."""
        longest = getattr(self.model, "max_seq_length", None) or self.tokenizer.model_max_length
        # Most texts have fewer bytes than that, and every token of them has at least one.
        room = longest - MAX_ADDED_TOKENS
        doubtful = [given for given in inputs if len("".join(given).encode()) > room]
        if not doubtful:
            return
        truncated = sum(length > longest for length in self.lengths(doubtful))
        if truncated:
            logger.warning("%d lines are truncated to %d tokens", truncated, longest)

    def check_positions(self, inputs: list[str], more: int = 0, **options: Any) -> None:
        """Refuse an input that, with so many `more` tokens, has more of them than the model has
        positions.

        Raises:
            InputError: with the input and both numbers.
        """
        if self.positions is None:
            return
        for given, length in zip(inputs, self.lengths(inputs, **options), strict=True):
            if length + more > self.positions:
                generated = f", {more} of them to be generated (--max_new_tokens)" if more else ""
                raise InputError(
                    f"{given[:40]!r} has {length + more} tokens{generated}; this model has places "
                    f"for {self.positions}"
                )


def open_model(
    directory: str | Path,
    device: str | None = None,
    options: dict[str, Any] | None = None,
    engine: str = "torch",
) -> SavedModel:
    """Open what `roformer-lite train` saved, or any checkpoint of this architecture with a head.

    Args:
        directory: Of the model, or its name on the Hub.
        device: Where it shall compute. Default: the first GPU, if there is one.
        options: Those that `answers` will get; checked before the weights are read.
        engine: What computes: `torch`, or `onnx` with a directory that was exported for it.

    Raises:
        InputError: when there is no model, a file of it is missing or wrong, none of the tasks fits
            its architecture, or it does not use one of the options.
    """
    directory = str(directory)
    config = load_config(directory)
    recipe = recipe_of(directory, config)
    tokenizer = load_tokenizer(directory, config)
    if tokenizer is None:
        raise InputError(f"no model can be loaded from {directory}: it has no tokenizer")
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
        with suppress(ValueError):  # The training has said why it computes padding.
            padding_free(model)
        model.eval()
    positions = positions_of(model, config)
    if positions is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
    saved = SavedModel(recipe=recipe, model=model, tokenizer=tokenizer, positions=positions)
    try_model(saved, directory)
    batch_dependent = BATCH_DEPENDENT_ROPE.intersection(rope_types_of(config))
    if batch_dependent:
        logger.warning(
            "%s has positions of the type %s, which the longest text of a batch scales for all of "
            "them: answers depend on the batch (--batch_size 1 reads each text alone)",
            directory,
            ", ".join(sorted(batch_dependent)),
        )
    return saved


def recipe_of(directory: str, config: PreTrainedConfig) -> Recipe:
    """The recipe of the task whose architecture a model has, with the settings of its training; of
    several tasks the one that it was trained for.

    Raises:
        InputError: when there is none, or the settings are damaged.
    """
    results = read_optional_object(directory, RESULTS_FILE)
    named = config.architectures if isinstance(config.architectures, list) else []
    architecture = str((named or ["no architecture"])[0])
    fitting = [kind for kind in RECIPES.values() if architecture.endswith(kind.architecture)]
    if not fitting:
        raise InputError(
            f"{directory}/config.json: {architecture} fits none of the tasks {', '.join(RECIPES)}"
        )
    kind = next((kind for kind in fitting if kind.name == results.get("task")), fitting[0])
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
    """How many tokens a model has positions for; None where they do not end. The table of a graph
    can't be seen."""
    if isinstance(model, torch.nn.Module):
        return max_positions(model)
    has_table = getattr(config, "position_embedding_type", None) == "learned"
    return config.max_position_embeddings if has_table else None


def rope_types_of(config: PreTrainedConfig) -> set[str]:
    """The types of rotary positions of a model, whose encoder and decoder, or kinds of layers, may
    have different ones."""
    found = set()
    for part in (config, getattr(config, "encoder", None), getattr(config, "decoder", None)):
        parameters = getattr(part, "rope_parameters", None) or {}
        for each in (parameters, *parameters.values()):
            if isinstance(each, dict):
                found.add(each.get("rope_type", "default"))
    return found


def try_model(saved: SavedModel, directory: str) -> None:
    """Answer one line. Each of the files may be right, and yet they may not fit together.

    Raises:
        InputError: when they do not.
    """
    with warnings.catch_warnings(), without_reports():
        warnings.simplefilter("ignore")
        try:
            given = saved.recipe.input_of_line("a\ta" if saved.recipe.takes_pairs else "a")
            saved.answers([given], batch_size=1, options={"max_new_tokens": 1})
        except (InputError, torch.OutOfMemoryError):
            raise
        # Whatever the model and the libraries raise, it is about what was saved.
        except Exception as error:
            raise InputError(
                f"{directory}: its configuration, settings and tokenizer do not fit together: "
                f"{reason(error)}"
            ) from error


def device_named(name: str | None) -> torch.device:
    """Where to compute.

    Raises:
        InputError: when torch knows no such device, or this machine has none.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # A build without CUDA asserts.
        raise InputError(f"--device {name} cannot be used here: {reason(error)}") from error
    return device


def is_empty(given: Input) -> bool:
    parts = [given] if isinstance(given, str) else given
    return not parts or not all(part.strip() for part in parts)


def size_of(given: Input) -> int:
    return len(given) if isinstance(given, str) else sum(map(len, given))
