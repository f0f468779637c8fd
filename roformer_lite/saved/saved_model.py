"""Opens saved models and their tokenizers from a directory or from the Hub, and names the file if
one of them is wrong.

transformers rejects most damaged files itself, and `naming` turns its errors into one sentence. The
checks in this module are for faults that it silently accepts: missing tensors, which it fills with
random numbers, tensors that are unknown, of another type or not finite, the tokenizer of another
model, an adapter instead of a model, and missing modules of sentence-transformers. No code of a
saved model is run: `trust_remote_code` is off, and files of torch are read with `weights_only`.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import (
    AutoConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

import hf_roformer_lite
from hf_roformer_lite.conversion import checkpoint_files
from hf_roformer_lite.conversion.checkpoint_files import (
    check_report,
    has_tokenizer,
    load_pretrained,
    local_directory,
    open_tokenizer,
    refuse_tensors,
    without_warnings,
)
from hf_roformer_lite.padding_free import PaddingFreeError, padding_free

from ..errors import InputError
from ..output import RESULTS_FILE

logger = logging.get_logger(__name__)

# `naming` of `checkpoint_files`, with the errors of this program.
naming = partial(checkpoint_files.naming, kind=InputError)


def directory_of(name: str | Path, weights: Sequence[str] = ()) -> Path:
    """The directory of a saved model, or of the files of a repository on the Hub: all small ones,
    and `weights`.

    Raises:
        InputError: if `name` is neither a directory nor a repository.
    """
    with naming(name):
        return local_directory(name, weights)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: if the file cannot be read or does not contain an object.
    """
    with naming(path):
        return checkpoint_files.read_object(path)


def read_optional_object(name: str | Path, file: str) -> dict[str, Any]:
    """Like `read_object`, but empty if the directory or repository has no such file."""
    path = directory_of(name) / file
    return read_object(path) if path.is_file() else {}


def load_config(name: str | Path) -> PreTrainedConfig:
    """The configuration of a saved model.

    Raises:
        InputError: if there is none, or if a field is wrong.
    """
    path = directory_of(name) / "config.json"
    # transformers would load the base model of the adapter.
    if path.with_name("adapter_config.json").is_file():
        raise InputError(
            f"{name}: it is an adapter (it has an adapter_config.json); merge it into its base "
            "model and save the result"
        )
    if not path.is_file():
        raise InputError(f"no model can be loaded from {name}: it has no config.json")
    with naming(path):
        return AutoConfig.from_pretrained(path.parent, trust_remote_code=False)


def model_class_of(config: PreTrainedConfig, name: str | Path) -> type[PreTrainedModel]:
    """The class that a model was saved from: a RoFormerLite class or a stock class.

    Raises:
        InputError: if the configuration names no class, or a class for another type of model.
    """
    for architecture in config.architectures or []:
        for package in (hf_roformer_lite, transformers):
            found: Any = getattr(package, architecture, None)
            if getattr(found, "config_class", None) is type(config):
                return found
    raise InputError(
        f"{name}/config.json: architectures={config.architectures} must name a class of models of "
        f"the type {config.model_type!r}"
    )


def load_complete_model(
    name: str | Path, config: PreTrainedConfig, model_class: type[PreTrainedModel]
) -> PreTrainedModel:
    """Load a saved model in its own class, and check that every tensor exists, has the right shape
    and is finite.

    Raises:
        InputError: if a file is missing or wrong.
    """
    load_generation_config(name)
    with naming(name), without_warnings():
        model, report = load_pretrained(model_class, name, config)
        if model.base_model is model:
            # Sentence encoders do not read BERT's pooler, and many are saved without it.
            missing = report["missing_keys"]
            report["missing_keys"] = [key for key in missing if not key.startswith("pooler.")]
        check_report(report)
    return model


def load_with_new_head(
    auto_model: Any, name: str | Path, config: PreTrainedConfig
) -> tuple[PreTrainedModel, list[str]]:
    """Load a saved model for fine-tuning, with a head that may be new.

    Args:
        auto_model: The auto class with the head.
        name: The directory or repository of a model with this head, another head or none.
        config: The configuration of the resulting model.

    Returns:
        The model, and the names of the random tensors of a new head. There are none if the saved
        head is kept.

    Raises:
        InputError: if a file is missing or wrong. Only the head may be missing or have another
            shape.
    """
    load_generation_config(name)
    with naming(name), without_warnings():
        # The small steps of AdamW would be lost in half precision.
        model, report = load_pretrained(auto_model, name, config, dtype=torch.float32)
    mismatched = {key[0] for key in report["mismatched_keys"]}
    new = sorted({*report["missing_keys"], *mismatched})
    stack = f"{model.base_model_prefix}."
    # BERT's pooler is a part of the stack, but it is only saved with the heads of some tasks.
    pooler = f"{stack}pooler."
    wrong = [key for key in new if key.startswith(stack) and not key.startswith(pooler)]
    if wrong:
        fault = "has another shape of" if wrong[0] in mismatched else "lacks"
        raise InputError(
            f"{name}: {fault} {wrong[0]}; the model is damaged, or does not fit the requested "
            "configuration; pass only --config fields that do not change shapes, such as "
            "hidden_dropout=0.3"
        )
    with naming(name):
        unknown = [key for key in report["unexpected_keys"] if key.startswith(stack)]
        refuse_tensors("has unknown", unknown)
    # The tables of Marian's positions, which transformers does not save, must not be trained.
    for name_of_table in model._keys_to_ignore_on_save or ():
        model.get_parameter(name_of_table).requires_grad = False
    return model, new


def skip_padding(model: nn.Module) -> None:
    """Make the layers of a model skip padding. If they can't, the reason is logged once."""
    try:
        padding_free(model)
    except PaddingFreeError as error:
        logger.warning_once(f"{error} Its padding is computed")


def load_generation_config(name: str | Path) -> GenerationConfig:
    """The saved defaults of `generate`, or transformers' own. Loading a model would silently ignore
    a file that cannot be read.

    Raises:
        InputError: if the file cannot be read, or if a field is wrong.
    """
    path = directory_of(name) / "generation_config.json"
    if not path.is_file():
        return GenerationConfig()
    with naming(path):
        generation_config = GenerationConfig.from_pretrained(path.parent)
        generation_config.validate()
    return generation_config


def require_tokenizer(
    name: str | Path, config: PreTrainedConfig | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or of a repository on the Hub.

    Args:
        name: The directory or repository.
        config: The configuration of the model that will read its tokens, if there is one.

    Raises:
        InputError: if there is none, if one of its files is wrong, or if it belongs to another
            model.
    """
    directory = directory_of(name)
    if not has_tokenizer(directory):
        raise InputError(
            f"{name}: it has no tokenizer; add its files, for example with `save_pretrained`"
        )
    with naming(f"{name}: the tokenizer"):
        tokenizer = open_tokenizer(directory)
    # Decoders are often saved without one. The mask says which tokens are padding.
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if config is not None:
        check_vocabulary(tokenizer, config, name)
        leave_out_segments(tokenizer, config)
    return tokenizer


def leave_out_segments(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Stop a tokenizer from returning `token_type_ids` for a model without segments, as BERT's
    tokenizer does."""
    stack = getattr(config, "encoder", config)
    if getattr(stack, "type_vocab_size", None) == 0:
        names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
        set_input_names(tokenizer, names)


def set_input_names(tokenizer: PreTrainedTokenizerBase, names: list[str]) -> None:
    """Set what a tokenizer returns, also after it was saved."""
    tokenizer.model_input_names = names
    # These arguments are saved.
    tokenizer.init_kwargs["model_input_names"] = names


def check_vocabulary(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, name: str | Path
) -> None:
    """Reject a tokenizer that does not belong to the model. If it had more tokens than the model
    has embeddings, some ids would raise an IndexError. If it used another token for padding, a
    token of the text would be regarded as padding.

    Args:
        tokenizer: The saved tokenizer.
        config: The configuration of the model that reads its tokens. If it names no padding, it
            gets that of the tokenizer, for which classifiers of the last token look.
        name: The name of the model, for the message.

    Raises:
        InputError: with both numbers.
    """
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    stack = getattr(config, "encoder", config)
    vocab_size = getattr(stack, "vocab_size", None)
    if not vocab_size:
        return
    size = 1 + max(tokenizer.get_vocab().values(), default=-1)
    if size > vocab_size:
        raise InputError(
            f"{name}: the tokenizer has {size} tokens, but config.json says "
            f"vocab_size={vocab_size}; pass the tokenizer that the model was trained with"
        )
    ours = getattr(stack, "pad_token_id", None)
    theirs = tokenizer.pad_token_id
    if ours is None or ours < 0 or theirs is None:
        return
    if ours != theirs:
        raise InputError(
            f"{name}: config.json says pad_token_id={ours}, which the tokenizer calls "
            f"{tokenizer.convert_ids_to_tokens(ours)!r}, and it pads with {theirs}, "
            f"{tokenizer.pad_token!r}; pass the tokenizer that the model was trained with, or "
            "write the right number into config.json"
        )


def max_positions(model: nn.Module) -> int | None:
    """The number of tokens for which the model has learned positions; None if it has no table of
    positions."""
    rows = []
    for name, table in model.named_modules():
        is_of_positions = "position" in name or name.endswith("wpe")
        if not is_of_positions or not isinstance(table, nn.Embedding):
            continue
        # In BART the first two rows are unused; in RoBERTa, all rows up to that of the padding.
        unused = getattr(table, "offset", 0)
        if table.padding_idx is not None:
            unused = max(unused, table.padding_idx + 1)
        rows.append(table.num_embeddings - unused)
    return min(rows, default=None)


def sentence_modules(name: str | Path) -> list[str]:
    """The kinds of the modules of a model of sentence-transformers, such as `Pooling`; empty if it
    is another model.

    Raises:
        InputError: if a file is missing. The library would use default modules instead.
    """
    with naming(name):
        modules = checkpoint_files.sentence_modules(name)
    if not modules and read_optional_object(name, RESULTS_FILE).get("task") in ("embed", "rerank"):
        raise InputError(
            f"{name}: it has no modules.json, which defines how the model is used; copy all files"
        )
    return [kind.rpartition(".")[2] for _, kind in modules]
