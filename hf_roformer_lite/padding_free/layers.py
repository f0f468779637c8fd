"""Layers that compute flat rows: two hooks on each.

`enter_layer` makes the batch a flat row of real tokens where the mask of the layer is a
`DocumentMask`, and `leave_layer` makes the output a batch again. The next layer takes the flat row
that is already there. Hooks, unlike a layer's own code, stay outside of gradient checkpointing.
"""

import inspect
from collections.abc import Container, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput, logging

from .attention import DocumentMask, FlatMask
from .batch import RealTokens

logger = logging.get_logger(__name__)

# Arguments of layers and attention modules that are alike in all rows: tables of pairs of tokens,
# `(..., L, L)`, of which each document takes the corner, and a table of distances. XLNet's tables
# of distances and of pairs have an axis of rows, which is not the first.
BIASES = ("position_bias", "relative_pos")
XLNET_TABLES = ("r", "seg_mat")
TABLES = (*BIASES, "rel_embeddings", *XLNET_TABLES)

# transformers calls its caches `cache` from 5.24 on, and in few models `layer_past`.
CACHES = ("cache", "past_key_values", "layer_past")

# What asks for outputs of all layers, as an argument or in a configuration.
LAYER_OUTPUTS = ("output_hidden_states", "output_attentions", "output_router_logits", "use_mems")

# Hooks of these do not depend on the shape of a batch: they gather weights, move tensors, or record
# what may be recorded.
LIBRARIES = {"accelerate", "bitsandbytes", "deepspeed", "torch", "torchao", "transformers"}
LIBRARIES.add(__name__.partition(".")[0])

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def hook_layers(module: nn.Module) -> list[RemovableHandle]:
    """Let the layers within `module` compute flat rows.

    The hooks do nothing unless a layer gets a `DocumentMask`, which only models with the attention
    implementation "padding_free" make.
    """
    handles = []
    for layer in layers_of(module):
        # A private name, as torch has no other way to see the hooks of a module.
        if enter_layer in layer._forward_pre_hooks.values():
            continue
        handles.append(layer.register_forward_pre_hook(enter_layer, with_kwargs=True))
        # All other hooks of the layer get the batch.
        leave = layer.register_forward_hook(leave_layer, with_kwargs=True, prepend=True)
        handles.append(leave)
    return handles


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that are layers: by their class, or as entries of a list that take a
    mask."""
    is_list = isinstance(module, nn.ModuleList)
    for child in module.children():
        names = parameters_of(child)
        is_layer = is_list and name_of_mask(names) in names
        # This one calls `forward` of its layers, past their hooks.
        is_stack = type(child).__name__ == "SqueezeBertEncoder"
        if isinstance(child, GradientCheckpointingLayer) or is_layer or is_stack:
            yield child
        else:
            yield from layers_of(child)


def parameters_of(module: nn.Module) -> tuple[str, ...]:
    """The names of the parameters of `forward`."""
    module_class: Any = type(module)
    return parameters_of_class(module_class)


@lru_cache
def parameters_of_class(module_class: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(module_class.forward).parameters)[1:]


def enter_layer(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Make the arguments of a layer flat, or give it ordinary masks in place of documents."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, DocumentMask):
            return arguments_of(layer, args, kwargs)
    return None


def leave_layer(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Make the hidden states that a layer returns a batch again."""
    mask = flat_mask_in(args, kwargs)
    return None if mask is None else restored_output(mask.queries, output)


def flat_mask_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatMask | None:
    """The first mask of a flat row among the arguments of a module. That of cross-attention has
    the same queries."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, FlatMask):
            return value
    return None


def name_of_mask(names: Container[str]) -> str:
    """What a module calls its mask: XLNet's has one for each of two streams."""
    return "attn_mask_h" if "attn_mask_h" in names else "attention_mask"


@torch.compiler.disable  # It reads values, on which shapes depend.
def restored_output(tokens: RealTokens, output: Any) -> Any:
    """The states that a layer returns: one tensor, or the first of several. Others like it, such
    as the layout of LiLT, are states as well."""
    if isinstance(output, ModelOutput):  # of a stack of layers
        output["last_hidden_state"] = tokens.restore_output(output["last_hidden_state"])
        return output
    if isinstance(output, torch.Tensor):
        return tokens.restore_output(output)
    states, *others = output
    restored = [tokens.restore_output(states)]
    for value in others:
        is_like_states = isinstance(value, torch.Tensor) and value.ndim == states.ndim
        if is_like_states and value.shape[:2] == states.shape[:2]:
            value = tokens.restore(value)
        restored.append(value)
    return type(output)(restored)


@torch.compiler.disable  # It reads values, on which shapes depend.
def arguments_of(
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    documents: DocumentMask | None = None,
) -> Arguments:
    """The arguments of a layer for a flat row if it can compute one, otherwise for the batch.

    Args:
        documents: Those of a mask that a model has made by itself.
    """
    names = parameters_of(layer)[: len(args)]
    given = dict(zip(names, args, strict=False)) | kwargs
    mask = documents or given.get(name_of_mask(given))
    if isinstance(mask, DocumentMask) and len(names) == len(args):
        flat = flat_arguments(layer, mask, given)
        if flat is not None:
            return tuple(flat.pop(name) for name in names), flat
    ordinary = {name: with_ordinary_mask(value) for name, value in kwargs.items()}
    return tuple(map(with_ordinary_mask, args)), ordinary


def with_ordinary_mask(value: Any) -> Any:
    return value.dense if isinstance(value, DocumentMask) else value


def flat_arguments(
    layer: nn.Module, mask: DocumentMask, given: dict[str, Any]
) -> dict[str, Any] | None:
    """The arguments `given`, by name, for a flat row; None where the layer must compute the
    batch."""
    if mask.is_nearly_full or not may_be_flat(mask, given):
        return None
    if mask.flat is None or has_user_hook(layer):
        return None
    # A flat row would not count the padding between tokens in a bias of distances.
    if mask.has_holes and has_bias(layer, given):
        return None
    source = None
    cross_mask = given.get("encoder_attention_mask")
    if isinstance(cross_mask, DocumentMask):
        flat_cross_mask = cross_mask.flat_from(mask)
        if flat_cross_mask is None:
            return None
        given["encoder_attention_mask"] = flat_cross_mask
        source = flat_cross_mask.keys
    given[name_of_mask(given)] = mask.flat
    for name, value in given.items():
        tokens = source if name.startswith("encoder_") else mask.tokens
        if tokens is not None and name not in TABLES:
            given[name] = flatten(name, value, tokens)
    if "position_bias" in parameters_of(layer):
        add_position_bias(layer, given, mask.tokens.longest)
    return given


def may_be_flat(mask: DocumentMask, given: dict[str, Any]) -> bool:
    """Whether a layer can compute a flat row of the arguments that it is `given`.

    A cache gets the keys of the batch; only one that grows can be handed over by `FlatCache`.
    """
    states = next(iter(given.values()))
    if not isinstance(states, torch.Tensor) or tuple(states.shape[:2]) != mask.shape:
        return False
    if mask.key_shape != mask.shape or wants_all_layers(given, mask.config):
        return False
    # `is_causal` counts in full batches only, and `output_g` is the second stream of XLNet.
    if any(given.get(name) is not None for name in ("is_causal", "output_g")):
        return False
    has_source = given.get("encoder_hidden_states") is not None
    if has_source and not isinstance(given.get("encoder_attention_mask"), DocumentMask):
        return False
    return all(given.get(name) is None or type(given[name]) is DynamicCache for name in CACHES)


def has_bias(layer: nn.Module, given: dict[str, Any]) -> bool:
    is_given = any(given.get(name) is not None for name in TABLES)
    return is_given or bias_of(layer) is not None


def has_user_hook(layer: nn.Module) -> bool:
    """Whether a hook of other code within a layer would get a flat row in place of the batch."""
    for module in layer.modules():
        hooks: list[Any] = list(module._forward_pre_hooks.values())
        if module is layer:  # Its other hooks get the batch.
            hooks = hooks[hooks.index(enter_layer) + 1 :]
        else:
            hooks += module._forward_hooks.values()
        hooks += module._backward_hooks.values()
        hooks += module._backward_pre_hooks.values()
        for hook in hooks:
            name = name_of_hook(hook)
            if name.partition(".")[0] not in LIBRARIES:
                logger.warning_once(
                    f"padding_free: {type(layer).__name__} computes padding, as a hook within it, "
                    f"{name}, would get one row of all real tokens in place of the batch."
                )
                return True
    return False


def name_of_hook(hook: Any) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return f"{getattr(hook, '__module__', '')}.{name}"


def wants_all_layers(given: dict[str, Any], *configs: Any) -> bool:
    """Whether the arguments or a configuration ask for outputs of all layers, which are recorded
    in the shape that the layers see."""
    return any(
        given.get(name) or any(getattr(config, name, False) for config in configs)
        for name in LAYER_OUTPUTS
    )


def flatten(name: str, value: Any, tokens: RealTokens) -> Any:
    """Tensors `(B, L, ...)`, `(B, 1, L, ...)`, tuples of such, and caches, flat; others as they
    are. In place of B there may be a 1, for all rows alike."""
    if isinstance(value, tuple):
        return tuple(flatten(name, part, tokens) for part in value)
    if isinstance(value, DynamicCache):
        return FlatCache(value, tokens)
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    batch_size, length = tokens.shape
    if name == "alibi":  # Bloom's bias of keys, (B * heads, 1, L)
        value = value.view(batch_size, -1, length).transpose(1, 2)
    if value.shape[0] not in (1, batch_size):
        return value
    if value.shape[1] == length:
        return tokens.flatten(value)
    if value.ndim == 4 and value.shape[1:3] == (1, length):  # for all heads alike
        return tokens.flatten(value.squeeze(1)).unsqueeze(1)
    return value


def bias_of(layer: nn.Module) -> Any:
    """What computes the bias of distances that attention adds to its scores, as in T5, or None."""
    functions = (getattr(module, "compute_bias", None) for module in layer.modules())
    return next(filter(None, functions), None)


def add_position_bias(layer: nn.Module, given: dict[str, Any], longest: int) -> None:
    """T5's bias of the scores, for the longest document.

    The first layer would compute it for all pairs of the flat row, and hand it on to the others.
    Cross-attention has none; a single zero keeps it from making one.
    """
    compute_bias = bias_of(layer)
    if given.get("position_bias") is None and compute_bias is not None:
        given["position_bias"] = compute_bias(longest, longest)
    if "encoder_decoder_position_bias" in parameters_of(layer):
        given["encoder_decoder_position_bias"] = given["position_bias"].new_zeros(1, 1, 1, 1)


class FlatCache:
    """Stands for the empty cache of a prompt: the cache gets keys and values as a batch, and
    attention gets those of the flat row, at once or run by run."""

    def __init__(self, cache: DynamicCache, tokens: RealTokens):
        self.cache = cache
        self.tokens = tokens
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take `(count, heads, length, head_dim)`, and return it."""
        self.keys.append(key.transpose(1, 2).flatten(0, 1))
        self.values.append(value.transpose(1, 2).flatten(0, 1))
        if sum(map(len, self.keys)) == sum(self.tokens.lengths):
            keys = self.tokens.restore(torch.cat(self.keys).unsqueeze(0)).transpose(1, 2)
            values = self.tokens.restore(torch.cat(self.values).unsqueeze(0)).transpose(1, 2)
            self.cache.update(keys, values, layer_idx, *args, **kwargs)
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
