"""The attention implementation "padding_free": its masks, and attention document by document.

transformers' mask functions (`create_causal_mask` and its siblings) ask the attention
implementation of a model for the mask. Under "padding_free" they get a `DocumentMask`, which still
knows the mask function and the padding mask. A layer that computes the batch as it is takes the
ordinary mask from it. A layer that computes a flat row of real tokens (`layers.py`) takes a
`FlatMask`: the documents of the row, which attention computes one after the other, on any device.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)
from transformers.modeling_utils import AttentionInterface
from transformers.utils.import_utils import is_tracing

from .batch import RealTokens, shared

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch has it from 2.10 on, and not in every build
    varlen_attn = None

NAME = "padding_free"
# On a CPU the gradient of sdpa in half precision takes several times as long as in float32, unless
# documents are at least this long.
MIN_HALF_PRECISION_KEYS = 512

MaskFunction = Callable[..., torch.Tensor]

_computes_padding: ContextVar[bool] = ContextVar("computes_padding", default=False)


@contextmanager
def computing_padding() -> Iterator[None]:
    """Within this context models under "padding_free" compute padding, as under "sdpa"."""
    token = _computes_padding.set(True)
    try:
        yield
    finally:
        _computes_padding.reset(token)


class FlatMask:
    """Which tokens of a flat row see each other: a query sees keys of its own document only.

    Args:
        queries, keys: The documents of both sides; the same object but in cross-attention.
        is_causal: Whether a query sees no key after it.
        window: How many tokens a query reaches to each side, itself included. Default: all.
        is_left_out: Whether sdpa does without the ordinary mask, so that the layer says whether it
            is causal.
    """

    def __init__(
        self,
        queries: RealTokens,
        keys: RealTokens,
        is_causal: bool = False,
        window: int | None = None,
        is_left_out: bool = False,
    ):
        self.queries = queries
        self.keys = keys
        self.is_causal = is_causal
        self.window = window
        self.is_left_out = is_left_out

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """Neighbours of equal length, as (number of documents, their queries, their keys)."""
        lengths = zip(self.queries.lengths, self.keys.lengths, strict=True)
        return [(len(list(run)), *pair) for pair, run in groupby(lengths)]

    def cu_seq_lens(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Where documents begin and end, `(documents + 1,)`, for queries and keys."""
        queries = torch.tensor([0, *accumulate(self.queries.lengths)], dtype=torch.int32)
        keys = torch.tensor([0, *accumulate(self.keys.lengths)], dtype=torch.int32)
        return queries.to(device), keys.to(device)


class DocumentMask:
    """What a mask is made from: a mask function of transformers and a padding mask.

    Args:
        batch_size, q_length, kv_length: The shape of the mask, `(B, 1, Lq, Lk)`.
        mask_function: Whether a query sees a key: a function of the numbers of row, head, query
            and key.
        attention_mask: `(B, Lk)`, True where a key is a real token. None: all are.
        config: The configuration of the model that asks for a mask.
        options: What else `sdpa_mask` takes.
    """

    def __init__(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        mask_function: MaskFunction,
        attention_mask: torch.Tensor | None,
        config: Any,
        device: torch.device,
        **options: Any,
    ):
        self.shape = (batch_size, q_length)
        self.key_shape = (batch_size, kv_length)
        self.mask_function = mask_function
        self.attention_mask = attention_mask
        self.config = config
        self.device = device
        self.options = options
        self._cross: FlatMask | None = None

    @cached_property
    def dense(self) -> torch.Tensor | None:
        """The ordinary mask, `(B, 1, Lq, Lk)` of booleans; None where sdpa needs none."""
        return sdpa_mask(
            batch_size=self.shape[0],
            q_length=self.shape[1],
            kv_length=self.key_shape[1],
            mask_function=self.mask_function,
            attention_mask=self.attention_mask,
            config=self.config,
            device=self.device,
            **self.options,
        )

    def contiguous(self) -> torch.Tensor | None:
        """The ordinary mask: until transformers 5.23 `generate` calls this on masks it makes."""
        return self.dense

    @cached_property
    def is_real(self) -> torch.Tensor | None:
        """`(B, Lk)`, True where a key is a real token. None if all are."""
        if self.attention_mask is None or bool(self.attention_mask.all()):
            return None
        return self.attention_mask

    @cached_property
    def tokens(self) -> RealTokens:
        """The real tokens of self-attention, in documents."""
        if self.is_real is None and self._begins is None:
            return shared(RealTokens.of_full_rows(shape=self.shape, device=self.device))
        numbers, count = self._documents
        return shared(RealTokens.of_documents(numbers=numbers, count=count))

    @cached_property
    def flat(self) -> FlatMask | None:
        """The mask of the flat row in self-attention.

        None where the mask is neither causal nor bidirectional, with or without a window, in every
        document: then only the ordinary mask is right.
        """
        if self._is_plain:
            is_causal = self.mask_function is causal_mask_function
            if self.mask_function not in (bidirectional_mask_function, causal_mask_function):
                is_causal = self.options.get("allow_is_causal_skip", False)
            return FlatMask(
                queries=self.tokens,
                keys=self.tokens,
                is_causal=is_causal,
                is_left_out=self.is_real is None and self._is_unchanged,
            )
        if self.has_holes:
            return None  # Windows count the places of holes too.
        return self._flat_by_probing()

    def flat_from(self, queries: "DocumentMask") -> FlatMask | None:
        """The mask of cross-attention: the documents of `queries` see those of these keys.

        None where it can't be told which document a key belongs to.
        """
        if self._cross is None or self._cross.queries is not queries.tokens:
            keys = self._keys_of(queries)
            if keys is None:
                return None
            self._cross = FlatMask(queries=queries.tokens, keys=keys)
        return self._cross

    @property
    def _is_plain(self) -> bool:
        """Whether nothing but padding and causality keeps a query from a key.

        A window or chunk (`local_size`) that is longer than the rows keeps it from none. Whoever
        adds something to a mask function says so by forbidding sdpa to do without the mask.
        """
        if self.mask_function in (bidirectional_mask_function, causal_mask_function):
            return True
        local_size = self.options.get("local_size")
        return self._is_unchanged and local_size is not None and local_size >= self.shape[1]

    @property
    def _is_unchanged(self) -> bool:
        """Whether sdpa may do without the mask where nothing is padded."""
        names = ("allow_is_causal_skip", "allow_is_bidirectional_skip")
        return any(self.options.get(name, False) for name in names)

    @cached_property
    def _begins(self) -> torch.Tensor | None:
        """`(B, L)`, True where a token does not see the one before it. None if each row is one
        document.

        So packed documents are read off the mask, however the model was told about them.
        """
        if self._is_plain:
            return None
        sees_previous = self._sees(distance=1)[:, 1:]
        if bool(sees_previous.all()):
            return None
        return F.pad(~sees_previous, pad=(1, 0), value=True)

    @cached_property
    def _documents(self) -> tuple[torch.Tensor, int]:
        """The number of the document of each token, `(B, L)`, from 1 and 0 at padding; and how
        many documents there are."""
        batch_size, length = self.shape
        if self._begins is None:
            numbers = torch.arange(1, batch_size + 1, device=self.device)
            numbers = numbers[:, None].expand(batch_size, length)
            count = batch_size
        else:
            numbers = self._begins.flatten().cumsum(0).view(batch_size, length)
            count = int(numbers[-1, -1])
        if self.is_real is not None:
            numbers = numbers * self.is_real
        return numbers, count

    @cached_property
    def has_holes(self) -> bool:
        """Whether padding stands between real tokens of a document."""
        if self.is_real is None:
            return False
        numbers, count = self._documents
        before = F.pad(numbers[:, :-1], pad=(1, 0))
        runs = numbers[(numbers != 0) & (numbers != before)]
        return len(runs) > len(runs.unique())

    def _sees(self, distance: int | torch.Tensor) -> torch.Tensor:
        """`(B, L)`, whether each query sees the key that lies `distance` places before it.

        Keys outside the row are taken to be its first or last one.
        """
        batch_size, length = self.shape
        places = torch.arange(length, device=self.device)[None]
        keys = (places - distance).clamp(min=0, max=length - 1)
        return self._mask_of(queries=places, keys=keys).expand(batch_size, length)

    def _mask_of(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(self.shape[0], device=self.device).view(-1, *[1] * (queries.ndim - 1))
        head = torch.zeros((), dtype=torch.long, device=self.device)
        return self.mask_function(rows, head, queries, keys)

    def _flat_by_probing(self) -> FlatMask | None:
        """Ask the mask function for keys at a few distances from each query: its neighbours, both
        ends of its window, and both ends of its document."""
        batch_size, length = self.shape
        numbers, _ = self._documents
        places = torch.arange(length, device=self.device).expand(batch_size, length)
        is_first = numbers != F.pad(numbers[:, :-1], pad=(1, 0), value=-1)
        first = places.masked_fill(~is_first, 0).cummax(dim=1).values
        is_last = numbers != F.pad(numbers[:, 1:], pad=(0, 1), value=-1)
        last = places.masked_fill(~is_last, length - 1).flip(1).cummin(dim=1).values.flip(1)

        has_next = (numbers != 0) & (places < last)
        sees_next = self._sees(distance=-1)[has_next]
        is_causal = not bool(sees_next.any())
        if not is_causal and not bool(sees_next.all()):
            return None
        window = self._window(numbers=numbers, first=first, last=last)

        def holds(distance: int | torch.Tensor, is_seen: bool) -> bool:
            keys = places - distance
            is_asked = (numbers != 0) & (first <= keys) & (keys <= last)
            return bool((self._sees(distance)[is_asked] == is_seen).all())

        if window is None:
            to_both_ends = holds(places - first, is_seen=True)
            is_exact = to_both_ends and (is_causal or holds(places - last, is_seen=True))
        else:
            is_exact = holds(window - 1, is_seen=True) and holds(window, is_seen=False)
            if not is_causal:
                is_exact &= holds(1 - window, is_seen=True) and holds(-window, is_seen=False)
        # Nor may the last query of a document see one of the keys before it.
        for before in (first - 1, first - 2, torch.zeros_like(first)):
            is_asked = (numbers != 0) & (first > 0) & (before >= 0) & (places == last)
            if bool(self._sees(places - before)[is_asked].any()):
                return None
        if not is_exact:
            return None
        return FlatMask(queries=self.tokens, keys=self.tokens, is_causal=is_causal, window=window)

    def _window(self, numbers: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> int | None:
        """How many keys the last query of the longest document sees; None if it sees all."""
        if not bool((numbers != 0).any()):
            return None
        lengths = (last - first + 1) * (numbers != 0)
        row, place = divmod(int(lengths.flatten().argmax()), self.shape[1])
        start = int(first[row, place])
        end = int(last[row, place])
        keys = torch.arange(start, end + 1, device=self.device)
        head = torch.zeros((), dtype=torch.long, device=self.device)
        seen = self.mask_function(
            torch.full_like(keys, row), head, torch.full_like(keys, end), keys
        )
        window = int(seen.expand(len(keys)).sum())
        return None if window == len(keys) else window

    def _keys_of(self, queries: "DocumentMask") -> RealTokens | None:
        """The real keys, in the order of the documents of `queries`."""
        batch_size, length = self.key_shape
        if batch_size != queries.shape[0]:
            return None
        _, count = queries._documents
        if self.mask_function is bidirectional_mask_function:
            if queries._begins is not None:
                return None
            if queries.tokens.index is None and self.is_real is None:
                order = queries.tokens.order
                return RealTokens(shape=self.key_shape, lengths=[length] * batch_size, order=order)
            numbers = torch.arange(1, batch_size + 1, device=self.device)
            numbers = numbers[:, None].expand(batch_size, length)
        else:
            # A key of packed rows belongs to the document of the first query that sees it.
            places = torch.arange(self.shape[1], device=self.device)[None, :, None]
            keys = torch.arange(length, device=self.device)[None, None]
            is_seen = self._mask_of(queries=places, keys=keys).expand(
                batch_size, self.shape[1], length
            )
            first = is_seen.int().argmax(dim=1)  # (B, Lk)
            numbers = queries._documents[0].gather(dim=1, index=first)
        if self.is_real is not None:
            numbers = numbers * self.is_real
        return RealTokens.of_documents(numbers=numbers, count=count, order=queries.tokens.order)


def padding_free_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> DocumentMask | torch.Tensor | None:
    """A mask function of transformers, with the arguments of its `sdpa_mask`.

    There are documents only where a batch begins. Steps of generation after the prompt, caches of
    a fixed size, and traced graphs, of which no value can be read, get the mask of sdpa.
    """
    is_step = isinstance(q_offset, torch.Tensor) or q_offset > 0 or kv_offset > 0 or q_length <= 1
    # A causal mask may be left out by sdpa, a mask of cross-attention not.
    is_fixed_size = kv_length != q_length and kwargs.get("allow_is_causal_skip", True)
    fits = attention_mask is None or attention_mask.shape == (batch_size, kv_length)
    is_traced = is_tracing(attention_mask)
    if is_step or is_fixed_size or not fits or is_traced or _computes_padding.get():
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            attention_mask=attention_mask,
            device=device,
            **kwargs,
        )
    return DocumentMask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        device=torch.device(device),
        **kwargs,
    )


def padding_free_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | DocumentMask | FlatMask | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An attention function of transformers, `(B, heads, L, head_dim)` to `(B, L, heads,
    head_dim)`. In a flat row B is 1, and L is the number of all real tokens."""
    if isinstance(attention_mask, FlatMask):
        return attend_by_document(module, query, key, value, attention_mask, **kwargs), None
    if isinstance(attention_mask, DocumentMask):
        attention_mask = attention_mask.dense
    if query.numel() == 0 or key.numel() == 0:
        return nothing_seen(query, key, value), None
    attend = attention_of(kwargs)
    return attend(module, query, key, value, attention_mask, **kwargs)


def attention_of(kwargs: dict[str, Any]) -> Callable[..., tuple[torch.Tensor, Any]]:
    """The function that computes attention: sdpa, or for what it lacks (probabilities, capped
    scores, sinks) the function that is written out in the model's own file."""
    needs_eager = (
        kwargs.get("output_attentions")
        or kwargs.get("softcap") is not None
        or kwargs.get("s_aux") is not None
    )
    return attend_eagerly if needs_eager else sdpa_attention_forward


def attend_eagerly(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `eager_attention_forward` of the model's own file, with a mask as it takes it."""
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        attention_mask = attention_mask[None, None]
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        zeros = query.new_zeros(attention_mask.shape)
        attention_mask = zeros.masked_fill(~attention_mask, lowest)
    eager_attention_forward = sys.modules[type(module).__module__].eager_attention_forward
    return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)


@torch.compiler.disable  # The shapes depend on the data: each would be a graph of its own.
def attend_by_document(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: FlatMask,
    position_bias: torch.Tensor | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row, `(1, heads, N, head_dim)` to `(1, N, heads, head_dim)`.

    All documents of one length are one call. Its arguments are views: nothing is gathered or
    padded, and the gradient of `split` is one concatenation.

    Args:
        position_bias: T5's, `(1, heads, longest, longest)`, the same for every document.
        is_causal: What the layer says; only read where the mask leaves that to it.
    """
    dtype = query.dtype
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not mask.is_left_out:
        is_causal = mask.is_causal
    if mask.queries is not mask.keys:
        position_bias = None  # T5's cross-attention has none, and hands over zeros.
    if takes_flat_rows(query, value, position_bias, **kwargs):
        return attend_at_once(query, key, value, mask, is_causal, **kwargs)
    learns_in_float32 = is_slow_in_half_precision(query, mask)
    if learns_in_float32:
        query = query.float()
        key = key.float()
        value = value.float()
    queries = query.split([count * length for count, length, _ in mask.runs], dim=2)
    keys = key.split([count * length for count, _, length in mask.runs], dim=2)
    values = value.split([count * length for count, _, length in mask.runs], dim=2)
    outputs = []
    with torch.autocast("cpu", enabled=False) if learns_in_float32 else nullcontext():
        for (count, q_length, k_length), *states in zip(
            mask.runs, queries, keys, values, strict=True
        ):
            if count > 1:  # (1, heads, count * length, head_dim)
                states = [split_documents(piece, count) for piece in states]
            if position_bias is not None:
                kwargs["position_bias"] = position_bias[:, :, :q_length, :k_length]
            output = attend(module, *states, is_causal=is_causal, window=mask.window, **kwargs)
            outputs.append(output.flatten(0, 1))
    output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]  # (N, heads, head_dim)
    return output.unsqueeze(0).to(dtype)


def split_documents(states: torch.Tensor, count: int) -> torch.Tensor:
    """`(1, heads, count * length, head_dim)` to `(count, heads, length, head_dim)`."""
    length = states.shape[2] // count
    return states.squeeze(0).unflatten(1, (count, length)).transpose(0, 1)


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window: int | None,
    **kwargs: Any,
) -> torch.Tensor:
    """Documents of one length, `(n, heads, length, head_dim)` to `(n, length, heads, head_dim)`."""
    length = query.shape[2]
    if length == 0 or key.shape[2] == 0:
        return nothing_seen(query, key, value)
    if window is not None and length > window:
        if length > 3 * window and kwargs.get("position_bias") is None:
            return attend_in_blocks(module, query, key, value, is_causal, window, **kwargs)
        places = torch.arange(length, device=query.device)
        mask = is_in_window(places[:, None], places, window, is_causal)[None, None]
        is_causal = False  # The mask says so already.
    else:
        mask = None
    attention = attention_of(kwargs)
    return attention(module, query, key, value, mask, is_causal=is_causal, **kwargs)[0]


def nothing_seen(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The output of queries without keys. It depends on all three, so that each gets a gradient."""
    return (query * 0 + (key.sum() + value.sum()) * 0).transpose(1, 2)


def attend_in_blocks(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window: int,
    **kwargs: Any,
) -> torch.Tensor:
    """As `attend`, at a cost that is linear in the length.

    Each block of `window` queries gets the band of keys that it can see. The bands overlap, and
    `unfold` has one gradient for all of them.
    """
    length = query.shape[2]
    num_blocks = -(-length // window)
    spare = num_blocks * window - length
    after = 0 if is_causal else window
    band = 2 * window + after
    query = F.pad(query, (0, 0, 0, spare))
    query = query.unflatten(2, (num_blocks, window)).transpose(1, 2).flatten(0, 1)

    def in_bands(states: torch.Tensor) -> torch.Tensor:
        states = F.pad(states, (0, 0, window, spare + after))
        states = states.unfold(2, band, window)  # (n, heads, blocks, head_dim, band)
        return states.permute(0, 2, 1, 4, 3).flatten(0, 1)  # (n * blocks, heads, band, head_dim)

    starts = torch.arange(num_blocks, device=query.device)[:, None, None] * window
    queries = starts + torch.arange(window, device=query.device)[:, None]  # (blocks, window, 1)
    keys = starts - window + torch.arange(band, device=query.device)  # (blocks, 1, band)
    mask = is_in_window(queries, keys, window, is_causal) & (keys >= 0) & (keys < length)
    mask |= queries >= length  # These are cut off below, but must see something.
    mask = mask.unsqueeze(1).repeat(len(query) // num_blocks, 1, 1, 1)
    attention = attention_of(kwargs)
    output, _ = attention(
        module, query, in_bands(key), in_bands(value), mask, is_causal=False, **kwargs
    )
    return output.unflatten(0, (-1, num_blocks)).flatten(1, 2)[:, :length]


def is_in_window(
    queries: torch.Tensor, keys: torch.Tensor, window: int, is_causal: bool
) -> torch.Tensor:
    """Whether keys are less than `window` places away and, if causal, not after the query."""
    distance = queries - keys
    is_near = distance < window
    return is_near & (distance >= 0 if is_causal else distance > -window)


def takes_flat_rows(
    query: torch.Tensor,
    value: torch.Tensor,
    position_bias: torch.Tensor | None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> bool:
    """Whether torch's variable-length attention can compute the flat row in one call: on a GPU
    from Ampere on, in half precision, without dropout and whatever sdpa lacks."""
    if varlen_attn is None or not query.is_cuda or dropout or position_bias is not None:
        return False
    if attention_of(kwargs) is attend_eagerly:
        return False
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.shape[-1] == value.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    return is_half and fits and torch.cuda.get_device_capability(query.device) >= (8, 0)


def attend_at_once(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: FlatMask,
    is_causal: bool,
    scaling: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """A flat row by torch's variable-length attention."""
    cu_seq_lens_q, cu_seq_lens_k = mask.cu_seq_lens(query.device)
    reach = -1 if mask.window is None else mask.window - 1  # -1 reaches all of the document.
    output = varlen_attn(
        query[0].transpose(0, 1),  # (N, heads, head_dim)
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        cu_seq_lens_q,
        cu_seq_lens_k,
        mask.queries.longest,
        mask.keys.longest,
        scale=scaling,
        window_size=(reach, 0 if is_causal else reach),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


def is_slow_in_half_precision(query: torch.Tensor, mask: FlatMask) -> bool:
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    needs_gradient = query.requires_grad and torch.is_grad_enabled()
    is_short = mask.keys.longest < MIN_HALF_PRECISION_KEYS
    return query.device.type == "cpu" and is_half and needs_gradient and is_short


AttentionInterface.register(NAME, padding_free_attention)
AttentionMaskInterface.register(NAME, padding_free_mask)
