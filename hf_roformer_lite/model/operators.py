"""What a compiled graph cannot know of a batch, as operators of torch: which tokens are real, and attention over rows.

`torch.compile` makes one graph for batches of all lengths, in which the number of real tokens is a symbol. Finding the
tokens, and what attention does with documents of different lengths, depends on numbers that are known only when the
graph runs; both are operators here, which the graph calls and does not look into.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention_documents import VARLEN, VarlenPlan, plan_documents
from .attention_rows import AttentionFunction, RowsPlan
from .host_side import move_together, numbers, on_host
from .torch_internals import new_dynamic_size

# A bundle's copy of this file has its own, also in a folder whose name is not in ASCII, which torch does not take.
NAMESPACE = re.sub(r"[^\w.]", lambda found: f"u{ord(found[0]):x}", __name__, flags=re.ASCII).replace(".", "_")
KEPT_PLANS = 16  # all layers of a type share one, as does the backward pass


def is_in_graph(backend: str) -> bool:
    """Whether a graph is being made that may call these operators: by `torch.compile`, not for export to a runtime
    that lacks them, and with attention that they compute."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting() and backend in ("sdpa", VARLEN)


def real_tokens(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of a mask `(B, L)`: the places of its real tokens in the flattened batch and their positions, each `(N,)`, and
    how many there are in each row, `(B,)`."""
    index, lengths = np.flatnonzero(mask), mask.sum(1)
    return index, np.arange(len(index)) - np.repeat(lengths.cumsum() - lengths, lengths), lengths


def labelled_places(labels: torch.Tensor, ignored: int, device: torch.device) -> list[torch.Tensor]:
    """The places of the labels that count among all, and these labels, each `(n,)`, on `device`."""
    flat = numbers(*on_host(labels)).ravel()
    places = np.flatnonzero(flat != ignored)
    return move_together([torch.from_dlpack(places), torch.from_dlpack(flat[places].astype(np.int64))], device)


def _with_own_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy where it is a part of a buffer, which operators must not return."""
    size = tensor.numel() * tensor.element_size()
    return tensor if tensor.untyped_storage().nbytes() == size else tensor.clone()


@torch.library.custom_op(f"{NAMESPACE}::find_tokens", mutates_args=())
def find_tokens(attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`real_tokens` of a mask; the lengths stay on the host."""
    index, positions, lengths = map(torch.from_dlpack, real_tokens(numbers(*on_host(attention_mask))))
    return *map(_with_own_memory, move_together([index, positions], attention_mask.device)), lengths


@find_tokens.register_fake
def _(attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = new_dynamic_size()
    index, positions = (attention_mask.new_empty(tokens, dtype=torch.int64) for _ in range(2))
    rows = attention_mask.shape[0]  # `len` would make them a constant of the graph
    return index, positions, torch.empty(rows, dtype=torch.int64, device="cpu")


@torch.library.custom_op(f"{NAMESPACE}::find_labelled", mutates_args=())
def find_labelled(labels: torch.Tensor, ignored: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`labelled_places` on the device of the labels."""
    return tuple(map(_with_own_memory, labelled_places(labels, ignored, labels.device)))


@find_labelled.register_fake
def _(labels: torch.Tensor, ignored: int) -> tuple[torch.Tensor, torch.Tensor]:
    labelled = new_dynamic_size()
    return labels.new_empty(labelled, dtype=torch.int64), labels.new_empty(labelled, dtype=torch.int64)


@torch.library.custom_op(f"{NAMESPACE}::attend", mutates_args=())
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_lengths: torch.Tensor,
    key_lengths: torch.Tensor,
    backend: str,
    is_causal: bool,
    window: int | None,
    scaling: float,
) -> torch.Tensor:
    """Attention by `plan_documents`, `(N, heads, head_dim)` to `(N, heads * head_dim)`; the lengths `(documents,)` are
    on the host."""
    settings = backend, is_causal, window
    return _attend((query, key, value), query_lengths, key_lengths, settings, scaling)


@attend.register_fake
def _(query: torch.Tensor, *args: Any) -> torch.Tensor:
    return query.new_empty(query.shape[0], query.shape[1] * query.shape[2])


def _gradients(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_lengths: torch.Tensor,
    key_lengths: torch.Tensor,
    backend: str,
    is_causal: bool,
    window: int | None,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key and value. Attention is computed again, as nothing of it was kept."""
    states = [tensor.detach().requires_grad_() for tensor in (query, key, value)]
    with torch.enable_grad():
        output = _attend(states, query_lengths, key_lengths, (backend, is_causal, window), scaling)
    return tuple(part.contiguous() for part in torch.autograd.grad(output, states, grad))


def _shapes_of_gradients(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any
) -> tuple[torch.Tensor, ...]:
    return tuple(states.new_empty(states.shape) for states in (query, key, value))


# Not by `custom_op`, inside of which nothing has gradients.
_BACKWARD = f"{NAMESPACE}::attend_backward"
torch.library.define(_BACKWARD, torch.library.infer_schema(_gradients, mutates_args=()))
torch.library.impl(_BACKWARD, "default", _gradients)
torch.library.register_fake(_BACKWARD, _shapes_of_gradients)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[5:]


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    attend_backward = getattr(torch.ops, NAMESPACE).attend_backward
    return *attend_backward(grad, *ctx.saved_tensors, *ctx.settings), *[None] * 6


attend.register_autograd(_backward, setup_context=_keep_for_backward)


def _attend(
    states: Any, query_lengths: torch.Tensor, key_lengths: torch.Tensor, settings: tuple[Any, ...], scaling: float
) -> torch.Tensor:
    query, key, _ = states
    lengths = tuple(query_lengths.tolist()), tuple(key_lengths.tolist())
    plan = _plan(*lengths, len(query), len(key), *settings, query.device)
    module = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1])  # all that sdpa asks of it
    return plan.attend(ALL_ATTENTION_FUNCTIONS["sdpa"], module, *states, dropout=0.0, scaling=scaling)[0]


@lru_cache(KEPT_PLANS)
def _plan(
    query_lengths: tuple[int, ...],
    key_lengths: tuple[int, ...],
    query_tokens: int,
    key_tokens: int,
    backend: str,
    is_causal: bool,
    window: int | None,
    device: torch.device,
) -> RowsPlan | VarlenPlan:
    sizes = query_lengths, key_lengths, query_tokens, key_tokens
    with torch.inference_mode(False):  # the same plan may serve a training later
        return plan_documents(*sizes, backend, is_causal, window).to(device)


@dataclass
class OperatorPlan:
    """What `plan_documents` would return, in a graph that knows no lengths."""

    query_lengths: torch.Tensor  # (documents,), on the host
    key_lengths: torch.Tensor
    backend: str
    is_causal: bool = False
    window: int | None = None

    def attend(
        self,
        function: AttentionFunction,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """`(..., heads, head_dim)`, any leading shape, to `(..., heads * head_dim)`; `function` is sdpa."""
        states = (tensor.flatten(0, -3) for tensor in (query, key, value))
        lengths = self.query_lengths, self.key_lengths
        output = attend(*states, *lengths, self.backend, self.is_causal, self.window, scaling)
        return output.view(*query.shape[:-2], query.shape[-2] * query.shape[-1]), None


__all__ = ["OperatorPlan", "find_labelled", "find_tokens", "is_in_graph", "labelled_places", "real_tokens"]
