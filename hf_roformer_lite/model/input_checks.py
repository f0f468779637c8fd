"""Refuses what a model was given when it does not fit: the argument, what it is, and what would be right."""

from __future__ import annotations

import difflib
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.utils.generic import TransformersKwargs
from transformers.utils.import_utils import is_tracing

from .configuration_roformer_lite import RoFormerLiteConfig

_CLOSE = 0.92  # similarity at which an unknown name is taken for a misspelt one: a letter too many, too few or wrong


def refuse_misspelt(model_class: type, options: dict[str, Any]) -> None:
    """Refuse arguments that look like misspelt ones of `forward`; all others go on to the attention functions.
    Compiled models do not ask.

    Raises:
        TypeError: with the name that was probably meant.
    """
    if torch.compiler.is_compiling():  # what compares the names cannot be traced
        return
    for name, value in options.items():
        if value is not None and (meant := _meant(model_class, name)):
            raise TypeError(f"forward got an unexpected argument {name!r}; did you mean {meant!r}?")


@lru_cache(maxsize=1000)
def _meant(model_class: type, name: str) -> str | None:
    """The argument that an unknown `name` is a misspelling of, if it looks like one."""
    known = [*signature(model_class.forward).parameters, "labels"]
    if name in known or name in TransformersKwargs.__annotations__:
        return None
    swapped = [other for other in known if sorted(other) == sorted(name)]
    return next(iter(swapped or difflib.get_close_matches(name, known, n=1, cutoff=_CLOSE)), None)


def check_inputs(
    config: RoFormerLiteConfig,
    input_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
    attention_mask: torch.Tensor | dict[str, torch.Tensor] | None,
    position_ids: torch.Tensor | None,
    encoder_hidden_states: torch.Tensor | None,
    past_key_values: Cache | None,
    options: dict[str, Any],
) -> None:
    """Refuse inputs of the stack that `config` describes which do not fit it or each other.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    check_ids(input_ids, inputs_embeds)
    for mask in attention_mask.values() if isinstance(attention_mask, dict) else [attention_mask]:
        if mask is not None:
            check_mask(mask)
    if not config.type_vocab_size:
        check_no_segments(options.get("token_type_ids"))
    if encoder_hidden_states is not None and not config.add_cross_attention:
        raise ValueError("add_cross_attention=False: this model does not attend to encoder_hidden_states.")
    if encoder_hidden_states is None and config.add_cross_attention:
        raise ValueError("add_cross_attention=True needs encoder_hidden_states (or an encoder to make them).")
    has_borders = options.get("cu_seq_lens_q") is not None
    if options.get("seq_idx") is not None and position_ids is None and not has_borders:
        raise ValueError("seq_idx alone does not tell documents apart here; give position_ids or cu_seq_lens_q too.")
    if has_borders and past_key_values is not None:
        raise ValueError("cu_seq_lens_q: packed documents have no cache; leave past_key_values out.")
    is_causal = options.get("is_causal")
    if is_causal is not None and is_causal != config.is_decoder and options.get("cache") is None:
        raise ValueError(f"is_causal={is_causal}: this stack has is_decoder={config.is_decoder}, which decides it.")


def check_ids(input_ids: Any, inputs_embeds: Any) -> None:
    """Exactly one of ids `(B, L)` and vectors `(B, L, width)`.

    Raises:
        ValueError: for both, none, a wrong number of dimensions, and ids that are no whole numbers.
        TypeError: for what is no tensor.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("Give exactly one of input_ids and inputs_embeds.")
    if input_ids is None:
        _check_tensor("inputs_embeds", inputs_embeds, 3, "(batch, length, embedding_size)")
        return
    _check_tensor("input_ids", input_ids, 2, "(batch, length)")
    if input_ids.is_floating_point() or input_ids.dtype in (torch.bool, torch.complex64):
        raise ValueError(f"input_ids has dtype {_dtype(input_ids)}; token ids are whole numbers, as torch.long.")


def check_mask(attention_mask: Any) -> None:
    """A mask of padding `(B, L)`, or one prepared for the attention function `(B, heads | 1, Lq, Lk)`.

    Raises:
        ValueError: for another number of dimensions; whole numbers in four; numbers other than 0 and 1 in two.
        TypeError: for a list and the like.
    """
    if not isinstance(attention_mask, torch.Tensor):
        if isinstance(attention_mask, list | tuple | int | float):
            raise TypeError(f"attention_mask is a {type(attention_mask).__name__}; it must be a tensor.")
        return  # a BlockMask
    shape, dtype = tuple(attention_mask.shape), attention_mask.dtype
    if attention_mask.ndim not in (2, 4):
        raise ValueError(
            f"attention_mask has shape {shape}; it must be (batch, length), 1 for real tokens, or (batch, 1 or heads, "
            "queries, keys). For a mask (batch, queries, keys) give attention_mask.unsqueeze(1)."
        )
    if attention_mask.ndim == 4 and not (attention_mask.is_floating_point() or dtype == torch.bool):
        raise ValueError(
            f"attention_mask has shape {shape} and dtype {_dtype(attention_mask)}; with four dimensions it must be "
            "boolean, True to see, or floating point, to be added to the scores. Give attention_mask.bool()."
        )
    if attention_mask.ndim == 2 and attention_mask.is_floating_point() and not is_tracing(attention_mask):
        if not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
            raise ValueError(
                f"attention_mask has shape {shape}, dtype {_dtype(attention_mask)} and numbers other than 0 and 1; "
                "with two dimensions it is 1 for real tokens and 0 for padding, and nothing is added to the scores."
            )


def check_labels(labels: torch.Tensor, shape: tuple[int, ...], what: str) -> None:
    """Labels in the `shape` of `what` they belong to.

    Raises:
        ValueError: for another shape.
    """
    if tuple(labels.shape) != tuple(shape):
        raise ValueError(f"labels has shape {tuple(labels.shape)}; it must be {tuple(shape)}, one for each {what}.")


def check_no_segments(token_type_ids: torch.Tensor | None) -> None:
    """For a model without segments; zeros, which many tokenizers give for every text, mean nothing and go through.

    Raises:
        ValueError: for other numbers.
    """
    if token_type_ids is not None and not is_tracing(token_type_ids) and bool(token_type_ids.any()):
        raise ValueError(
            "token_type_ids: this model has no segments (type_vocab_size=0), so that a pair of texts cannot be told "
            "apart by them; leave them out, in a tokenizer by return_token_type_ids=False."
        )


def _check_tensor(name: str, value: Any, ndim: int, shape: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a tensor {shape}.")
    if value.ndim != ndim:
        hint = f" Give {name}.unsqueeze(0) for a single one." if value.ndim == ndim - 1 else ""
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be {shape}.{hint}")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
