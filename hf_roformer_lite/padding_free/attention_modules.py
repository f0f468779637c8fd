"""Models whose attention modules compute attention scores themselves.

Some models do not call transformers' attention functions. In a flat row, their own attention module
is called once for all documents of each length, with states `(count, length, hidden)`. The module
is not rewritten. Its other arguments, such as a relative position bias, rotary tables or slopes,
are cut to the length of the documents.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cached_property, lru_cache
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
from transformers.utils.import_utils import is_tracing

from .attention import DocumentMask, FlatMask, is_in_window, split_runs
from .batch import RealTokens, state
from .layers import (
    BIASES,
    XLNET_TABLES,
    Arguments,
    arguments_of,
    flat_mask_in,
    name_of_mask,
    parameters_of,
)

# The arguments that have one entry for each key of cross-attention.
KEY_STATES = ("encoder_hidden_states", "key_value_states")


# These modules, each as the folder of transformers and the class.
ATTENTION_MODULES = {
    "bloom.BloomAttention",
    "deberta.DisentangledSelfAttention",
    "deberta_v2.DisentangledSelfAttention",
    "falcon.FalconAttention",
    "gpt_neo.GPTNeoSelfAttention",
    "gpt_neox_japanese.GPTNeoXJapaneseAttention",
    "lilt.LiltSelfAttention",
    "luke.LukeSelfAttention",
    "megatron_bert.MegatronBertSelfAttention",
    "mpnet.MPNetSelfAttention",
    "mpt.MptAttention",
    "mvp.MvpAttention",
    "openai.Attention",
    "rembert.RemBertSelfAttention",
    "roformer.RoFormerSelfAttention",
    "squeezebert.SqueezeBertSelfAttention",
    "tapas.TapasSelfAttention",
    "trocr.TrOCRAttention",
    "xglm.XGLMAttention",
    "xlnet.XLNetRelativeAttention",
}

# The two axes of the states `(count, length, hidden)` that a module expects in exchanged order.
EXCHANGED_AXES = {
    "squeezebert.SqueezeBertSelfAttention": (1, 2),
    "xlnet.XLNetRelativeAttention": (0, 1),
}


def added_is_real(mask: torch.Tensor) -> torch.Tensor | None:
    """The real tokens, `(B, L)`, of an additive mask `(B, 1, 1, L)`, the same for all queries."""
    return mask[:, 0, 0] == 0 if mask.ndim == 4 and mask.shape[1:3] == (1, 1) else None


def product_is_real(mask: torch.Tensor) -> torch.Tensor | None:
    """The real tokens, `(B, L)`, of a mask `(B, 1, L, L)` that is nonzero where query and key are
    both real."""
    if mask.ndim != 4 or mask.shape[1] != 1 or mask.shape[2] != mask.shape[3]:
        return None
    is_seen = mask[:, 0] != 0
    is_real = is_seen.diagonal(dim1=1, dim2=2)
    return is_real if torch.equal(is_seen, is_real[:, :, None] & is_real[:, None]) else None


def column_is_real(mask: torch.Tensor) -> torch.Tensor | None:
    """The real tokens, `(B, L)`, of XLNet's mask `(L, L, B, 1)`, which is 1 where a key is hidden
    from a query: at keys that are padding, except on the diagonal."""
    if mask.ndim != 4 or mask.shape[0] != mask.shape[1]:
        return None
    is_hidden = mask[..., 0] != 0
    is_padding = is_hidden.any(dim=0)
    is_diagonal = torch.eye(len(mask), dtype=torch.bool, device=mask.device)[..., None]
    return ~is_padding.T if torch.equal(is_hidden, is_padding & ~is_diagonal) else None


class TimeMajorMask(DocumentMask):
    """The mask of layers whose states are `(L, B, hidden)`."""

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.shape = self.shape[::-1]
        self.key_shape = self.shape

    @cached_property
    def tokens(self) -> RealTokens:
        documents = self.documents
        return RealTokens.of_documents(documents.numbers, count=documents.count, row_axis=1)


# Layers of models that make their masks without the mask functions of transformers. Each has a
# function that finds the real tokens in its mask, and the mask function that the mask stands for.
OWN_MASKS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor | None], Any]] = {
    "deberta.DebertaLayer": (product_is_real, bidirectional_mask_function),
    "deberta_v2.DebertaV2Layer": (product_is_real, bidirectional_mask_function),
    "layoutlm.LayoutLMLayer": (added_is_real, bidirectional_mask_function),
    "markuplm.MarkupLMLayer": (added_is_real, bidirectional_mask_function),
    "openai.Block": (added_is_real, causal_mask_function),
    "xlnet.XLNetLayer": (column_is_real, bidirectional_mask_function),
}


def name_in_transformers(module: nn.Module) -> str:
    """The folder and name of a module's class in transformers, or of the first of its base classes
    that is in transformers."""
    module_class: Any = type(module)
    return name_of_class(module_class)


@lru_cache
def name_of_class(module_class: Any) -> str:
    for base in module_class.__mro__:
        if base.__module__.startswith("transformers.models."):
            return f"{base.__module__.split('.')[2]}.{base.__name__}"
    return ""


def has_own_attention(model: nn.Module) -> bool:
    return any(name_in_transformers(part) in ATTENTION_MODULES for part in model.modules())


def hook_own_masks(model: nn.Module) -> list[RemovableHandle]:
    """Make the layers of `OWN_MASKS` compute flat rows."""
    return [
        layer.register_forward_pre_hook(enter_with_own_mask, with_kwargs=True)
        for layer in model.modules()
        if name_in_transformers(layer) in OWN_MASKS
    ]


def enter_with_own_mask(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Like `enter_layer`, for a layer of `OWN_MASKS`. The documents are stored on the mask, which
    is the same for all layers."""
    given = dict(zip(parameters_of(layer), args, strict=False)) | kwargs
    mask = given.get(name_of_mask(given))
    if not isinstance(mask, torch.Tensor) or is_tracing(mask) or state.computes_padding:
        return None
    if "documents" not in vars(mask):
        states = next(iter(given.values()))
        vars(mask)["documents"] = documents_of(layer, mask, dtype=states.dtype)
    documents = vars(mask)["documents"]
    return None if documents is None else arguments_of(layer, args, kwargs, documents)


def documents_of(layer: nn.Module, mask: torch.Tensor, dtype: torch.dtype) -> DocumentMask | None:
    """The documents that a mask defines; None if the mask has another form than expected.

    Args:
        dtype: The dtype of the hidden states.
    """
    read, mask_function = OWN_MASKS[name_in_transformers(layer)]
    is_real = read(mask)
    if is_real is None:
        return None
    batch_size, length = is_real.shape
    mask_class = TimeMajorMask if read is column_is_real else DocumentMask
    return mask_class(
        batch_size=batch_size,
        q_length=length,
        kv_length=length,
        mask_function=mask_function,
        attention_mask=is_real,
        device=mask.device,
        dtype=dtype,
        config=None,
    )


# Classes with a wrapped `forward`


@lru_cache
def class_around(stock_class: Any, around: Callable[..., Any]) -> Any:
    """A subclass of the same name whose `forward` is `around(module, stock_forward, args, kwargs)`.

    A hook would not suffice: it cannot call a module several times, and PEFT and
    sentence-transformers call `forward` directly, which skips hooks. Nor would a `forward` set on
    the instance, which `DataParallel` would share among all replicas.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(self, stock_class.forward, args, kwargs)

    def reduce(self: nn.Module, protocol: int) -> tuple[Any, ...]:
        return new_module, (stock_class, around), self.__getstate__()

    forward.__signature__ = inspect.signature(stock_class.forward)  # type: ignore[attr-defined]
    forward.__doc__ = stock_class.forward.__doc__
    fields = {
        "__module__": stock_class.__module__,
        "__qualname__": stock_class.__qualname__,
        "__doc__": stock_class.__doc__,
        "__reduce_ex__": reduce,  # for copying and pickling
        "_stock_class": stock_class,
        "forward": forward,
    }
    return type(stock_class.__name__, (stock_class,), fields)


def new_module(stock_class: Any, around: Callable[..., Any]) -> nn.Module:
    wrapped_class = class_around(stock_class, around)
    return wrapped_class.__new__(wrapped_class)


def wrap(module: nn.Module, around: Callable[..., Any]) -> None:
    if "_stock_class" not in vars(type(module)):
        stock_class: Any = type(module)
        set_class(module, class_around(stock_class, around))


def unwrap_all(model: nn.Module) -> None:
    """Restore the original classes of all modules."""
    for module in model.modules():
        # The class of a module may be a newer subclass of ours, such as FSDP2 makes.
        stock_class = vars(type(module)).get("_stock_class")
        if stock_class is not None:
            set_class(module, stock_class)


def set_class(module: nn.Module, kind: Any) -> None:
    module.__class__ = kind
    # The hooks with which accelerate moves arguments between devices replace `forward`, and call
    # the one that the module had before. It has no public name.
    if "_old_forward" in vars(module):
        vars(module)["_old_forward"] = MethodType(kind.forward, module)


def wrap_attention_modules(model: nn.Module) -> None:
    for module in model.modules():
        if name_in_transformers(module) in ATTENTION_MODULES:
            wrap(module, attend_by_module)


# Attention


def attend_by_module(
    module: nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run `forward` of an attention module, in a flat row once for each run of documents of one
    length."""
    mask = flat_mask_in(args, kwargs)
    if mask is None:
        return forward(module, *args, **kwargs)
    given = dict(zip(parameters_of(module), args, strict=False)) | kwargs
    return attend_to_documents(module, forward, given, mask)


@torch.compiler.disable  # Each new shape, which depends on the data, would be compiled again.
def attend_to_documents(
    module: nn.Module, forward: Callable[..., Any], given: dict[str, Any], mask: FlatMask
) -> Any:
    """Attention in a flat row, by one call for each run of documents of one length."""
    states = next(iter(given))  # The first argument, whatever its name.
    name_of_module = name_in_transformers(module)
    axes = EXCHANGED_AXES.get(name_of_module, (0, 0))  # (0, 0) exchanges nothing.
    given[states] = given[states].transpose(*axes)
    table = given.get("rel_embeddings")
    once = nullcontext() if table is None else Once(table)
    pieces = {name: pieces_of(name, value, mask) for name, value in given.items()}
    outputs = []
    for number, (_, num_queries, num_keys) in enumerate(mask.runs):
        arguments = {name: values[number] for name, values in pieces.items()}
        rows = arguments[states]
        arguments[name_of_mask(given)] = mask_for(name_of_module, rows, num_queries, num_keys, mask)
        arguments[states] = rows.transpose(*axes)
        with once:
            outputs.append(forward(module, **arguments))
    return joined(outputs, axes)


class Once(TorchFunctionMode):
    """Computes only once what the calls for all runs share: the dropout and the projections of
    DeBERTa's table of relative positions."""

    def __init__(self, table: torch.Tensor):
        super().__init__()
        self.table = table
        self.dropped = table
        # The results, with their arguments: while these are alive, no other object has their ids.
        self.known: dict[Any, tuple[tuple[Any, ...], torch.Tensor]] = {}

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        is_dropout = func is F.dropout and args[0] is self.table
        is_projection = func is F.linear and args[0].data_ptr() == self.dropped.data_ptr()
        if not is_dropout and not is_projection:
            return func(*args, **kwargs)
        key = (func, args[0].shape, *map(id, args[1:]))
        if key not in self.known:
            self.known[key] = (args, func(*args, **kwargs))
        result = self.known[key][1]
        if is_dropout:
            self.dropped = result
        return result


def mask_for(
    name_of_module: str, states: torch.Tensor, num_queries: int, num_keys: int, mask: FlatMask
) -> torch.Tensor | None:
    """The mask in the form that an attention module expects, for `states` `(count, length,
    hidden)`."""
    if name_of_module.endswith("DisentangledSelfAttention"):  # True for visible keys, here all
        return states.new_ones(1, 1, 1, 1, dtype=torch.bool)
    window = mask.window or num_keys
    if not mask.is_causal and window >= num_keys:
        return None
    queries = torch.arange(num_queries, device=states.device)[:, None]
    keys = torch.arange(num_keys, device=states.device)
    is_hidden = ~is_in_window(queries, keys, window, mask.is_causal)
    if name_of_module == "mpt.MptAttention":
        return is_hidden[None, None]
    zeros = states.new_zeros(len(states), 1, num_queries, num_keys)
    return zeros.masked_fill(is_hidden, torch.finfo(states.dtype).min)


def pieces_of(name: str, value: Any, mask: FlatMask) -> list[Any]:
    """The part of an argument that belongs to each run of documents."""
    runs = mask.runs
    if isinstance(value, tuple) and value:
        parts = [pieces_of(name, part, mask) for part in value]
        return list(zip(*parts, strict=True))
    if not isinstance(value, torch.Tensor) or name == "rel_embeddings":
        return [value] * len(runs)
    if name in XLNET_TABLES:
        return list(tables_of_xlnet(name, value, mask))
    if name in BIASES:
        is_table = value.shape[-1] == value.shape[-2]
        return [value[:1, ..., :queries, :keys] if is_table else value for _, queries, keys in runs]
    shapes = [(count, keys if name in KEY_STATES else queries) for count, queries, keys in runs]
    return rows_of_runs(value, shapes, is_alibi=name == "alibi")


def tables_of_xlnet(name: str, value: torch.Tensor, mask: FlatMask) -> Iterator[torch.Tensor]:
    """A table of XLNet for each run of documents: `r`, the encoded distances from L to -L, `(2 * L,
    B, hidden)`, or `seg_mat`, whether two tokens are in the same segment, `(L, L, B, 2)`."""
    tokens = mask.queries
    length, batch_size = tokens.shape
    index = tokens.index
    if index is None:
        index = torch.arange(length * batch_size, device=value.device)
    start = 0
    for count, queries, _ in mask.runs:
        places = index[start : start + count * queries].view(count, queries)
        start += count * queries
        rows = places[:, 0] % batch_size
        if name == "seg_mat":
            columns = (places // batch_size).T
            yield value[columns[:, None], columns, rows]
        elif value.stride(1) == 0:  # Expanded: without dropout, it is the same in all rows.
            yield value[length - queries : length + queries, :1]
        else:
            yield value[length - queries : length + queries, rows]


def rows_of_runs(
    value: torch.Tensor, shapes: list[tuple[int, int]], is_alibi: bool
) -> list[torch.Tensor]:
    """Split an argument of a flat row into rows `(count, length, ...)` for each run of documents.

    Args:
        value: `(1, N, ...)` or `(1, heads, N, head_dim)`; any other tensor is the same in all runs.
        shapes: The number of documents in each run, and their length.
        is_alibi: Whether this is Bloom's ALiBi bias, which becomes `(count * heads, 1, length)`.
    """
    sizes = [count * length for count, length in shapes]
    num_tokens = sum(sizes)
    if value.ndim >= 2 and value.shape[:2] == (1, num_tokens):
        pieces = zip(value.squeeze(0).split(sizes), shapes, strict=True)
        rows = [piece.unflatten(0, shape) for piece, shape in pieces]
        return (
            [row.transpose(1, 2).flatten(0, 1).unsqueeze(1) for row in rows] if is_alibi else rows
        )
    if value.ndim == 4 and value.shape[::2] == (1, num_tokens):
        return list(split_runs(value, shapes))
    return [value] * len(shapes)


def joined(outputs: list[Any], axes: tuple[int, int]) -> Any:
    """Join what an attention module returns for each run, states `(count, length, ...)` with
    exchanged `axes`, to a flat row. Attention probabilities are dropped: a model that must return
    them computes the padded batch."""
    first = outputs[0]
    if isinstance(first, dict):
        return {key: joined([output[key] for output in outputs], axes) for key in first}
    if isinstance(first, tuple | list):
        return type(first)(joined(list(parts), axes) for parts in zip(*outputs, strict=True))
    if isinstance(first, torch.Tensor) and first.ndim == 3:
        rows = [output.transpose(*axes).flatten(0, 1) for output in outputs]
        return torch.cat(rows).unsqueeze(0).transpose(*axes)
    return None if isinstance(first, torch.Tensor) and first.ndim == 4 else first
