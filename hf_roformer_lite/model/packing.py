"""Which tokens of a batch are real, which position each has, and which tokens belong to one
document: masks `(B, L)`, positions, and packed documents."""

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.utils.import_utils import is_tracing


def is_padding_mask(attention_mask: Any) -> TypeGuard[torch.Tensor]:
    """Whether a mask is the ordinary `(B, L)`, and not one prepared for the attention function."""
    return isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2


def is_paged(cache: Any) -> bool:
    """Whether a cache belongs to continuous batching, where the server makes the masks."""
    return cache is not None and not isinstance(cache, Cache)


def without_full_mask(attention_mask: Any, cache: Any) -> Any:
    """The mask, or None instead of a mask `(B, L)` without padding, from which nothing more needs
    to be computed then. The values of a traced graph cannot be read."""
    is_known = is_padding_mask(attention_mask) and not is_tracing(attention_mask)
    is_full = is_known and cache is None and bool(attention_mask.all())
    return None if is_full else attention_mask


def check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Reject a tensor of another shape.

    Raises:
        ValueError: with the name and both shapes.
    """
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {tuple(shape)}.")


def cached_length(cache: Any) -> int:
    """The number of tokens in a cache; 0 in the cache of a server, which passes all positions."""
    return cache.get_seq_length() if isinstance(cache, Cache) else 0


def check_attention_mask(attention_mask: torch.Tensor, given: torch.Tensor, cache: Any) -> None:
    """Reject a mask that does not have one column for each of the tokens `given`, `(B, L, ...)`,
    and those in the cache, or whose numbers might be meant to be added to the scores.

    Raises:
        ValueError: with the shapes.
    """
    batch_size, length = given.shape[:2]
    fits = False
    if attention_mask.ndim == 2:
        fits = attention_mask.shape == (batch_size, cached_length(cache) + length)
        if attention_mask.is_floating_point():
            fits = fits and bool(((attention_mask == 0) | (attention_mask == 1)).all())
    if attention_mask.ndim == 4:
        fits = attention_mask.is_floating_point() or attention_mask.dtype == torch.bool
    if not fits:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; it must be (batch, length) = "
            f"{(batch_size, length)}, longer by the tokens in the cache, with 1 for tokens and 0 "
            "for padding; or have four dimensions, as floating point or boolean."
        )


def real_tokens(attention_mask: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """Whether each of the tokens `given`, `(B, L, ...)`, is real, `(B, L)`, by a mask
    `(B, past + L)`."""
    return attention_mask[:, -given.shape[1] :].to(given.device) != 0


def last_places(holds: torch.Tensor) -> torch.Tensor:
    """The last place at or before each place of a row where `holds` is true, `(B, L)`; -1 if there
    is none."""
    places = torch.arange(holds.shape[1], device=holds.device)
    return places.where(holds, -1).cummax(dim=1).values


def positions_of_real_tokens(attention_mask: torch.Tensor) -> torch.Tensor:
    """The number of real tokens before each token of a row, `(B, L)`."""
    return ((attention_mask != 0).long().cumsum(dim=1) - 1).clamp(min=0)


def count_positions(
    given: torch.Tensor,
    attention_mask: Any = None,
    cache: Any = None,
) -> torch.Tensor:
    """The positions of the tokens `given`, `(B, L)`, or `(1, L)` if all rows have the same."""
    length = given.shape[1]
    if is_padding_mask(attention_mask):
        return positions_of_real_tokens(attention_mask.to(given.device))[:, -length:]
    return (torch.arange(length, device=given.device) + cached_length(cache)).unsqueeze(0)


def find_packed_documents(
    given: torch.Tensor,
    attention_mask: Any = None,
    position_ids: torch.Tensor | None = None,
    cache: Any = None,
) -> torch.Tensor | None:
    """The number of the document of each token, `(B, L)`, from 1 in reading order, if any row holds
    several; None if each row is one document. The numbers at padding have no meaning.

    A traced graph cannot read values. There, rows may hold several documents whenever positions are
    passed.

    Args:
        given: The tokens, `(B, L, ...)`.
        attention_mask: `(B, past + L)`, nonzero where a token is real. Other masks are assumed to
            separate the documents already.
        position_ids: `(B, L)` or `(1, L)`. A real token whose position is not greater than the
            position of the previous real token begins a new document.
        cache: The cache of a decoder. With a cache, a graph is traced for one document per row, and
            a server, which has another kind of cache, separates the documents itself.
    """
    shape = given.shape[:2]
    has_prepared_mask = attention_mask is not None and not is_padding_mask(attention_mask)
    if has_prepared_mask or is_paged(cache):
        return None
    if position_ids is None or shape[1] == 1:
        return None
    if cache is not None and is_tracing(position_ids):
        return None
    position_ids = position_ids.to(given.device).expand(shape)
    if attention_mask is None:
        begins = F.pad(position_ids[:, 1:] <= position_ids[:, :-1], pad=(1, 0), value=False)
    else:
        begins = restarts_between_padding(position_ids, real_tokens(attention_mask, given))
    if not is_tracing(position_ids) and not bool(begins.any()):
        return None
    begins = begins | (torch.arange(shape[1], device=given.device) == 0)
    return begins.flatten().long().cumsum(dim=0).view(shape)


def restarts_between_padding(position_ids: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
    """Whether a token is real and its position is not greater than that of the real token before
    it, `(B, L)`. Padding may stand between the two."""
    last_real = F.pad(last_places(is_real)[:, :-1], pad=(1, 0), value=-1)  # before each token
    previous = position_ids.gather(1, last_real.clamp(min=0))
    return is_real & (last_real >= 0) & (position_ids <= previous)


def last_documents(given: torch.Tensor, documents: torch.Tensor | None) -> list[int]:
    """The number of the last document of each row of a batch `(B, L, ...)`. Unless the batch is
    packed, a row is a document."""
    if documents is None:
        return list(range(1, len(given) + 1))
    return documents[:, -1].tolist()


def number_tokens(
    given: torch.Tensor, attention_mask: Any, documents: torch.Tensor | None
) -> torch.Tensor:
    """The number of the document of each of the tokens `given`, `(B, L)`, from 1, and 0 at padding.

    Args:
        attention_mask: `(B, past + L)`, nonzero where a token is real. Other masks do not show
            where padding is.
        documents: `(B, L)`, as `find_packed_documents` numbers them. None: a row is a document.
    """
    if documents is None:
        rows = torch.arange(1, given.shape[0] + 1, device=given.device)
        documents = rows[:, None].expand(given.shape[:2])
    if is_padding_mask(attention_mask):
        documents = documents * real_tokens(attention_mask, given)
    return documents


def same_document(
    documents: torch.Tensor, key_documents: torch.Tensor
) -> Callable[..., torch.Tensor]:
    """A transformers mask function of cross-attention: a query attends only to keys of its own
    document."""

    def is_same_document(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        return documents[batch_idx, q_idx] == key_documents[batch_idx, kv_idx]

    return is_same_document
