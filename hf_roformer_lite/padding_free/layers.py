"""The hooks with which layers compute a flat row.

If a layer gets a mask that knows the real tokens, `enter_layer` makes the batch a flat row of them,
and `leave_layer` makes the output a padded batch again. The next layer reuses the flat row of that
output, and so do the norms and linear maps after the last layer. Unlike a layer's own code, hooks
run outside gradient checkpointing.
"""

import copy
import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import ModelOutput, logging
from transformers.utils.import_utils import is_tracing

from .batch import FlatTokens, flat_form_of, map_states
from .masks import DocumentMask, FlatMask, Pattern, is_nearly_full
from .plan import Plan, current, request_of_layers

logger = logging.get_logger(__name__)

# Arguments of layers and attention modules that are the same for all rows: tables of pairs of
# tokens, `(..., L, L)`, and a table of relative positions.
TABLES = ("position_bias", "relative_pos", "rel_embeddings")

# The argument is called `cache` since transformers 5.24, and `layer_past` in a few models.
CACHES = ("cache", "past_key_values", "layer_past")

# Layers of models that make their masks without the mask functions of transformers, each as the
# folder of transformers and the class, with the pattern of their attention.
OWN_MASKS = {
    "deberta.DebertaLayer": Pattern(),
    "deberta_v2.DebertaV2Layer": Pattern(),
    "layoutlm.LayoutLMLayer": Pattern(),
    "markuplm.MarkupLMLayer": Pattern(),
    "openai.Block": Pattern(is_causal=True),
}

# Libraries whose hooks do not depend on the shape of a batch: they gather weights, move tensors, or
# record outputs for which padding is computed anyway.
LIBRARIES = {
    __name__.partition(".")[0],
    "accelerate",
    "bitsandbytes",
    "deepspeed",
    "torch",
    "torchao",
    "transformers",
}

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def hook_layers(module: nn.Module) -> list[RemovableHandle]:
    """Make the layers within `module`, and the norms and linear maps outside of them, compute flat
    rows.

    The hooks have no effect unless a layer gets a mask that knows the real tokens. Only models with
    the attention implementation "padding_free" make such masks.
    """
    handles = []
    layers = list(layers_of(module))
    within = {part for layer in layers for part in layer.modules()}
    maps = [part for part in module.modules() if part not in within and maps_each_token(part)]
    for parts, enter, leave in ((layers, enter_layer, leave_layer), (maps, enter_map, leave_map)):
        # torch's quantisation moves the hooks of a map to its new module, but without this option.
        with_kwargs = parts is layers
        for part in parts:
            # torch has no public way to inspect the hooks of a module.
            if enter in part._forward_pre_hooks.values():
                continue
            handles.append(part.register_forward_pre_hook(enter, with_kwargs=with_kwargs))
            # This hook comes first, so that all others get the padded batch.
            handles.append(part.register_forward_hook(leave, with_kwargs=with_kwargs, prepend=True))
    return handles


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules that are layers: those of a layer class, and entries of a `ModuleList`
    that take a mask."""
    is_list = isinstance(module, nn.ModuleList)
    for child in module.children():
        is_layer = is_list and "attention_mask" in parameters_of(child)
        if isinstance(child, GradientCheckpointingLayer) or is_layer:
            yield child
        else:
            yield from layers_of(child)


def maps_each_token(module: nn.Module) -> bool:
    """Whether a module without parts computes each token by itself."""
    if next(module.children(), None) is not None:
        return False
    kind = type(module)
    is_activation = kind.__module__ in ("transformers.activations", "torch.nn.modules.activation")
    is_map = isinstance(module, nn.Linear | nn.Dropout) or kind.__name__.endswith("Norm")
    return is_map or is_activation


def parameters_of(module: nn.Module) -> tuple[str, ...]:
    """The names of the parameters of `forward`."""
    module_class: Any = type(module)
    return parameters_of_class(module_class)


@lru_cache
def parameters_of_class(module_class: Any) -> tuple[str, ...]:
    parameters = inspect.signature(module_class.forward).parameters.values()
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind not in many)[1:]


def name_in_transformers(module: nn.Module) -> str:
    """The folder and name of a module's class in transformers, or of the first of its base classes
    that is in transformers."""
    module_class: Any = type(module)
    return name_of_class_in_transformers(module_class)


@lru_cache
def name_of_class_in_transformers(module_class: Any) -> str:
    for base in module_class.__mro__:
        if base.__module__.startswith("transformers.models."):
            return f"{base.__module__.split('.')[2]}.{base.__name__}"
    return ""


# Layers


def enter_layer(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Flatten the arguments of a layer, or replace each `DocumentMask` by the ordinary mask."""
    values = (*args, *kwargs.values())
    masks = [value for value in values if isinstance(value, DocumentMask)]
    if not masks and getattr(values[0], "shape", ())[1:2] == (1,):
        return None  # A step of generation has no padding.
    if all(mask.is_traced for mask in masks):
        return arguments_of(layer, args, kwargs)
    return arguments_outside_of_graphs(layer, args, kwargs)


def leave_layer(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
) -> Any:
    """Make the hidden states that a layer returns a padded batch again."""
    mask = flat_mask_in(args, kwargs)
    if mask is None:
        return None
    restore = restored_output if mask.queries.is_traced else restored_output_outside_of_graphs
    output = restore(mask.queries, output)
    if any(map(is_foreign, layer._forward_hooks.values())):
        # The hook may ask for the gradient of the states or change them, so they have to be those
        # that the next layer reads. A view does not know the flat row.
        output = map_states(lambda states: states[:], output)
    return output


def flat_mask_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> FlatMask | None:
    """The first `FlatMask` among the arguments of a module. (The mask of cross-attention has the
    same queries.)"""
    for value in (*args, *kwargs.values()):
        if isinstance(value, FlatMask):
            return value
    return None


def restored_output(tokens: FlatTokens, output: Any) -> Any:
    """The output of a layer, with its states as a padded batch."""
    if isinstance(output, ModelOutput):  # The module is a stack of layers.
        output["last_hidden_state"] = tokens.restore(output["last_hidden_state"])
        return output
    return map_states(tokens.restore, output)


def arguments_of(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a layer: for a flat row if the layer can compute one, otherwise for the
    padded batch."""
    names = parameters_of(layer)[: len(args)]
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(names) == len(args) and flatten_arguments(layer, given):
        return tuple(given.pop(name) for name in names), given
    ordinary = {name: with_ordinary_mask(value) for name, value in kwargs.items()}
    return tuple(map(with_ordinary_mask, args)), ordinary


# Outside a graph these read values, on which shapes depend.
arguments_outside_of_graphs = torch.compiler.disable(arguments_of)
restored_output_outside_of_graphs = torch.compiler.disable(restored_output)


def with_ordinary_mask(value: Any) -> Any:
    return value.dense if isinstance(value, DocumentMask) else value


def flatten_arguments(layer: nn.Module, given: dict[str, Any]) -> bool:
    """Change the arguments `given`, by name, in place for a flat row.

    Returns:
        Whether this is possible; if not, the layer must compute the padded batch.
    """
    mask = given.get("attention_mask")
    if isinstance(mask, torch.Tensor):
        mask = flat_mask_of(layer, mask)
    elif isinstance(mask, DocumentMask):
        mask = mask.flat if mask.key_shape == mask.shape else None
    # The mask of another attention function, such as flex attention, is left as it is.
    if not isinstance(mask, FlatMask) or not may_be_flat(given, mask.queries.shape):
        return False
    if has_other_hook(layer):
        return False
    source = None
    cross_mask = given.get("encoder_attention_mask")
    if isinstance(cross_mask, DocumentMask):
        given["encoder_attention_mask"] = cross_mask.flat_from(mask)
        source = given["encoder_attention_mask"].keys
    given["attention_mask"] = mask
    for name, value in given.items():
        tokens = source if name.startswith("encoder_") else mask.queries
        if tokens is not None and name not in TABLES:
            given[name] = flatten(value, tokens)
    if "position_bias" in parameters_of(layer):
        add_position_bias(layer, given, mask.queries.shape[1])
    return True


def may_be_flat(given: dict[str, Any], shape: tuple[int, int]) -> bool:
    """Whether a layer can compute a flat row from its arguments `given`.

    A cache stores the keys of the padded batch. `FlatCache` can fill only a cache that grows.
    """
    states = next(iter(given.values()))
    if getattr(states, "shape", ())[:2] != shape:
        return False
    # `is_causal` has an effect only on full batches.
    if given.get("is_causal") is not None or request_of_layers(given):
        return False
    has_source = given.get("encoder_hidden_states") is not None
    if has_source and not isinstance(given.get("encoder_attention_mask"), DocumentMask):
        return False
    return all(given.get(name) is None or type(given[name]) is DynamicCache for name in CACHES)


def flatten(value: Any, tokens: FlatTokens) -> Any:
    """The flat form of a tensor `(B, L, ...)` or `(B, 1, L, ...)`, of a tuple of these, or of a
    cache. Any other value is returned as it is. B may be 1 for a tensor that is the same for all
    rows."""
    if isinstance(value, tuple):
        return tuple(flatten(part, tokens) for part in value)
    if isinstance(value, DynamicCache):
        return FlatCache(value, tokens)
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    batch_size, length = tokens.shape
    if value.shape[0] not in (1, batch_size):
        return value
    if value.shape[1] == length:
        return tokens.flatten(value)
    if value.ndim == 4 and value.shape[1:3] == (1, length):  # The same for all heads.
        return tokens.flatten(value.squeeze(1)).unsqueeze(1)
    return value


def add_position_bias(layer: nn.Module, given: dict[str, Any], length: int) -> None:
    """Add the relative position bias of T5 for a row of the batch to the arguments.

    Otherwise the first layer would compute it for all pairs of tokens of the flat row. It passes
    the bias on to the other layers, which may compute padding. Cross-attention has no such bias; a
    single zero keeps it from making one.
    """
    functions = (getattr(module, "compute_bias", None) for module in layer.modules())
    compute_bias: Any = next(filter(None, functions), None)
    if given.get("position_bias") is None and compute_bias is not None:
        # The weights may be elsewhere until they are used.
        device = next(iter(given.values())).device
        given["position_bias"] = compute_bias(length, length, device=device)
    if "encoder_decoder_position_bias" in parameters_of(layer):
        given["encoder_decoder_position_bias"] = given["position_bias"].new_zeros(1, 1, 1, 1)


class FlatCache:
    """Replaces the empty cache while a prompt is computed: the cache gets keys and values as a
    padded batch, and attention gets those of the flat row."""

    def __init__(self, cache: DynamicCache, tokens: FlatTokens):
        self.cache = cache
        self.tokens = tokens

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store keys and values `(1, heads, N, head_dim)`, and return them."""
        keys = self.tokens.restore(key.transpose(1, 2)).transpose(1, 2)
        values = self.tokens.restore(value.transpose(1, 2)).transpose(1, 2)
        self.cache.update(keys, values, layer_idx, *args, **kwargs)
        return key, value


# Layers with masks that the mask functions of transformers have not made


def plan_of(mask: torch.Tensor, pattern: Pattern | None) -> Plan | None:
    """The plan of the batch to which a mask `(B, 1, L, L)` or `(B, 1, 1, L)` belongs.

    The plan is kept by the memory of the mask, because reentrant checkpointing passes a detached
    copy of it. A mask that the user passes has it from the beginning. In a model that makes its
    mask itself, the first layer finds the plan that is current, and leaves it with the mask, where
    a layer that is computed again finds it.

    Args:
        mask: The mask.
        pattern: The pattern of the layer if its model makes the mask itself, otherwise None.
    """
    holder: Any = mask
    if not is_tracing(mask):
        with suppress(NotImplementedError):  # Tensors of torch.func have no memory of their own.
            holder = mask.untyped_storage()
    plan: Plan | None = getattr(holder, "padding_free_plan", None)
    if plan is None and pattern is not None:
        plan = current.plan or Plan(why_padded="the model made no plan")
        holder.padding_free_plan = plan
    return plan


def flat_mask_of(layer: nn.Module, mask: torch.Tensor) -> FlatMask | None:
    """The mask of the flat row instead of a mask `(B, 1, L, L)` or `(B, 1, 1, L)`; None if padding
    is to be computed."""
    pattern = OWN_MASKS.get(name_in_transformers(layer))
    plan = plan_of(mask, pattern)
    if plan is None or plan.why_padded:
        return None
    if plan.flat_mask is None:
        if plan.is_real is None or is_nearly_full(plan.is_real):
            plan.why_padded = "a flat row costs more than little padding"
            return None
        tokens = plan.tokens(plan.is_real, None if pattern is None else pattern.is_causal)
        plan.flat_mask = FlatMask(
            queries=tokens,
            keys=tokens,
            dense=lambda: None,
            pattern=pattern if tokens.are_documents else None,
        )
    # The plan may not hold the mask, whose memory holds the plan.
    flat_mask = copy.copy(plan.flat_mask)
    flat_mask.dense = lambda: mask
    return flat_mask


# Norms and linear maps outside the layers


def enter_map(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Give a module the flat row of a batch that a layer or another module has returned, with a
    last token for all padding."""
    form = flat_form_of(args[0]) if args else None
    if form is None or form.padding == "other" or form.tokens.index is None:
        return None
    if has_other_hook(module):
        return None
    flat = form.flat
    if form.padding == "zeros":
        if not form.tokens.is_traced:
            # The caller may ask for the gradient of this batch, so it must pass through the batch.
            flat = form.tokens.collect(args[0])
        flat = torch.cat((flat, flat.new_zeros(1, 1, *flat.shape[2:])), dim=1)
    flat.tokens_of_flat_row = form.tokens  # type: ignore[attr-defined]
    return flat, *args[1:]


def leave_map(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Make the output a padded batch again."""
    tokens = getattr(args[0], "tokens_of_flat_row", None) if args else None
    return None if tokens is None else tokens.restore(output, padding="last")


MAP_HOOKS = (enter_map, leave_map)

# Hooks of other code


# The modules without such hooks, each with the number that the next hook anywhere had when the
# module was inspected. A module that is added to another one may have hooks.
inspected: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
torch_module.register_module_module_registration_hook(lambda *_: inspected.clear())


def has_other_hook(module: nn.Module) -> bool:
    """Whether a hook of other code would get a flat row instead of the batch."""
    if is_tracing():
        return other_hook_in(module) != ""
    if inspected.get(module) == RemovableHandle.next_id:
        return False
    name = other_hook_in(module)
    if not name:
        inspected[module] = RemovableHandle.next_id
        return False
    logger.warning_once(
        f"padding_free: {type(module).__name__} computes padding, because a hook within it, "
        f"{name}, would get one sequence of all real tokens, not the batch."
    )
    return True


def other_hook_in(module: nn.Module) -> str:
    """The name of the first hook that would get a flat row; empty if there is none."""
    return next((name_of_hook(hook) for hook in hooks_within(module) if is_foreign(hook)), "")


def is_foreign(hook: Any) -> bool:
    """Whether a hook belongs to none of the `LIBRARIES`."""
    return name_of_hook(hook).partition(".")[0] not in LIBRARIES


def hooks_within(layer: nn.Module) -> Iterator[Any]:
    """The hooks that get what is computed within a layer. (torch has no public names for them.)"""
    for part in layer.modules():
        before = list(part._forward_pre_hooks.values())
        after = list(part._forward_hooks.values())
        if enter_layer in before:
            # Hooks that run before the first or after the second of ours get the batch.
            before = before[before.index(enter_layer) + 1 :]
            after = after[: after.index(leave_layer)]
        yield from before
        yield from after
        yield from part._backward_pre_hooks.values()
        yield from part._backward_hooks.values()
    yield from torch_module._global_forward_pre_hooks.values()
    yield from torch_module._global_forward_hooks.values()
    yield from torch_module._global_backward_pre_hooks.values()
    yield from torch_module._global_backward_hooks.values()


def name_of_hook(hook: Any) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    name = getattr(hook, "__qualname__", type(hook).__name__)
    return f"{getattr(hook, '__module__', '')}.{name}"
