"""Tensors that claim to be on an accelerator, and compute on the CPU.

They show, without such a device, that code works there, how many kernels it launches, and how often
the host waits for a value of the device. Within `pretended_device()`, models and tensors go to
`DEVICE` and back by `.to(...)`, as usual.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

# torch itself has no kernels for this device, so nothing can run there by mistake. Unlike those of
# other devices, its gradients are computed in the thread of the caller, where the modes below hold.
DEVICE = torch.device("lazy", 0)

# Operations, without underscores at both ends of their names, that take tensors of two devices.
INDEXING = ("index", "index_put")
TAKE_BOTH = ("copy", "to_copy", *INDEXING)
# All other operations count as one kernel, except for views and allocations, which have none.
KERNELS = {"unsafe_view": 0, "local_scalar_dense": 0, "sdpa_backward": 3}
# The shape or the value of the results of these operations depends on values on the device.
WAITS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


class Pretended(torch.Tensor):
    """A tensor on `DEVICE`. Its values are those of `inner`, which is on the CPU."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Pretended":
        outer: Pretended = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        outer.inner = inner
        return outer

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called outside the context of pretended_device().")

    def __repr__(self) -> str:
        return f"Pretended({self.inner})"


class Operations(TorchDispatchMode):
    """Computes the operations of forward and backward passes on the CPU, and counts them by name.

    Attributes:
        kernels: Kernels on the device. It may need several for an operation that counts as one
            here, such as a sort.
        waits: Operations after which the host waits for the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def add_kernels(self, name: str) -> None:
        self.kernels[name] += KERNELS.get(name, 1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        values, structure = tree_flatten((args, kwargs or {}))
        outer = {id(value.inner): value for value in values if isinstance(value, Pretended)}
        inner = [value.inner if isinstance(value, Pretended) else value for value in values]
        inner_args, inner_kwargs = tree_unflatten(inner, structure)
        if outer and name not in TAKE_BOTH:
            refuse_other_devices(name, values)
        is_here = isinstance(args[0], Pretended) if name == "copy" else bool(outer)
        if inner_kwargs.get("device") is not None:
            is_here = inner_kwargs["device"].type == DEVICE.type
            inner_kwargs["device"] = torch.device("cpu")
        result = func(*inner_args, **inner_kwargs)
        if not outer and not is_here:
            return result
        if not func.is_view and "empty" not in name:
            self.add_kernels(name)
        if not is_here or waits(func, name, inner_args, inner_kwargs):
            self.waits[name] += 1
        if not is_here:
            return result

        def pretended(value: torch.Tensor) -> torch.Tensor:
            # An operation in place returns the tensor that it was given.
            return outer[id(value)] if id(value) in outer else Pretended(value)

        return tree_map_only(torch.Tensor, pretended, result)


def refuse_other_devices(name: str, values: list[Any]) -> None:
    """Raise the error of a device if one of the tensors is on the CPU and not a single number."""
    for value in values:
        is_other = isinstance(value, torch.Tensor) and not isinstance(value, Pretended)
        if is_other and value.ndim > 0:
            raise RuntimeError(f"{name} takes tensors on {DEVICE} and on {value.device}.")


def waits(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the host needs values of the device to return the result of an operation."""
    if name in INDEXING:
        has_mask = any(index is not None and index.dtype == torch.bool for index in args[1])
        is_fill = name == "index_put" and args[2].numel() == 1  # torch makes it a `masked_fill`.
        return has_mask and not is_fill
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return not WAITS.isdisjoint(func.tags)


class Functions(TorchFunctionMode):
    """Replaces functions that torch computes in another way on a device, or not by operations."""

    def __init__(self, operations: Operations):
        super().__init__()
        self.operations = operations

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and isinstance(args[0], Pretended):
            return attend(self.operations, *args, **kwargs)
        if func is torch.Tensor.tolist and isinstance(args[0], Pretended):
            return args[0].to("cpu").tolist()
        if func is torch.tensor and kwargs.get("device") == DEVICE:
            return func(*args, **kwargs | {"device": "cpu"}).to(DEVICE)
        return func(*args, **kwargs)


@contextmanager
def pretended_device() -> Iterator[Operations]:
    """A context in which `DEVICE` can be used. It counts the operations there."""
    operations = Operations()
    with Functions(operations), operations:
        yield operations


def attend(
    operations: Operations,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """sdpa, which is one kernel on a GPU. A mask of True and False takes torch three more."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
    return FusedAttention.apply(operations, options, query, key, value, attn_mask)


class FusedAttention(torch.autograd.Function):
    """torch's sdpa on the CPU, with the gradients of all tensors that it is given."""

    @staticmethod
    def forward(
        ctx: Any, operations: Operations, options: dict[str, Any], *given: Pretended | None
    ) -> torch.Tensor:
        operations.add_kernels("sdpa")
        ctx.operations = operations
        ctx.inputs = [None if each is None else each.inner.detach() for each in given]
        ctx.wanted = []
        for each, needs_grad in zip(ctx.inputs, ctx.needs_input_grad[2:], strict=True):
            if needs_grad:
                ctx.wanted.append(each.requires_grad_())
        with torch.enable_grad():
            ctx.output = F.scaled_dot_product_attention(*ctx.inputs, **options)
        # On a GPU, the heads of a token are neighbours in memory.
        by_token = ctx.output.detach().transpose(1, 2).contiguous()
        return Pretended(by_token.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, grad: Pretended) -> tuple[torch.Tensor | None, ...]:
        ctx.operations.add_kernels("sdpa_backward")
        found = iter(torch.autograd.grad(ctx.output, ctx.wanted, grad.inner))
        needed = ctx.needs_input_grad
        return tuple(Pretended(next(found)) if needs_grad else None for needs_grad in needed)
