"""Every private name of torch that this package reads, and what it does with a torch that lacks one.

A missing name costs speed, never a result: the caller then takes the ordinary path through `nn.Module` and `F.linear`.
"""

import os
from collections.abc import Callable
from functools import cache

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


# oneDNN keeps what it compiled for the last 1,024 shapes, and torch as many of its own: hundreds of MiB with texts of
# all lengths, where a step of training has about twenty. Both numbers are read at the first product of the process,
# which comes after any import; a setting of the user's own goes before.
CACHED_SHAPES = "64"
for _capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_capacity, CACHED_SHAPES)


def _assume_true() -> bool:
    return True


_has_global_hooks: Callable[[], bool] = getattr(nn_module, "_has_any_global_hook", _assume_true)
_are_function_transforms_active: Callable[[], bool] = getattr(
    torch._C, "_are_functorch_transforms_active", _assume_true
)

# oneDNN's linear map `(states, weight, bias, activation, its arguments, its algorithm)`; None without it.
# `pack_weight(weight, rows)` puts a weight into the layout that it reads fastest.
onednn_linear = pack_weight = None
if torch.backends.mkldnn.is_available():
    onednn_linear = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    pack_weight = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


@cache
def has_onednn_bfloat16() -> bool:
    """Whether the processor can multiply bfloat16 by `onednn_linear` and `pack_weight`, which, unlike torch's own
    product, have no other way."""
    states = torch.ones(16, 16, dtype=torch.bfloat16)
    try:
        onednn_linear(states, pack_weight(states, 16), None, "none", [], "")
        onednn_linear(states, states, None, "none", [], "")
    except (RuntimeError, TypeError):  # TypeError where there is no such operator
        return False
    return True


try:
    from torch._library.fake_impl import allocate_size
except ImportError:
    allocate_size = None
try:
    from torch.nn.attention.varlen import varlen_attn as varlen_attention
except ImportError:
    varlen_attention = None


def new_dynamic_size() -> torch.SymInt:
    """A size that an operator finds out when it runs, in its `register_fake`.

    Without torch's leave `torch.compile` breaks its graph at such sizes, unless `fullgraph=True`; then the model would
    be compiled in pieces. torch's own operators make the symbol directly where that is of no use.
    """
    context = torch.library.get_ctx()
    graph = getattr(context, "_shape_env", None)
    if graph is None or allocate_size is None:
        return context.new_dynamic_size()
    return allocate_size(graph, 0, None)


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of `module` runs anything besides its `forward`."""
    return any(getattr(module, name, True) for name in _HOOKS) or _has_global_hooks()


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether something changes or watches the output of `module`."""
    return bool(getattr(module, "_forward_hooks", True))


def is_transformed() -> bool:
    """Whether `torch.func` or forward-mode differentiation is at work."""
    return _are_function_transforms_active() or getattr(forward_ad, "_current_level", 0) >= 0


def version_of(tensor: torch.Tensor | None) -> int:
    """A number that grows whenever `tensor` is changed in place; 0 where torch does not count."""
    if tensor is None or tensor.is_inference():
        return 0
    return getattr(tensor, "_version", 0)
