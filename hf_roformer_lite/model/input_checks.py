"""Refuses what a model was given when it does not fit: the argument, what it is, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from transformers.cache_utils import Cache
from transformers.utils.generic import TransformersKwargs
from transformers.utils.import_utils import is_tracing

from .attention_plan import BlockMask
from .configuration_roformer_lite import RoFormerLiteConfig
from .host_side import numbers, on_host

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
    encoder_attention_mask: torch.Tensor | None,
    past_key_values: Cache | None,
    options: dict[str, Any],
    prefix: str = "",
) -> None:
    """Refuse inputs of the stack that `config` describes which do not fit it or each other.

    Args:
        prefix: What the names of the stack's own arguments begin with in messages, such as `decoder_`.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    check_ids(input_ids, inputs_embeds, prefix)
    given = input_ids if inputs_embeds is None else inputs_embeds
    if inputs_embeds is not None and inputs_embeds.shape[2] != config.embedding_size:
        raise ValueError(
            f"{prefix}inputs_embeds has vectors of {inputs_embeds.shape[2]} numbers; they must have embedding_size="
            f"{config.embedding_size}."
        )
    if past_key_values is not None and not isinstance(past_key_values, Cache):
        raise TypeError(f"past_key_values is a {type(past_key_values).__name__}; it must be a Cache of transformers.")
    for mask in attention_mask.values() if isinstance(attention_mask, dict) else [attention_mask]:
        if mask is not None:
            check_mask(mask, f"{prefix}attention_mask")
    if isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2 and not is_tracing(given):
        _check_mask_shape(attention_mask, given, past_key_values, f"{prefix}attention_mask")
    if position_ids is not None:
        _check_positions(position_ids, given, f"{prefix}position_ids")
    _check_segments(config, options.get("token_type_ids"), given)
    _check_encoder(config, encoder_hidden_states, encoder_attention_mask, given)
    _check_packing(position_ids, past_key_values, options)
    is_causal = options.get("is_causal")
    if is_causal is not None and is_causal != config.is_decoder and options.get("cache") is None:
        raise ValueError(f"is_causal={is_causal}: this stack has is_decoder={config.is_decoder}, which decides it.")


def check_tensor(name: str, value: Any, ndim: int, shape: str) -> None:
    """A tensor of `ndim` dimensions, whose `shape` the message tells in words.

    Raises:
        ValueError: for another number of dimensions.
        TypeError: for what is no tensor.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it must be a tensor {shape}.")
    if value.ndim != ndim:
        hint = f" Give {name}.unsqueeze(0) for a single one." if value.ndim == ndim - 1 else ""
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it must be {shape}.{hint}")


def check_ids(input_ids: Any, inputs_embeds: Any, prefix: str = "") -> None:
    """Exactly one of ids `(B, L)` and vectors `(B, L, width)`.

    Raises:
        ValueError: for both, none, a wrong number of dimensions, ids that are no whole numbers, and vectors that are.
        TypeError: for what is no tensor.
    """
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(f"Give exactly one of {prefix}input_ids and {prefix}inputs_embeds.")
    if input_ids is None:
        name = f"{prefix}inputs_embeds"
        check_tensor(name, inputs_embeds, 3, "(batch, length, embedding_size)")
        _check_floating(name, inputs_embeds)
        return
    name = f"{prefix}input_ids"
    check_tensor(name, input_ids, 2, "(batch, length)")
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} has dtype {_dtype(input_ids)}; token ids are whole numbers, as torch.long.")


def check_mask(attention_mask: Any, name: str = "attention_mask") -> None:
    """A mask of padding `(B, L)`, or one prepared for the attention function `(B, heads | 1, Lq, Lk)`.

    Raises:
        ValueError: for another number of dimensions; whole numbers in four; numbers other than 0 and 1 in two.
        TypeError: for a list and the like.
    """
    if isinstance(attention_mask, BlockMask) and not isinstance(attention_mask, torch.Tensor):
        return
    if not isinstance(attention_mask, torch.Tensor):
        raise TypeError(f"{name} is a {type(attention_mask).__name__}; it must be a tensor.")
    shape, dtype = tuple(attention_mask.shape), attention_mask.dtype
    if attention_mask.ndim not in (2, 4):
        raise ValueError(
            f"{name} has shape {shape}; it must be (batch, length), 1 for real tokens, or (batch, 1 or heads, "
            f"queries, keys). For a mask (batch, queries, keys) give {name}.unsqueeze(1)."
        )
    if dtype.is_complex:
        raise ValueError(f"{name} has dtype {_dtype(attention_mask)}; it must be boolean, or hold 1 for real tokens.")
    if attention_mask.ndim == 4 and not (attention_mask.is_floating_point() or dtype == torch.bool):
        raise ValueError(
            f"{name} has shape {shape} and dtype {_dtype(attention_mask)}; with four dimensions it must be "
            f"boolean, True to see, or floating point, to be added to the scores. Give {name}.bool()."
        )
    if attention_mask.ndim == 2 and attention_mask.is_floating_point() and not is_tracing(attention_mask):
        if not bool(((attention_mask == 0) | (attention_mask == 1)).all()):
            raise ValueError(
                f"{name} has shape {shape}, dtype {_dtype(attention_mask)} and numbers other than 0 and 1; "
                "with two dimensions it is 1 for real tokens and 0 for padding, and nothing is added to the scores."
            )


def _check_mask_shape(
    attention_mask: torch.Tensor, given: torch.Tensor, past_key_values: Cache | None, name: str
) -> None:
    """A row for each of the batch, and a column for each token; with a cache, for those in the cache as well."""
    shape, wanted = tuple(attention_mask.shape), tuple(given.shape[:2])
    if past_key_values is None and shape != wanted:
        raise ValueError(f"{name} has shape {shape}; it must be (batch, length) = {wanted}.")
    if shape[0] != wanted[0] or shape[1] < wanted[1]:
        raise ValueError(
            f"{name} has shape {shape}; it must be (batch, length), with {wanted[0]} rows and a column for each token "
            f"in the cache and each of the {wanted[1]} new ones."
        )


def _check_positions(position_ids: Any, given: torch.Tensor, name: str) -> None:
    batch_size, length = given.shape[:2]
    wanted = f"(batch, length) = ({batch_size}, {length}) or (1, {length})"
    if not isinstance(position_ids, torch.Tensor):
        raise TypeError(f"{name} is a {type(position_ids).__name__}; it must be a tensor {wanted}.")
    rows = position_ids.shape[0] if position_ids.ndim == 2 else 1
    if position_ids.ndim not in (1, 2) or rows not in (1, batch_size) or position_ids.shape[-1] != length:
        raise ValueError(f"{name} has shape {tuple(position_ids.shape)}; it must be {wanted}.")
    if position_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} has dtype {_dtype(position_ids)}; positions are whole numbers, as torch.long.")


def _check_segments(config: RoFormerLiteConfig, token_type_ids: Any, given: torch.Tensor) -> None:
    if token_type_ids is None:
        return
    check_tensor("token_type_ids", token_type_ids, 2, "(batch, length)")
    if not config.type_vocab_size:
        check_no_segments(token_type_ids)
        return
    if token_type_ids.shape != given.shape[:2]:
        raise ValueError(
            f"token_type_ids has shape {tuple(token_type_ids.shape)}; it must be (batch, length) = "
            f"{tuple(given.shape[:2])}."
        )
    if token_type_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"token_type_ids has dtype {_dtype(token_type_ids)}; segments are numbered, as torch.long.")


def _check_encoder(
    config: RoFormerLiteConfig,
    encoder_hidden_states: Any,
    encoder_attention_mask: Any,
    given: torch.Tensor,
) -> None:
    """What cross-attention reads: there where the stack has it, with a row for each of the batch."""
    if encoder_hidden_states is not None and not config.add_cross_attention:
        raise ValueError("add_cross_attention=False: this model does not attend to encoder_hidden_states.")
    if encoder_hidden_states is None and config.add_cross_attention:
        raise ValueError("add_cross_attention=True needs encoder_hidden_states (or an encoder to make them).")
    if encoder_hidden_states is None:
        return
    width = config.cross_attention_hidden_size or config.hidden_size
    check_tensor("encoder_hidden_states", encoder_hidden_states, 3, "(batch, source length, width)")
    _check_floating("encoder_hidden_states", encoder_hidden_states)
    shape = tuple(encoder_hidden_states.shape)
    if shape[0] != given.shape[0] or shape[2] != width:
        raise ValueError(
            f"encoder_hidden_states has shape {shape}; it must be (batch, source length, width) = ({given.shape[0]}, "
            f"…, {width})."
        )
    if encoder_attention_mask is not None:
        check_tensor("encoder_attention_mask", encoder_attention_mask, 2, "(batch, source length)")
        if tuple(encoder_attention_mask.shape) != shape[:2]:
            raise ValueError(
                f"encoder_attention_mask has shape {tuple(encoder_attention_mask.shape)}; it must be (batch, source "
                f"length) = {shape[:2]}."
            )


def _check_packing(position_ids: Any, past_key_values: Cache | None, options: dict[str, Any]) -> None:
    borders = options.get("cu_seq_lens_q")
    if options.get("seq_idx") is not None and position_ids is None and borders is None:
        raise ValueError("seq_idx alone does not tell documents apart here; give position_ids or cu_seq_lens_q too.")
    if borders is None:
        return
    check_tensor("cu_seq_lens_q", borders, 1, "(documents + 1,)")
    if borders.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"cu_seq_lens_q has dtype {_dtype(borders)}; borders are whole numbers, as torch.int32.")
    if past_key_values is not None:
        raise ValueError("cu_seq_lens_q: packed documents have no cache; leave past_key_values out.")


def check_labels(labels: Any, shape: Sequence[int], what: str, name: str = "labels") -> None:
    """Numbers of classes, in the `shape` of `what` they belong to.

    Raises:
        ValueError: for another shape, and for what are no whole numbers.
        TypeError: for what is no tensor.
    """
    wanted = tuple(shape)
    if not isinstance(labels, torch.Tensor):
        raise TypeError(f"{name} is a {type(labels).__name__}; it must be a tensor {wanted}.")
    if tuple(labels.shape) != wanted:
        raise ValueError(f"{name} has shape {tuple(labels.shape)}; it must be {wanted}, one for each {what}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"{name} has dtype {_dtype(labels)}; classes are whole numbers, as torch.long.")


def check_choices(inputs: dict[str, Any]) -> tuple[int, int]:
    """What describes several texts for each row: tensors of the same rows, choices and tokens.

    Args:
        inputs: Arguments by their names, `(B, choices, L, ...)` or None.

    Returns:
        B and choices.

    Raises:
        ValueError: without a tensor, and for tensors of different shapes.
        TypeError: for what is no tensor.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in given.items():
        ndim, shape = (
            (4, "(batch, choices, length, embedding_size)")
            if name == "inputs_embeds"
            else (3, "(batch, choices, length)")
        )
        check_tensor(name, value, ndim, shape)
        shapes[name] = tuple(value.shape[:3])
    first = next((name for name in ("input_ids", "inputs_embeds") if name in shapes), None)
    if first is None:
        raise ValueError("Give exactly one of input_ids and inputs_embeds.")
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise ValueError(f"{name} has shape {shape}; it must be (batch, choices, length) = {shapes[first]}.")
    return shapes[first][:2]


def check_logits_to_keep(logits_to_keep: Any) -> None:
    """A number of positions, or their indices.

    Raises:
        ValueError: for a negative number, and for indices that are not whole numbers in one dimension.
        TypeError: for anything else.
    """
    if isinstance(logits_to_keep, torch.Tensor):
        if logits_to_keep.ndim != 1 or logits_to_keep.dtype not in (torch.int64, torch.int32):
            raise ValueError(
                f"logits_to_keep has shape {tuple(logits_to_keep.shape)} and dtype {_dtype(logits_to_keep)}; as a "
                "tensor it must be the indices of positions, (positions,) of torch.long."
            )
    elif isinstance(logits_to_keep, bool) or not isinstance(logits_to_keep, int | torch.SymInt):
        raise TypeError(f"logits_to_keep is {logits_to_keep!r}; it must be a number of positions or their indices.")
    elif logits_to_keep < 0:
        raise ValueError(f"logits_to_keep={logits_to_keep} must be at least 0, which keeps all.")


def check_no_segments(token_type_ids: torch.Tensor) -> None:
    """For a model without segments; zeros, which many tokenizers give for every text, mean nothing and go through.

    Raises:
        ValueError: for other numbers.
    """
    if not is_tracing(token_type_ids) and numbers(*on_host(token_type_ids)).any():
        raise ValueError(
            "token_type_ids: this model has no segments (type_vocab_size=0), so that a pair of texts cannot be told "
            "apart by them; leave them out, in a tokenizer by return_token_type_ids=False."
        )


def _check_floating(name: str, value: torch.Tensor) -> None:
    if not value.is_floating_point():
        raise ValueError(f"{name} has dtype {_dtype(value)}; it must hold floating-point numbers.")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
