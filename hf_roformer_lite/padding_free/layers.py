"""The two hooks with which a layer computes a flat row.

If the mask of a layer is a `DocumentMask`, `enter_layer` makes the batch a flat row of real tokens,
and `leave_layer` makes the output a padded batch again. The next layer reuses the flat row of that
output. Unlike a layer's own code, hooks run outside gradient checkpointing.
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

# Arguments of layers and attention modules that are the same for all rows: tables of pairs of
# tokens, `(..., L, L)`, whose top left corner each document uses, and a table of relative
# positions. XLNet's tables have an axis of rows, but it is not the first one.
BIASES = ("position_bias", "relative_pos")
XLNET_TABLES = ("r", "seg_mat")
TABLES = (*BIASES, "rel_embeddings", *XLNET_TABLES)

# The argument is called `cache` since transformers 5.24, and `layer_past` in a few models.
CACHES = ("cache", "past_key_values", "layer_past")

# Arguments or fields of a configuration that request outputs of all layers.
LAYER_OUTPUTS = ("output_hidden_states", "output_attentions", "output_router_logits", "use_mems")

# Libraries whose hooks do not depend on the shape of a batch: they gather weights, move tensors, or
# record outputs for which padding is computed anyway.
LIBRARIES = {"accelerate", "bitsandbytes", "deepspeed", "torch", "torchao", "transformers"}
LIBRARIES.add(__name__.partition(".")[0])

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def hook_layers(module: nn.Module) -> list[RemovableHandle]:
    """Make the layers within `module` compute flat rows.

    The hooks have no effect unless a layer gets a `DocumentMask`, which only models with the
    attention implementation "padding_free" make.
    """
    handles = []
    for layer in layers_of(module):
        # torch has no public way to inspect the hooks of a module.
        if enter_layer in layer._forward_pre_hooks.values():
            continue
        handles.append(layer.register_forward_pre_hook(enter_layer, with_kwargs=True))
        # This hook comes first, so that all others get the padded batch.
        leave = layer.register_forward_hook(leave_layer, with_kwargs=True, prepend=True)
        handles.append(leave)
    return handles


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that are layers: those of a layer class, and entries of a `ModuleList`
    that take a mask."""
    is_list = isinstance(module, nn.ModuleList)
    for child in module.children():
        names = parameters_of(child)
        is_layer = is_list and name_of_mask(names) in names
        # This encoder calls the `forward` of its layers directly, which skips their hooks.
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
    """Flatten the arguments of a layer, or replace each `DocumentMask` by the ordinary mask."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, DocumentMask):
            return arguments_of(layer, args, kwargs)
    return None


def leave_layer(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Make the hidden states that a layer returns a padded batch again."""
    mask = flat_mask_in(args, kwargs)
    return None if mask is None else restored_output(mask.queries, output)


def flat_mask_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatMask | None:
    """The first `FlatMask` among the arguments of a module. (The mask of cross-attention has the
    same queries.)"""
    for value in (*args, *kwargs.values()):
        if isinstance(value, FlatMask):
            return value
    return None


def name_of_mask(names: Container[str]) -> str:
    """The name of the mask among the arguments of a module. XLNet has one for each of its two
    streams."""
    return "attn_mask_h" if "attn_mask_h" in names else "attention_mask"


@torch.compiler.disable  # It reads values, on which shapes depend.
def restored_output(tokens: RealTokens, output: Any) -> Any:
    """The output of a layer as a padded batch. The states are the only tensor or the first of
    several. Others of the same leading shape, such as the layout of LiLT, are states as well."""
    if isinstance(output, ModelOutput):  # The module is a stack of layers.
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
    """The arguments of a layer: for a flat row if the layer can compute one, otherwise for the
    padded batch.

    Args:
        documents: The documents of a mask that the model has not made with transformers' mask
            functions.
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
    """The arguments `given`, by name, for a flat row; None if the layer must compute the padded
    batch."""
    if mask.is_nearly_full or not may_be_flat(mask, given):
        return None
    if mask.flat is None or has_user_hook(layer):
        return None
    # In a flat row, a relative position bias would not count the padding between tokens.
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
    flat = dict(given)
    for name, value in given.items():
        tokens = source if name.startswith("encoder_") else mask.tokens
        if tokens is not None and name not in TABLES:
            flat[name] = flatten(name, value, tokens)
    if "position_bias" in parameters_of(layer):
        add_position_bias(layer, flat, mask.shape[1])
    return flat


def may_be_flat(mask: DocumentMask, given: dict[str, Any]) -> bool:
    """Whether a layer can compute a flat row from its arguments `given`.

    A cache stores the keys of the padded batch. `FlatCache` can fill only a cache that grows.
    """
    states = next(iter(given.values()))
    if not isinstance(states, torch.Tensor) or tuple(states.shape[:2]) != mask.shape:
        return False
    if mask.key_shape != mask.shape or wants_all_layers(given, mask.config):
        return False
    # `is_causal` has an effect only on full batches, and `output_g` is the second stream of XLNet.
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
    """Whether a hook of other code within a layer would get a flat row instead of the batch."""
    for module in layer.modules():
        hooks: list[Any] = list(module._forward_pre_hooks.values())
        if module is layer:  # The other hooks of the layer itself get the batch.
            hooks = hooks[hooks.index(enter_layer) + 1 :]
        else:
            hooks += module._forward_hooks.values()
        hooks += module._backward_hooks.values()
        hooks += module._backward_pre_hooks.values()
        for hook in hooks:
            name = name_of_hook(hook)
            if name.partition(".")[0] not in LIBRARIES:
                logger.warning_once(
                    f"padding_free: {type(layer).__name__} computes padding, because a hook within "
                    f"it, {name}, would get one row of all real tokens instead of the batch."
                )
                return True
    return False


def name_of_hook(hook: Any) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return f"{getattr(hook, '__module__', '')}.{name}"


def wants_all_layers(given: dict[str, Any], *configs: Any) -> bool:
    """Whether the arguments or a configuration request outputs of all layers. These are recorded in
    the shape in which the layers compute them."""
    return any(
        given.get(name) or any(getattr(config, name, False) for config in configs)
        for name in LAYER_OUTPUTS
    )


def flatten(name: str, value: Any, tokens: RealTokens) -> Any:
    """The flat form of a tensor `(B, L, ...)` or `(B, 1, L, ...)`, of a tuple of these, or of a
    cache. Any other value is returned as it is. B may be 1 for a tensor that is the same for all
    rows."""
    if isinstance(value, tuple):
        return tuple(flatten(name, part, tokens) for part in value)
    if isinstance(value, DynamicCache):
        return FlatCache(value, tokens)
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    batch_size, length = tokens.shape
    if name == "alibi":  # Bloom's ALiBi bias, (B * heads, 1, L)
        value = value.view(batch_size, -1, length).transpose(1, 2)
    if value.shape[0] not in (1, batch_size):
        return value
    if value.shape[1] == length:
        return tokens.flatten(value)
    if value.ndim == 4 and value.shape[1:3] == (1, length):  # The same for all heads.
        return tokens.flatten(value.squeeze(1)).unsqueeze(1)
    return value


def bias_of(layer: nn.Module) -> Any:
    """The method that computes the relative position bias of attention scores, as in T5, or
    None."""
    functions = (getattr(module, "compute_bias", None) for module in layer.modules())
    return next(filter(None, functions), None)


def add_position_bias(layer: nn.Module, given: dict[str, Any], length: int) -> None:
    """Add the relative position bias of T5 for a row of the batch to the arguments.

    Otherwise the first layer would compute it for all pairs of tokens of the flat row. It passes
    the bias on to the other layers, which may compute padding. Cross-attention has no such bias; a
    single zero keeps it from making one.
    """
    compute_bias = bias_of(layer)
    if given.get("position_bias") is None and compute_bias is not None:
        given["position_bias"] = compute_bias(length, length)
    if "encoder_decoder_position_bias" in parameters_of(layer):
        given["encoder_decoder_position_bias"] = given["position_bias"].new_zeros(1, 1, 1, 1)


class FlatCache:
    """Replaces the empty cache while a prompt is computed: the cache gets keys and values as a
    padded batch, and attention gets those of the flat row, all at once or run by run."""

    def __init__(self, cache: DynamicCache, tokens: RealTokens):
        self.cache = cache
        self.tokens = tokens
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values `(count, heads, length, head_dim)`, and return them."""
        self.keys.append(key.transpose(1, 2).flatten(0, 1))
        self.values.append(value.transpose(1, 2).flatten(0, 1))
        if sum(map(len, self.keys)) == sum(self.tokens.lengths):
            keys = self.tokens.restore(torch.cat(self.keys).unsqueeze(0)).transpose(1, 2)
            values = self.tokens.restore(torch.cat(self.values).unsqueeze(0)).transpose(1, 2)
            self.cache.update(keys, values, layer_idx, *args, **kwargs)
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0
