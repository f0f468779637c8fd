"""The predictions of a saved model.

All commands use the same predictions: `predict` writes them as a table, and `evaluate`, the card,
the verdict, the thresholds and the page are based on them.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_MAPPING, PreTrainedConfig

from hf_roformer_lite.conversion.checkpoint_files import reason, without_warnings
from hf_roformer_lite.integrations import RERANKER_FIELDS

from .baseline.files import load_joined
from .errors import InputError, require_packages
from .options.common import given_options
from .options.parser import CommandParser
from .output import RESULTS_FILE
from .recipes import RECIPES
from .recipes.base import Recipe
from .recipes.loaded_model import Input, LoadedModel
from .saved.onnx_model import OnnxModel, is_exported
from .saved.saved_model import (
    load_config,
    max_positions,
    read_optional_object,
    require_tokenizer,
    sentence_modules,
    skip_padding,
)


@dataclass(kw_only=True)
class SavedModel(LoadedModel):
    """A saved model of a task.

    Args:
        recipe: The task, with the settings of the training.
        results: The saved results of its training; empty for other checkpoints.
    """

    recipe: Recipe
    results: dict[str, Any] = field(default_factory=dict)

    def answers(
        self,
        inputs: Sequence[Input],
        batch_size: int,
        options: dict[str, Any] | None = None,
    ) -> list[Any]:
        """The predictions for the inputs in their order, with None for an empty input.

        Args:
            inputs: Texts, pairs of texts or lists of words, depending on the task.
            batch_size: The number of inputs in a batch.
            options: The options of `predict` for the task by name.
        """
        return self.recipe.answers(self, inputs, batch_size, options or {})


def open_model(
    directory: str | Path,
    device: str | None = None,
    options: dict[str, Any] | None = None,
) -> SavedModel:
    """Open a model that `roformer-lite train` saved or `roformer-lite export` wrote as ONNX graphs,
    or any checkpoint with a head of one of the tasks.

    Args:
        directory: The directory of the model, or its name on the Hub.
        device: The device to use. Default: the first GPU, if there is one; graphs need the CPU.
        options: The options that `answers` will get. They are checked before the weights are read.

    Raises:
        InputError: if there is no model, if one of its files is missing or wrong, if none of the
            tasks fits its architecture, or if the model does not use one of the options or the
            device.
    """
    directory = str(directory)
    config = load_config(directory)
    results = read_optional_object(directory, RESULTS_FILE)
    recipe = recipe_of(directory, config, results)
    tokenizer = require_tokenizer(directory, config)
    require_packages(directory, recipe.options.packages)
    recipe.check_options(config, options or {})
    if is_exported(directory):
        if not recipe.takes_graphs or device not in (None, "cpu"):
            raise InputError(
                f"{directory} was exported for onnxruntime, which computes on the CPU and not for "
                f"{recipe.name}; pass the directory of the trained model"
            )
        model = OnnxModel.load(directory, config)
    else:
        model = recipe.open(directory, config, device_named(device))
        skip_padding(model)
        model.eval()
        if getattr(config, "quantization_config", None) is None:
            # The weights may be saved in half precision.
            model.float()
    positions = positions_of(model, config)
    if positions is not None:
        # A checkpoint of another program does not say how long the texts of its training were.
        recipe = recipe.limited_to(positions, given_options(recipe.options))
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)
        if hasattr(model, "max_seq_length"):
            model.max_seq_length = min(model.max_seq_length or positions, positions)
    joined = None
    if recipe.baseline_class is not None:
        joined = load_joined(directory, recipe.baseline_class)
    saved = SavedModel(
        recipe=recipe,
        model=model,
        tokenizer=tokenizer,
        positions=positions,
        results=results,
        joined=joined,
    )
    try_model(saved, directory)
    return saved


def recipe_of(directory: str, config: PreTrainedConfig, results: dict[str, Any]) -> Recipe:
    """The recipe of the task that fits the architecture of a model, with the settings of its
    training. If several tasks fit, it is the one that the model was trained for.

    Raises:
        InputError: if no task fits, or if the settings are damaged.
    """
    named = config.architectures if isinstance(config.architectures, list) else []
    architecture = str([*named, "no architecture"][0])
    fitting = [kind for kind in RECIPES.values() if architecture.endswith(kind.architecture)]
    modules = sentence_modules(directory)
    if "Pooling" in modules:
        # sentence-transformers reads the bare stack, whichever class the configuration names.
        fitting = [RECIPES["embed"]]
        stack: Any = MODEL_MAPPING[type(config)]
        config.architectures = [stack.__name__]
    if not fitting or "LogitScore" in modules:
        raise InputError(
            f"{directory}/config.json: {architecture} fits none of the tasks {', '.join(RECIPES)}"
        )
    # Rerankers of other programs have the class of a classifier, and sentence-transformers marks
    # them in its own file or, in older versions, by these fields.
    library = read_optional_object(directory, "config_sentence_transformers.json")
    has_field = any(hasattr(config, name) for name in RERANKER_FIELDS)
    is_of_pairs = has_field or library.get("model_type") == "CrossEncoder"
    task = results.get("task", "rerank" if is_of_pairs and config.num_labels == 1 else None)
    kind = next((kind for kind in fitting if kind.name == task), fitting[0])
    settings = results.get("settings", {"pairs": is_of_pairs})
    parser = CommandParser(f"train {kind.name}", "", [kind.options_class])
    # The settings may be anything in a damaged file, also no object.
    try:
        known = {name: settings.get(name) for name in kind.options_class.measuring_options}
        (options,) = parser.parse([], {**known, "dataset_name": "-"})
        return kind.of_model(options, config, settings)
    except (InputError, TypeError, AttributeError) as error:
        raise InputError(f"{directory}/{RESULTS_FILE}: settings: {error}") from error


def positions_of(model: Any, config: PreTrainedConfig) -> int | None:
    """The maximum number of positions of a model; None if there is no limit. For a graph, the
    number comes from the configuration, because the tables of a graph are not accessible."""
    if isinstance(model, torch.nn.Module):
        return max_positions(model)
    stacks: list[Any] = [config, getattr(config, "encoder", None), getattr(config, "decoder", None)]
    tables = [
        stack.max_position_embeddings
        for stack in stacks
        if getattr(stack, "position_embedding_type", None) == "learned"
    ]
    return min(tables, default=None)


def try_model(saved: SavedModel, directory: str) -> None:
    """Predict for two lines of different lengths, to check that the files of the model fit
    together.

    Raises:
        InputError: if they do not.
    """
    with warnings.catch_warnings(), without_warnings():
        warnings.simplefilter("ignore")
        try:
            lines = ["a\ta", "a a a\ta"] if saved.recipe.takes_pairs else ["a", "a a a"]
            given = [saved.recipe.input_of_line(line) for line in lines]
            saved.answers(given, batch_size=2, options={"max_new_tokens": 2})
        except (InputError, MemoryError, torch.OutOfMemoryError):
            raise
        # Wrong files may raise any error, in the code of a model, of a library or of this program.
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
        raise InputError(f"--device {name} is not available: {reason(error)}") from error
    return device
