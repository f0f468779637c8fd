"""Layers that compute flat rows: two hooks on each.

`enter_layer` makes the batch a flat row of real tokens where the mask of the layer is a
`DocumentMask`, and `leave_layer` makes the output a batch again. The next layer takes the flat row
that is already there. Hooks, unlike a layer's own code, stay outside of gradient checkpointing.
"""

import inspect
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import DocumentMask, FlatMask
from .batch import RealTokens

# transformers calls its caches `cache` from 5.24 on, and in few models `layer_past`.
CACHES = ("cache", "past_key_values", "layer_past")


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
        handles.append(layer.register_forward_hook(leave_layer, with_kwargs=True))
    return handles


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that are layers: by their class, or as entries of a list that take a
    mask."""
    for child in module.children():
        is_listed = isinstance(module, nn.ModuleList)
        takes_mask = "attention_mask" in parameters_of(type(child))
        if isinstance(child, GradientCheckpointingLayer) or (is_listed and takes_mask):
            yield child
        else:
            yield from layers_of(child)


@lru_cache
def parameters_of(module_class: type[nn.Module]) -> tuple[str, ...]:
    return tuple(inspect.signature(module_class.forward).parameters)[1:]


def enter_layer(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Make the arguments of a layer flat. None leaves them as they are, with their padding."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, DocumentMask):
            return flat_arguments(layer, args, kwargs)
    return None


def leave_layer(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Make the hidden states that a layer returns a batch again."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, FlatMask):
            return restored_output(value.queries, output)
    return None


@torch.compiler.disable  # It reads values, on which shapes depend.
def restored_output(tokens: RealTokens, output: Any) -> Any:
    if isinstance(output, tuple):
        return tokens.restore_output(output[0]), *output[1:]
    return tokens.restore_output(output)


@torch.compiler.disable  # It reads values, on which shapes depend.
def flat_arguments(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a layer for a flat row; None where a layer must compute the batch."""
    names = parameters_of(type(layer))[: len(args)]
    if len(names) < len(args):
        return None
    given = dict(zip(names, args, strict=True)) | kwargs
    mask = given.get("attention_mask")
    if not isinstance(mask, DocumentMask) or not may_be_flat(mask, given):
        return None
    flat_mask = mask.flat
    if flat_mask is None:
        return None
    tokens = mask.tokens
    if mask.has_holes and computes_bias(layer):  # Its distances would not count the holes.
        return None
    if not flatten_source(given, mask):
        return None
    for name in CACHES:
        if given.get(name) is not None:
            given[name] = FlatCache(given[name], tokens)
    if "position_bias" in parameters_of(type(layer)):
        add_position_bias(layer, given, tokens.longest)
    for name, value in given.items():
        if not name.startswith("encoder_") and name != "position_bias":
            given[name] = flatten(value, tokens)
    given["attention_mask"] = flat_mask
    return tuple(given.pop(name) for name in names), given


def flatten_source(given: dict[str, Any], mask: DocumentMask) -> bool:
    """Make the states and positions of an encoder flat. False where it can't be told which
    documents of the encoder belong to those of the decoder."""
    cross_mask = given.get("encoder_attention_mask")
    if not isinstance(cross_mask, DocumentMask):
        return True
    flat_mask = cross_mask.flat_from(mask)
    if flat_mask is None:
        return False
    for name, value in given.items():
        if name.startswith("encoder_"):
            given[name] = flatten(value, flat_mask.keys)
    given["encoder_attention_mask"] = flat_mask
    return True


def may_be_flat(mask: DocumentMask, given: dict[str, Any]) -> bool:
    """Whether a layer can compute a flat row of the arguments that it is `given`.

    A cache gets the keys of the batch; only one that grows can be handed over by `FlatCache`.
    """
    states = next(iter(given.values()))
    if not isinstance(states, torch.Tensor) or tuple(states.shape[:2]) != mask.shape:
        return False
    if mask.key_shape != mask.shape or mask.tokens.longest == 0:
        return False
    if given.get("encoder_hidden_states") is not None:
        if not isinstance(given.get("encoder_attention_mask"), DocumentMask):
            return False
    if wants_all_layers(given, mask.config):
        return False
    return all(given.get(name) is None or type(given[name]) is DynamicCache for name in CACHES)


def wants_all_layers(given: dict[str, Any], *configs: Any) -> bool:
    """Whether the arguments or a configuration ask for outputs of all layers, which are recorded
    in the shape that the layers see."""
    names = ("output_hidden_states", "output_attentions", "output_router_logits")
    return any(
        given.get(name) or any(getattr(config, name, False) for config in configs) for name in names
    )


def flatten(value: Any, tokens: RealTokens) -> Any:
    """Tensors `(B, L, ...)`, `(B, 1, L, ...)` and tuples of such, flat; others as they are. In
    place of B there may be a 1, for all rows alike."""
    if isinstance(value, tuple):
        return tuple(flatten(part, tokens) for part in value)
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    batch_size, length = tokens.shape
    if value.shape[0] not in (1, batch_size):
        return value
    if value.shape[1] == length:
        return tokens.flatten(value)
    if value.ndim == 4 and value.shape[1:3] == (1, length):  # for all heads alike
        return tokens.flatten(value.squeeze(1)).unsqueeze(1)
    return value


def computes_bias(layer: nn.Module) -> bool:
    """Whether attention adds a bias of distances to its scores, as in T5."""
    return any(hasattr(module, "compute_bias") for module in layer.modules())


def add_position_bias(layer: nn.Module, given: dict[str, Any], longest: int) -> None:
    """T5's bias of the scores, for the longest document.

    The first layer would compute it for all pairs of the flat row, and hand it on to the others.
    Cross-attention has none; a single zero keeps it from making one.
    """
    if given.get("position_bias") is None:
        attention = next(module for module in layer.modules() if hasattr(module, "compute_bias"))
        given["position_bias"] = attention.compute_bias(longest, longest)
    if "encoder_decoder_position_bias" in parameters_of(type(layer)):
        given["encoder_decoder_position_bias"] = given["position_bias"].new_zeros(1, 1, 1, 1)


class FlatCache:
    """Stands for the empty cache of a prompt: the cache gets keys and values as a batch, and
    attention gets those of the flat row."""

    def __init__(self, cache: DynamicCache, tokens: RealTokens):
        self.cache = cache
        self.tokens = tokens

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take `(1, heads, N, head_dim)`, and return it."""
        self.cache.update(self._batch(key), self._batch(value), layer_idx, *args, **kwargs)
        return key, value

    def _batch(self, states: torch.Tensor) -> torch.Tensor:
        return self.tokens.restore(states.transpose(1, 2)).transpose(1, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
