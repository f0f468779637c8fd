"""The plan of a batch: decisions that are made once, before the layers, and travel with the masks.

A plan is made from the arguments of the model. The mask functions of transformers, which the model
calls before its layers, hand it on with the masks. Layers read only the mask that they get, so a
layer that is computed again in the backward pass, in another thread, finds the same answers.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import nn
from transformers.utils.import_utils import is_tracing

from .batch import FlatTokens

Forward = TypeVar("Forward", bound=Callable[..., Any])

# Arguments or fields of a configuration that request outputs of all layers.
LAYER_OUTPUTS = ("output_hidden_states", "output_attentions", "output_router_logits")


def request_of_layers(given: dict[str, Any], *configs: Any) -> str:
    """The reason for padding if the arguments or a configuration request outputs of all layers,
    which are recorded in the shape in which the layers compute them; empty if not."""
    for name in LAYER_OUTPUTS:
        if given.get(name) or any(getattr(config, name, False) for config in configs):
            return f"{name} requests the outputs of all layers"
    return ""


# A condition and a matrix `(B, L)` on the CPU, True at the positions that are read under it. The
# condition is that attention is causal (True), that it is not (False), or neither (None).
ReadPositions = tuple[bool | None, torch.Tensor]


@dataclass(eq=False)
class Plan:
    """The decisions about one call of a model.

    Args:
        why_padded: Why the layers compute the padded batch, as in the stock model; empty if they
            compute the flat row.
        base: The base model of the model that is called. Its call, within the model's, uses the
            same plan if it gets the same arguments.
        has_cross_attention: Whether layers of the model attend to a source.
        is_real: `(B, L)` on the CPU, False at padding, for layers whose model makes the mask
            itself; None if all tokens are real, or if it is unclear which are.
        read: The positions whose states are read after the layers although they may be padding.
        ends: The same for a pooler or a head of whole rows.
        reads_target: Whether all states of the target may be read, even those of padding that only
            the model knows.
        flat_mask: The `FlatMask` for the layers of `is_real`, without the ordinary mask.
        head_tokens: The tokens that the head of a language model computes; None: all.
        skips_logits: Whether these are the labelled tokens alone.
        found: The tokens of the masks so far.
    """

    why_padded: str = ""
    base: nn.Module | None = None
    has_cross_attention: bool = False
    is_real: torch.Tensor | None = None
    read: list[ReadPositions] = field(default_factory=list)
    ends: list[ReadPositions] = field(default_factory=list)
    reads_target: bool = False
    flat_mask: Any = None
    head_tokens: FlatTokens | None = None
    skips_logits: bool = False
    found: list[FlatTokens] = field(default_factory=list)

    def __post_init__(self) -> None:
        if torch.jit.is_tracing():
            self.why_padded = "torch.jit records shapes that depend on a mask as constants"

    def include(self, outer: "Plan") -> None:
        """Add what is read by the model around this one."""
        self.read += outer.read
        self.reads_target |= outer.reads_target
        self.head_tokens = outer.head_tokens

    def tokens(
        self,
        is_real: torch.Tensor,
        is_causal: bool | None,
        documents: torch.Tensor | None = None,
    ) -> FlatTokens:
        """The tokens that the layers compute.

        Masks that define the same tokens, such as those of layers with and without a window, share
        them, so that the flat row passes from one kind of layer to the other.

        Args:
            is_real: `(B, L)`, False at padding.
            is_causal: Whether no token attends to later ones, as in the target of an
                encoder–decoder, and not in its source; None if it is unknown.
            documents: `(B, L)`, numbers of documents, which rise along each row. Default: a row is
                one document.
        """
        # Where all keys are hidden, some models attend evenly to all of them. Therefore a row is
        # computed whole if it has no real token, or if a state of its padding is read.
        is_whole = ~is_real.any(dim=1, keepdim=True)
        for causal, matrix in self.read + self.ends:
            is_meant = causal == is_causal or None in (causal, is_causal)
            if is_meant and matrix.shape == is_real.shape:
                is_whole = is_whole | (matrix & ~is_real).any(dim=1, keepdim=True)
        if self.reads_target and is_causal:
            is_whole = torch.ones_like(is_whole)
        is_kept = is_real | is_whole
        if is_tracing(is_real):
            # Masks of equal shape are the same if there is only one side.
            for found in self.found:
                if (
                    found.is_traced
                    and not self.has_cross_attention
                    and found.shape == tuple(is_kept.shape)
                ):
                    return found
            tokens = FlatTokens(is_kept)
        else:
            tokens = find_tokens(is_real, is_kept, documents)
            for found in self.found:
                if found.equals(tokens):
                    return found
        self.found.append(tokens)
        return tokens


def find_tokens(
    is_real: torch.Tensor, is_kept: torch.Tensor, documents: torch.Tensor | None
) -> FlatTokens:
    """The tokens `is_kept`, `(B, L)`, in documents that are sorted by length, longest first, so
    that attention can batch those of equal length."""
    rows, columns = is_kept.nonzero(as_tuple=True)  # (N,) each
    begins = torch.ones_like(rows, dtype=torch.bool)
    begins[1:] = rows.diff() != 0
    if documents is not None:
        begins[1:] |= documents.cpu()[rows, columns].diff() != 0
    first = begins.nonzero().squeeze(1)  # (documents,), the first token of each document
    end = torch.tensor([len(rows)], device=first.device)
    lengths = first.diff(append=end)
    places = lengths.argsort(descending=True, stable=True).argsort()
    numbers = torch.zeros_like(is_kept, dtype=torch.long)
    numbers[rows, columns] = places[begins.cumsum(0) - 1] + 1
    spans = columns[first + lengths - 1] - columns[first] + 1
    are_documents = torch.equal(spans, lengths) and torch.equal(is_real, is_kept)
    return FlatTokens(numbers, count=len(first), are_documents=are_documents)


class Current(threading.local):
    """The plan of the call that is running in this thread, and the padding mask from which it was
    made. The plan is read when masks are made. In models that make their masks themselves, the
    first layer reads it, and leaves it with the mask. (The plan does not hold the mask, whose
    memory may hold the plan.)

    (torch.compile can read such an attribute, but not a context variable.)
    """

    plan: Plan | None = None
    mask: Any = None


current = Current()


@contextmanager
def planned(plan: Plan, mask: Any = None) -> Iterator[None]:
    """Make `plan` the current one within this context.

    Args:
        mask: The padding mask from which it was made.
    """
    before = current.plan, current.mask
    current.plan = plan
    current.mask = mask
    try:
        yield
    finally:
        current.plan, current.mask = before


def plans_batch(forward: Forward) -> Forward:
    """Make `forward` run with a plan of its own, for a model that never reads states of padding."""

    @wraps(forward)
    def planned_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
        plan = Plan(
            why_padded=request_of_layers(kwargs),
            has_cross_attention=model.config.add_cross_attention,
        )
        with planned(plan):
            return forward(model, *args, **kwargs)

    return planned_forward  # type: ignore[return-value]


def on_cpu(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU, by one transfer from an accelerator. Their type becomes int64. In a
    traced graph, they stay where they are."""
    values = list(tensors.values())
    is_there = all(value.device.type == "cpu" for value in values)
    if is_there or is_tracing(values[0]):
        return tensors
    device = values[0].device
    packed = torch.cat([value.to(device).flatten().long() for value in values]).cpu()
    parts = packed.split([value.numel() for value in values])
    pairs = zip(tensors.items(), parts, strict=True)
    return {name: part.view_as(value) for (name, value), part in pairs}
