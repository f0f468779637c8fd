"""Which tokens of a batch are real: they are gathered into one flat row, `(1, N)`, and put back at
the end.

A document is a run of tokens that see each other: the real tokens of a row of the batch, or one of
several documents that are packed into a row. In the flat row each document is one run, and
`cu_seq_lens` holds the borders between them, as the attention functions of transformers take them.
A masked token does not exist: positions count the real tokens of a document, wherever its padding
stands. (The idea is that of Zeng et al. 2022, arXiv:2208.08124, and ModernBERT.)
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.utils.import_utils import is_tracing


def is_padding_mask(attention_mask: Any) -> bool:
    """Whether a mask is the ordinary `(B, L)` one, and not one prepared for the attention
    function."""
    return isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2


def has_padding_after_tokens(attention_mask: Any) -> bool:
    """Whether padding follows a real token in a row of an ordinary mask. Of what is traced no value
    is read."""
    if not is_padding_mask(attention_mask) or is_tracing(attention_mask):
        return False
    is_real = attention_mask != 0
    return bool((is_real[:, :-1] & ~is_real[:, 1:]).any())


def positions_of_real_tokens(attention_mask: torch.Tensor) -> torch.Tensor:
    """The positions of a padded batch, `(B, L)`: how many real tokens come before each; 0 before
    the first."""
    return ((attention_mask != 0).long().cumsum(1) - 1).clamp(min=0)


@dataclass
class Documents:
    """The documents of a batch `(B, L)`, from which both forms of it are made: masks, or a flat
    row. Made by `find_documents`."""

    numbers: torch.Tensor  # (B, L) the document of each token, from 1; 0 at padding
    position_ids: torch.Tensor  # (B, L)
    # of the documents; a row of padding alone is one without tokens. Not known while a graph is
    # traced.
    count: int
    # whether a row holds several documents; whether it may, while a graph is traced
    is_packed: bool
    is_full: bool = False  # whether there is neither padding nor packing

    def flatten(self, order: torch.Tensor | str = "batch") -> "FlatTokens":
        """The real tokens as a flat row, its documents in `order`: "batch", as they are; "length",
        the longest first, so that those of equal length are neighbours; or their numbers from 0,
        `(documents,)`."""
        shape, device = tuple(self.numbers.shape), self.numbers.device
        as_they_are = torch.arange(self.count, device=device)
        if self.is_full and isinstance(order, str):
            return FlatTokens(
                shape, [shape[1]] * shape[0], as_they_are, None, self.position_ids.reshape(1, -1)
            )
        numbers = self.numbers.flatten()
        index = numbers.nonzero().squeeze(1)  # (N,)
        owners = numbers[index] - 1  # (N,) the document of each token, from 0
        lengths = torch.bincount(owners, minlength=self.count)
        if isinstance(order, str):
            order = (
                lengths.argsort(descending=True, stable=True) if order == "length" else as_they_are
            )
        # of the documents in the flat row
        places = torch.empty_like(order).scatter_(0, order, as_they_are)
        index = index[places[owners].argsort(stable=True)]
        return FlatTokens(
            shape,
            lengths[order].tolist(),
            order,
            index,
            self.position_ids.flatten()[index].unsqueeze(0),
        )


@dataclass
class FlatTokens:
    """The real tokens of a batch `(B, L)` as one row of N."""

    shape: tuple[int, int]  # B, L
    lengths: list[int]  # tokens of each document, in the order of the flat row
    order: torch.Tensor  # (documents,) their numbers in the batch, in the order of the flat row
    # (N,) places of the tokens among the B * L; None: all of them, as they are
    index: torch.Tensor | None
    position_ids: torch.Tensor  # (1, N)

    def flatten(self, states: torch.Tensor | None) -> torch.Tensor | None:
        """`(B, L, ...)` to `(1, N, ...)`."""
        if states is None:
            return None
        states = states.flatten(0, 1)
        return (
            states if self.index is None else states.index_select(0, self.index.to(states.device))
        ).unsqueeze(0)

    def restore(self, states: torch.Tensor) -> torch.Tensor:
        """`(1, N, ...)` to `(B, L, ...)`, with zeros at padding."""
        if self.index is None:
            return states.view(*self.shape, *states.shape[2:])
        padded = states.new_zeros(self.shape[0] * self.shape[1], *states.shape[2:])
        return padded.index_copy_(0, self.index.to(states.device), states[0]).view(
            *self.shape, *states.shape[2:]
        )

    def documents(self) -> torch.Tensor:
        """The number in the batch, from 0, of the document that each token belongs to, `(1, N)`."""
        lengths = torch.tensor(self.lengths, device=self.order.device, dtype=torch.long)
        return self.order.repeat_interleave(lengths).unsqueeze(0)

    def attention_kwargs(
        self, keys: "FlatTokens", device: torch.device, implementation: str
    ) -> dict[str, Any]:
        """The borders of the documents, `(documents + 1,)` int32, as attention functions take them;
        `keys` are those of cross-attention or `self`."""
        # Python reads them there
        device = torch.device("cpu") if implementation == "sdpa" else device
        borders = (
            torch.tensor([0, *accumulate(side.lengths)], dtype=torch.int32) for side in (self, keys)
        )
        longest = (max(side.lengths, default=0) for side in (self, keys))
        names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
        return dict(zip(names, (*(side.to(device) for side in borders), *longest), strict=True))


@dataclass
class FlatCache:
    """Stands for an empty cache while its first tokens are a flat row: the cache gets their keys
    and values as `(B, heads, L, head_dim)`, and attention those of the row."""

    cache: Cache
    tokens: FlatTokens

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take `(1, heads, N, head_dim)`, and return it."""
        padded = (
            self.tokens.restore(states.transpose(1, 2)).transpose(1, 2) for states in (key, value)
        )
        self.cache.update(*padded, layer_idx)
        return key, value


def find_documents(
    shape: tuple[int, int],
    device: torch.device,
    attention_mask: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    cu_seq_lens: torch.Tensor | None = None,
) -> Documents:
    """Find the documents of a batch of `shape` (B, L). Of what is traced no value is read.

    Args:
        attention_mask: `(B, L)`, nonzero where a token is real, in any pattern. Default: all are
            real.
        position_ids: `(B, L)` or `(1, L)`. A real token whose position is not above that of the
            real token before it begins a new document; beside a mask only a 0, as `generate` counts
            on from the 0 that it gives to padding.
        cu_seq_lens: `(documents + 1,)` borders in the flattened batch, the other form of packing
            (`DataCollatorWithFlattening`); `ValueError` beside a mask, and where they don't end
            with the last token.
    """
    batch, length = shape
    if position_ids is not None:
        position_ids = position_ids.to(device).expand(shape)
    if cu_seq_lens is not None:
        if attention_mask is not None:
            raise ValueError(
                "attention_mask can't be combined with cu_seq_lens_q: packed input has no padding."
            )
        return _documents_between(cu_seq_lens.to(device, torch.long), shape, position_ids)
    is_traced = is_tracing(attention_mask if position_ids is None else position_ids)
    rows = torch.arange(1, batch + 1, device=device)[:, None].expand(shape)
    has_padding = attention_mask is not None and (is_traced or not bool(attention_mask.all()))
    if not has_padding and position_ids is None:
        return Documents(
            rows, torch.arange(length, device=device).expand(shape), batch, False, is_full=True
        )
    is_real = (
        torch.ones(shape, device=device) if attention_mask is None else attention_mask.to(device)
    ) != 0
    real_so_far = is_real.cumsum(1)
    if position_ids is None:
        return Documents(rows * is_real, (real_so_far - 1).clamp(min=0), batch, False)
    if attention_mask is None:
        restarts = F.pad(position_ids.diff(dim=1) <= 0, (1, 0))
    else:
        restarts = is_real & (real_so_far > 1) & (position_ids == 0)
    position_ids = position_ids * is_real
    if not is_traced and not bool(restarts.any()):
        return Documents(rows * is_real, position_ids, batch, False, is_full=attention_mask is None)
    starts = restarts | is_real & (real_so_far == 1)
    starts[:, :1] |= ~is_real.any(1, keepdim=True)
    numbers = starts.flatten().cumsum(0).view(shape) * is_real
    return Documents(numbers, position_ids, 0 if is_traced else int(starts.sum()), True)


def _documents_between(
    borders: torch.Tensor, shape: tuple[int, int], position_ids: torch.Tensor | None
) -> Documents:
    """The documents between `borders`, `(documents + 1,)`, in the flattened batch."""
    places = torch.arange(shape[0] * shape[1], device=borders.device).view(shape)
    if not is_tracing(borders):
        if borders[0] != 0 or borders[-1] != places.numel() or bool((borders.diff() < 1).any()):
            raise ValueError(
                f"cu_seq_lens_q={borders.tolist()} must rise from 0 to the number of tokens, {places.numel()}."
            )
    numbers = torch.bucketize(places, borders[1:], right=True) + 1
    positions = places - borders[numbers - 1] if position_ids is None else position_ids
    return Documents(numbers, positions, len(borders) - 1, True)


def pool(
    states: torch.Tensor, how: str, tokens: FlatTokens | None, attention_mask: Any
) -> torch.Tensor:
    """One vector a document, `(documents, width)`, of restored states `(B, L, width)`.

    Args:
        states: `(B, L, width)`.
        how: `mean`, `cls` (the first real token) or `last` (the last one). A document without
            tokens gives zeros.
        tokens: The documents, in the order of the batch, where a row holds several; None: a row is
            a document.
        attention_mask: `(B, L)`, read where `tokens` is None; a mask prepared for the attention
            function says nothing of padding.
    """
    if tokens is not None:
        lengths = torch.tensor(tokens.lengths, device=states.device, dtype=torch.long)
        flat, ends = tokens.flatten(states)[0], lengths.cumsum(0)  # (N, width), (documents,)
        if how == "mean":
            exact = flat.to(torch.promote_types(flat.dtype, torch.float32))
            sums = exact.new_zeros(len(lengths), exact.shape[-1]).index_add(
                0, tokens.documents()[0], exact
            )
            return (sums / lengths[:, None].clamp(min=1)).to(flat.dtype)
        places = (ends - lengths if how == "cls" else ends - 1).clamp(0, len(flat) - 1)
        return flat[places] * (lengths > 0)[:, None]
    if not is_tracing(states) and not states.shape[1]:
        return states.sum(1)
    if not is_padding_mask(attention_mask):
        return states.mean(1) if how == "mean" else states[:, 0 if how == "cls" else -1]
    exact = torch.promote_types(states.dtype, torch.float32)  # half precision can't hold long sums
    real = (attention_mask[:, -states.shape[1] :].to(states.device) != 0).to(exact)  # (B, L)
    if how == "mean":
        return ((states * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)).to(
            states.dtype
        )
    place = real.argmax(1) if how == "cls" else states.shape[1] - 1 - real.flip(1).argmax(1)
    return states[torch.arange(states.shape[0], device=states.device), place]


def packed_documents(
    given: torch.Tensor,
    attention_mask: Any,
    position_ids: torch.Tensor | None,
    cu_seq_lens: torch.Tensor | None,
) -> FlatTokens | None:
    """The documents of the input `given`, `(B, L, ...)`, in the order of the batch; None if each
    row is one, as it is taken to be beside a mask prepared for the attention function, and while a
    graph is traced, which can't have one row of output a document."""
    if cu_seq_lens is not None and is_tracing(given):
        raise ValueError(
            "cu_seq_lens_q: compiled as a whole, a model can't pool packed documents; give them as rows."
        )
    says_more = attention_mask is not None and not is_padding_mask(attention_mask)
    if (position_ids is None and cu_seq_lens is None) or says_more or is_tracing(given):
        return None
    documents = find_documents(
        tuple(given.shape[:2]), given.device, attention_mask, position_ids, cu_seq_lens
    )
    return documents.flatten() if documents.is_packed else None


__all__ = [
    "Documents",
    "FlatCache",
    "FlatTokens",
    "positions_of_real_tokens",
    "find_documents",
    "is_padding_mask",
    "packed_documents",
    "pool",
]
