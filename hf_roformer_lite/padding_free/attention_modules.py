"""Models whose attention modules compute attention scores themselves.

Some models do not call transformers' attention functions. In a flat row, their own attention module
is called once with the padded batch and the model's own mask, while its linear maps compute the
flat row. The module is not rewritten. Its other arguments, such as a relative position bias, rotary
tables or slopes, are those of the padded batch.
"""

import copy
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .batch import FlatTokens, flat_form_of, map_states, remember
from .layers import TABLES, FlatCache, flat_mask_in, name_in_transformers, parameters_of
from .masks import FlatMask
from .trial import PaddingFreeError

# The arguments that have one entry for each key of cross-attention.
KEY_STATES = ("encoder_hidden_states", "key_value_states")

# The modules that compute their scores themselves, each as the folder of transformers and the
# class.
ATTENTION_MODULES = {
    "bloom.BloomAttention",
    "deberta.DisentangledSelfAttention",
    "deberta_v2.DisentangledSelfAttention",
    "falcon.FalconAttention",
    "gpt_neo.GPTNeoSelfAttention",
    "gpt_neox_japanese.GPTNeoXJapaneseAttention",
    "lilt.LiltSelfAttention",
    "llama4.Llama4TextAttention",  # It scales queries by their place in the batch.
    "luke.LukeSelfAttention",
    "megatron_bert.MegatronBertSelfAttention",
    "mpnet.MPNetSelfAttention",
    "mvp.MvpAttention",
    "openai.Attention",
    "rembert.RemBertSelfAttention",
    "roformer.RoFormerSelfAttention",
    "tapas.TapasSelfAttention",
    "trocr.TrOCRAttention",
    "umt5.UMT5Attention",  # It computes a position bias in each layer.
    "xglm.XGLMAttention",
}


# The attribute that holds the original configuration of such a module. The module uses a copy with
# the attention implementation of the stock model.
STOCK_CONFIG = "_stock_config"


# Classes with a wrapped `forward`


@lru_cache
def class_around(stock_class: Any, around: Callable[..., Any]) -> Any:
    """A subclass of the same name whose `forward` is `around(module, stock_forward, args, kwargs)`.

    A hook would not suffice: PEFT and sentence-transformers call `forward` directly, which skips
    hooks, and an attention module needs a context around it. Nor would a `forward` set on the
    instance, which `DataParallel` would share among all replicas.
    """

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(self, stock_class.forward, args, kwargs)

    def reduce(self: nn.Module, protocol: int) -> tuple[Any, ...]:
        return new_module, (stock_class, around), self.__getstate__()

    forward.__signature__ = inspect.signature(stock_class.forward)  # type: ignore[attr-defined]
    fields = {
        "__module__": stock_class.__module__,
        "__reduce_ex__": reduce,  # for copying and pickling
        "_stock_class": stock_class,
        "forward": forward,
    }
    return type(stock_class.__name__, (stock_class,), fields)


def new_module(stock_class: Any, around: Callable[..., Any]) -> nn.Module:
    wrapped_class = class_around(stock_class, around)
    return wrapped_class.__new__(wrapped_class)


def wrap(module: nn.Module, around: Callable[..., Any]) -> None:
    """Make `forward` of a module `around`.

    Raises:
        PaddingFreeError: if a `forward` of the instance would be called in its place.
    """
    stock_class: Any = type(module)
    if "_stock_class" in vars(stock_class):
        return
    set_class(module, class_around(stock_class, around))
    called = getattr(module, "_old_forward", module.forward)
    if inspect.unwrap(called).__module__ != __name__:
        raise PaddingFreeError(
            module,
            "its `forward` was replaced, as accelerate does in mixed precision. Call padding_free "
            "before that, or load the model again.",
        )


def unwrap_all(model: nn.Module) -> None:
    """Restore the original classes of all modules."""
    for module in model.modules():
        # The class of a module may be a subclass of the padding-free one, as FSDP2 makes.
        stock_class = vars(type(module)).get("_stock_class")
        if stock_class is not None:
            set_class(module, stock_class)
        if STOCK_CONFIG in vars(module):
            module.config = vars(module).pop(STOCK_CONFIG)


def set_class(module: nn.Module, kind: Any) -> None:
    stock_forward: Any = type(module).forward
    module.__class__ = kind
    # The hooks with which accelerate moves arguments between devices replace `forward`, and call
    # the one that the module had before. It has no public name. The exporters of transformers leave
    # the `forward` of the class on the module.
    for name in ("_old_forward", "forward"):
        bound = vars(module).get(name)
        if isinstance(bound, MethodType) and bound.__func__ is stock_forward:
            vars(module)[name] = MethodType(kind.forward, module)


# Attention


def wrap_attention_modules(model: nn.Module) -> None:
    """Wrap these modules of a model, before it gets another attention implementation. Some of them
    read its name, so they keep a configuration with the previous name."""
    for module in model.modules():
        if name_in_transformers(module) not in ATTENTION_MODULES:
            continue
        wrap(module, attend_by_module)
        config = getattr(module, "config", None)
        if config is not None:
            vars(module)[STOCK_CONFIG] = config
            module.config = copy.copy(config)


def attend_by_module(
    module: nn.Module,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run `forward` of an attention module. In a flat row, its arguments become those of the padded
    batch, and its linear maps still compute the flat row."""
    mask = flat_mask_in(args, kwargs)
    if mask is None:
        return forward(module, *args, **kwargs)
    given = dict(zip(parameters_of(module), args, strict=False)) | kwargs
    for name, value in given.items():
        tokens = mask.keys if name in KEY_STATES else mask.queries
        if name not in TABLES:
            given[name] = padded_argument(value, tokens, device=next(iter(given.values())).device)
    with FlatMaps(mask.queries, mask.keys):
        return map_states(mask.queries.flatten, forward(module, **given))


def padded_argument(value: Any, tokens: FlatTokens, device: torch.device) -> Any:
    """An argument of the flat row, `(1, N, ...)` or `(1, 1, N, ...)`, as that of the padded batch.
    Any other value is returned as it is."""
    if isinstance(value, tuple):
        return tuple(padded_argument(part, tokens, device) for part in value)
    if isinstance(value, FlatMask):
        return value.dense_on(device)
    if isinstance(value, FlatCache):
        return value.cache
    if not isinstance(value, torch.Tensor) or value.ndim < 2:
        return value
    if value.ndim == 4 and value.shape[1] == 1:
        return padded_argument(value.squeeze(1), tokens, device).unsqueeze(1)
    has_one_row = statically_known_true(value.shape[0] == 1)
    is_flat = has_one_row and statically_known_true(value.shape[1] == tokens.num_tokens)
    return padded_states(value, tokens) if is_flat else value


def padded_states(states: torch.Tensor, tokens: FlatTokens) -> torch.Tensor:
    """`(1, N, ...)` to `(B, L, ...)`, with copies of other tokens at padding. The batch knows the
    flat row."""
    padded = tokens.spread(states)
    remember(padded, tokens, states, padding="other")
    return padded


# Falcon's linear maps are matrix products.
MATRIX_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


class FlatMaps(TorchFunctionMode):
    """Makes linear maps of a padded batch compute its flat row.

    A batch that was not made from a flat row is recognised by its shape, but not if it has only one
    row: a table of relative positions may have the same shape.
    """

    def __init__(self, queries: FlatTokens, keys: FlatTokens):
        super().__init__()
        self.queries = queries
        self.keys = keys

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        is_product = func in MATRIX_PRODUCTS and args[1].ndim == 2
        tokens = self.tokens_of(args[0]) if is_product or func is F.linear else None
        if tokens is None:
            return func(*args, **kwargs)
        states = func(tokens.flatten(args[0]), *args[1:], **kwargs)
        return padded_states(states, tokens)

    def tokens_of(self, states: torch.Tensor) -> FlatTokens | None:
        form = flat_form_of(states)
        if form is not None and form.tokens in (self.queries, self.keys):
            return form.tokens
        if self.keys is not self.queries:
            return None  # The other side may have the same shape.
        batch_size, length = self.queries.shape
        is_batch = (
            states.ndim == 3
            and not statically_known_true(batch_size == 1)
            and statically_known_true(states.shape[0] == batch_size)
            and statically_known_true(states.shape[1] == length)
        )
        return self.queries if is_batch else None
