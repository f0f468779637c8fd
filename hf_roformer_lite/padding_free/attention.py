"""The attention implementation "padding_free": its masks, and attention document by document.

The mask functions of transformers (`create_causal_mask` and its siblings) request each mask from
the attention implementation of the model. Under "padding_free" they get a `DocumentMask`, which
keeps the mask function and the padding mask. A layer that computes the padded batch takes the
ordinary mask from it. A layer that computes a flat row of real tokens (`layers.py`) takes a
`FlatMask`, which holds the documents of the row. Attention is computed for each document
separately, on any device.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
)
from transformers.modeling_utils import AttentionInterface
from transformers.utils.import_utils import is_tracing

from .batch import RealTokens, shared, state

varlen_attn: Callable[..., Any] | None
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # Some builds of torch lack it.
    varlen_attn = None

NAME = "padding_free"
# For models whose attention modules compute attention scores themselves (`attention_modules.py`).
# They get the masks of "eager".
OWN_NAME = "padding_free_eager"
APPLE = "mps"  # torch's name for an Apple GPU.
# On a CPU, the gradient of sdpa in half precision takes several times as long as in float32, unless
# documents are at least this long.
MIN_HALF_PRECISION_KEYS = 512
# The length of a block of queries, in windows. Blocks should not be small, because the gradient of
# each one is as long as the whole document.
WINDOWS_OF_A_BLOCK = 4

HALF_PRECISION = (torch.float16, torch.bfloat16)
# The share of real tokens up to which a flat row is faster than the padded batch.
MAX_REAL = 0.9

# Masks


class FlatMask:
    """The attention mask of a flat row: a query attends only to keys of its own document.

    Args:
        queries, keys: The documents of both sides; the same object except in cross-attention.
        is_causal: Whether a query does not attend to later keys.
        window: The number of tokens that a query reaches on each side, including itself. Default:
            the whole document.
    """

    def __init__(
        self,
        queries: RealTokens,
        keys: RealTokens,
        is_causal: bool = False,
        window: int | None = None,
    ):
        self.queries = queries
        self.keys = keys
        self.is_causal = is_causal
        self.window = window
        self._cu_seq_lens: dict[torch.device, list[torch.Tensor]] = {}

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """Runs of neighbouring documents of equal length, each as (number of documents, queries per
        document, keys per document)."""
        lengths = zip(self.queries.lengths, self.keys.lengths, strict=True)
        return [(len(list(run)), *pair) for pair, run in groupby(lengths)]

    def cu_seq_lens(self, device: torch.device) -> list[torch.Tensor]:
        """The document boundaries of queries and of keys, `(documents + 1,)` each."""
        if device not in self._cu_seq_lens:
            self._cu_seq_lens[device] = [
                torch.tensor([0, *accumulate(side.lengths)], dtype=torch.int32, device=device)
                for side in (self.queries, self.keys)
            ]
        return self._cu_seq_lens[device]


class Pattern(NamedTuple):
    """The keys that a query attends to within its document; see `FlatMask`."""

    is_causal: bool
    window: int | None


class Documents:
    """The documents of a batch, as a mask defines them: a token that does not attend to the real
    token before it begins a new document. Packed rows are found in this way no matter which
    argument of the model describes them.

    The real tokens of the batch are numbered row by row. Below, a token is given by its number.

    Args:
        mask_function: A function of the indices of row, head, query and key that tells whether the
            query attends to the key.
        is_real: `(B, L)`, False at padding.
    """

    def __init__(self, mask_function: Callable[..., torch.Tensor], is_real: torch.Tensor):
        self.mask_function = mask_function
        self.rows, self.columns = is_real.nonzero(as_tuple=True)
        self.tokens = torch.arange(len(self.rows), device=is_real.device)  # (N,)
        begins = torch.ones_like(self.tokens, dtype=torch.bool)
        begins[1:] = ~self.sees(queries=self.tokens[1:], keys=self.tokens[:-1])
        document = begins.cumsum(0) - 1  # (N,), the document of each token
        first = begins.nonzero().squeeze(1)  # (documents,)
        lengths = document.bincount(minlength=len(first))
        # The first and the last token of the document of each token, (N,).
        self.first = first[document]
        self.last = self.first + lengths[document] - 1
        # The place of each token's document in the flat row, (B, L), from 1; 0 at padding.
        # Documents are sorted by length, longest first, so that attention can batch those of equal
        # length.
        self.count = len(first)
        places = lengths.argsort(descending=True, stable=True).argsort()
        self.numbers = torch.zeros_like(is_real, dtype=torch.long)
        self.numbers[self.rows, self.columns] = places[document] + 1

    def sees(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Whether queries attend to keys, given by their numbers. No token attends to another
        row."""
        rows = self.rows[queries]
        head = torch.zeros((), dtype=torch.long, device=rows.device)
        is_seen = self.mask_function(rows, head, self.columns[queries], self.columns[keys])
        return is_seen & (rows == self.rows[keys])

    def pattern(self) -> Pattern | None:
        """The pattern of attention in all documents; None if they have none in common."""
        tokens = self.tokens
        sees_next = self.sees(queries=tokens, keys=torch.minimum(tokens + 1, self.last))
        is_causal = not bool((sees_next & (tokens < self.last)).any())
        # The last token of the longest document shows the size of the window.
        longest = int((self.last - self.first).argmax())
        keys = tokens[self.first[longest] : self.last[longest] + 1]
        window = int(self.sees(queries=keys[-1:], keys=keys).sum())
        pattern = Pattern(is_causal=is_causal, window=None if window == len(keys) else window)
        return pattern if self.follows(pattern) else None

    def follows(self, pattern: Pattern) -> bool:
        """Whether every token attends to exactly the keys of a pattern.

        In all masks of transformers a query attends to one contiguous run of keys. It is therefore
        enough to test the keys at both ends of the expected run and of the row, those just outside
        the run, and some halfway between.
        """
        tokens = self.tokens
        reach = len(tokens) if pattern.window is None else max(pattern.window - 1, 0)
        first = torch.maximum(self.first, tokens - reach)
        last = tokens if pattern.is_causal else torch.minimum(self.last, tokens + reach)
        row_first = torch.searchsorted(self.rows, self.rows)
        row_last = torch.searchsorted(self.rows, self.rows, right=True) - 1
        ends = [row_first, first - 1, first, last, last + 1, row_last]
        halfway = [(row_first + first) // 2, (first + last) // 2, (last + row_last) // 2]
        keys = torch.stack(ends + halfway).clamp(min=0, max=len(tokens) - 1)  # (9, N)
        is_expected = (first <= keys) & (keys <= last)
        return torch.equal(self.sees(queries=tokens, keys=keys), is_expected)


class DocumentMask:
    """A mask in unevaluated form: a mask function of transformers and a padding mask.

    Args:
        make_dense: The function that makes the ordinary mask from `arguments`: `sdpa_mask` or
            `eager_mask`.
        arguments: The arguments of `sdpa_mask`. They include the shape of the mask, `(B, 1, Lq,
            Lk)`, and `attention_mask`, `(B, Lk)`, True where a key is a real token, or None if all
            keys are.
    """

    def __init__(
        self, make_dense: Callable[..., torch.Tensor | None] = sdpa_mask, **arguments: Any
    ):
        self.make_dense = make_dense
        self.arguments = arguments
        self.shape: tuple[int, int] = (arguments["batch_size"], arguments["q_length"])
        self.key_shape: tuple[int, int] = (arguments["batch_size"], arguments["kv_length"])
        self.mask_function: Callable[..., torch.Tensor] = arguments["mask_function"]
        self.dtype: torch.dtype = arguments["dtype"]  # of the hidden states
        self.config = arguments["config"]  # of the model that requests the mask
        self._cross: FlatMask | None = None

    @cached_property
    def dense(self) -> torch.Tensor | None:
        """The ordinary mask, `(B, 1, Lq, Lk)`, or None if attention needs none."""
        return self.make_dense(**self.arguments)

    def to(self, dtype: torch.dtype) -> "DocumentMask":
        """A copy whose ordinary mask has another dtype. MPT converts its mask in this way."""

        def make_dense(**arguments: Any) -> torch.Tensor | None:
            dense = self.dense
            return None if dense is None else dense.to(dtype)

        return DocumentMask(make_dense=make_dense, **self.arguments)

    def contiguous(self) -> torch.Tensor | None:
        """The ordinary mask. Up to transformers 5.23, `generate` calls this method on its masks."""
        return self.dense

    @cached_property
    def is_real(self) -> torch.Tensor:
        """`(B, Lk)`, False at padding."""
        attention_mask: torch.Tensor | None = self.arguments["attention_mask"]
        if attention_mask is None:
            device = self.arguments["device"]
            return torch.ones(self.key_shape, dtype=torch.bool, device=device)
        return attention_mask

    @cached_property
    def is_nearly_full(self) -> bool:
        """Whether a batch has so little padding that a flat row would cost more than it saves.

        With packed rows or windows a flat row always pays off. In half precision on a CPU it does
        so even for a full batch, because attention by document is faster.
        """
        if self.mask_function not in (bidirectional_mask_function, causal_mask_function):
            return False
        is_half = self.dtype in HALF_PRECISION or torch.is_autocast_enabled("cpu")
        if is_half and torch.device(self.arguments["device"]).type == "cpu":
            return False
        attention_mask = self.arguments["attention_mask"]
        if attention_mask is None:
            return True
        return int(attention_mask.count_nonzero()) > MAX_REAL * attention_mask.numel()

    @cached_property
    def documents(self) -> Documents:
        """The documents of self-attention."""
        return Documents(mask_function=self.mask_function, is_real=self.is_real)

    @cached_property
    def tokens(self) -> RealTokens:
        """The real tokens of self-attention, grouped by document."""
        documents = self.documents
        return shared(RealTokens.of_documents(documents.numbers, count=documents.count))

    @cached_property
    def has_holes(self) -> bool:
        """Whether there is padding between tokens of one document."""
        documents = self.documents
        spans = documents.columns[documents.last] - documents.columns[documents.first]
        return bool((spans != documents.last - documents.first).any())

    @cached_property
    def flat(self) -> FlatMask | None:
        """The mask of the flat row in self-attention.

        None if the batch has no real token, or if a document's mask is neither causal nor
        bidirectional, with or without a window. Only the ordinary mask is correct then.
        """
        tokens = self.tokens
        if tokens.longest == 0:
            return None
        pattern = self.documents.pattern()
        if pattern is None:
            return None
        return FlatMask(
            queries=tokens, keys=tokens, is_causal=pattern.is_causal, window=pattern.window
        )

    def flat_from(self, queries: "DocumentMask") -> FlatMask | None:
        """The mask of cross-attention from a flat row of `queries` to the flat row of these keys.

        None if it is unclear to which document a key belongs.
        """
        if self._cross is None or self._cross.queries is not queries.tokens:
            documents = queries.documents
            numbers = self._numbers_of_keys(documents)
            if numbers is None:
                return None
            keys = RealTokens.of_documents(numbers=numbers, count=documents.count)
            self._cross = FlatMask(queries=queries.tokens, keys=keys)
        return self._cross

    def _numbers_of_keys(self, documents: Documents) -> torch.Tensor | None:
        """The number of each key's document, `(B, Lk)`, if all queries of a document attend to the
        same keys and no other queries attend to these; otherwise None."""
        if len(documents.numbers) != self.key_shape[0]:
            return None
        if self.mask_function is bidirectional_mask_function:
            # All tokens of a row attend to the same keys, so no pairs need to be compared.
            of_rows = documents.numbers.amax(dim=1, keepdim=True)
            is_packed = not torch.equal(documents.numbers, of_rows * (documents.numbers != 0))
            return None if is_packed else of_rows * self.is_real
        rows = documents.rows[:, None]
        columns = documents.columns[:, None]
        head = torch.zeros((), dtype=torch.long, device=rows.device)
        keys = torch.arange(self.key_shape[1], device=rows.device)
        is_seen = self.mask_function(rows, head, columns, keys) & self.is_real[documents.rows]
        numbers = documents.numbers[rows, columns]  # (N, 1)
        zeros = torch.zeros(self.key_shape, dtype=torch.long, device=rows.device)
        of_keys = zeros.scatter_reduce(0, rows.expand_as(is_seen), is_seen * numbers, "amax")
        is_expected = of_keys[documents.rows] == numbers
        return of_keys if torch.equal(is_seen, is_expected) else None


def padding_free_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    attention_mask: torch.Tensor | None = None,
    make_dense: Callable[..., torch.Tensor | None] = sdpa_mask,
    **options: Any,
) -> DocumentMask | torch.Tensor | None:
    """The mask of this attention implementation, with the arguments of transformers' `sdpa_mask`.

    Only a batch without earlier tokens gets a `DocumentMask`. The ordinary mask is returned for
    generation steps after the prompt, for caches of a fixed size, and for traced graphs, whose
    values cannot be read.
    """
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "attention_mask": attention_mask,
        **options,
    }
    if q_length <= 1 or isinstance(q_offset, torch.Tensor) or q_offset > 0 or kv_offset > 0:
        arguments |= {"q_offset": q_offset, "kv_offset": kv_offset}
        return make_dense(**arguments)
    # sdpa may leave out a causal mask, but not a mask of cross-attention.
    is_fixed_size = kv_length != q_length and options.get("allow_is_causal_skip", True)
    fits = attention_mask is None or attention_mask.shape == (batch_size, kv_length)
    if is_fixed_size or not fits or is_tracing(attention_mask) or state.computes_padding:
        return make_dense(**arguments)
    if make_dense is eager_mask:
        arguments["allow_is_causal_skip"] = False  # These modules rely on the mask to be causal.
    return DocumentMask(make_dense=make_dense, **arguments)


# Attention


def padding_free_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | DocumentMask | FlatMask | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An attention function of transformers, from `(B, heads, L, head_dim)` to `(B, L, heads,
    head_dim)`. For a flat row, B is 1 and L is the number of all real tokens."""
    if isinstance(attention_mask, FlatMask):
        return attend_by_document(module, query, key, value, attention_mask, **kwargs), None
    if isinstance(attention_mask, DocumentMask):
        attention_mask = attention_mask.dense
    return attend_to_batch(module, query, key, value, attention_mask, **kwargs)


def attend_to_batch(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention by sdpa, or by the function in the model's own file if sdpa lacks a feature."""
    if query.numel() == 0 or key.numel() == 0:
        # The output is empty or zero. It depends on all three, so that each gets a gradient.
        return (query * 0 + (key.sum() + value.sum()) * 0).transpose(1, 2), None
    if query.device.type == APPLE and query.dtype in HALF_PRECISION:
        attention_mask = mask_for_apple(module, query, key, attention_mask, kwargs.get("is_causal"))
        kwargs["is_causal"] = False  # The mask is already causal.
    attend = attend_eagerly if needs_eager(kwargs) else sdpa_attention_forward
    return attend(module, query, key, value, attention_mask, **kwargs)


def mask_for_apple(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None,
) -> torch.Tensor | None:
    """A mask with which torch's sdpa is correct on an Apple GPU in half precision. There, with
    `is_causal` and no mask, queries attend to later keys (pytorch#195910), and a mask that hides
    all keys gives NaN (pytorch#156707)."""
    if attention_mask is None:
        return causal_mask(module, query, key, is_causal)
    if attention_mask.dtype != torch.bool:
        return attention_mask
    return attention_mask | ~attention_mask.any(dim=-1, keepdim=True)


def causal_mask(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, is_causal: bool | None
) -> torch.Tensor | None:
    """The mask `(1, 1, Lq, Lk)`, True where a causal query attends to a key; None if it attends to
    all keys.

    Args:
        is_causal: As the layer gives it. Default: the attribute of the module.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal or query.shape[2] == 1:
        return None
    is_seen = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool)
    return is_seen.tril()[None, None]


def needs_eager(kwargs: dict[str, Any]) -> bool:
    """Whether probabilities, capped scores or sinks are requested, which sdpa lacks."""
    has_capped_scores = kwargs.get("softcap") is not None
    has_sinks = kwargs.get("s_aux") is not None
    return bool(kwargs.get("output_attentions")) or has_capped_scores or has_sinks


def attend_eagerly(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The `eager_attention_forward` of the model's own file, with a mask in the form it expects."""
    if attention_mask is None:
        attention_mask = causal_mask(module, query, key, is_causal)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        zeros = query.new_zeros(attention_mask.shape)
        attention_mask = zeros.masked_fill(~attention_mask, lowest)
    eager_attention_forward = sys.modules[type(module).__module__].eager_attention_forward
    return eager_attention_forward(module, query, key, value, attention_mask, **kwargs)


@torch.compiler.disable  # Each new shape, which depends on the data, would be compiled again.
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

    All documents of one length are computed by one call. Its arguments are views: nothing is
    gathered or padded, and the gradient of `split` is one concatenation.

    Args:
        position_bias: The position bias of T5, `(1, heads, longest, longest)`, which is the same
            for every document.
        is_causal: Not used, because the mask has this information.
    """
    if mask.queries is not mask.keys:
        position_bias = None  # T5's cross-attention has no bias and passes zeros.
    if takes_flat_rows(query, value, position_bias, **kwargs):
        return attend_at_once(query, key, value, mask, **kwargs)
    if is_slow_in_half_precision(query, mask):
        with torch.autocast("cpu", enabled=False):
            states = (query.float(), key.float(), value.float())
            if position_bias is not None:
                position_bias = position_bias.float()
            output = attend_by_document(module, *states, mask, position_bias, **kwargs)
        return output.to(query.dtype)
    query_runs = [(count, length) for count, length, _ in mask.runs]
    key_runs = [(count, length) for count, _, length in mask.runs]
    outputs = []
    for queries, keys, values in zip(
        split_runs(query, query_runs),
        split_runs(key, key_runs),
        split_runs(value, key_runs),
        strict=True,
    ):
        if position_bias is not None:
            kwargs["position_bias"] = position_bias[:, :, : queries.shape[2], : keys.shape[2]]
        output = attend(module, queries, keys, values, mask.is_causal, mask.window, **kwargs)
        outputs.append(output.flatten(0, 1))
    output = torch.cat(outputs) if len(outputs) > 1 else outputs[0]  # (N, heads, head_dim)
    return output.unsqueeze(0)


def split_runs(states: torch.Tensor, runs: list[tuple[int, int]]) -> Iterator[torch.Tensor]:
    """Split states `(1, heads, N, head_dim)` into `(count, heads, length, head_dim)` for each run
    of `count` documents of one length."""
    pieces = states.split([count * length for count, length in runs], dim=2)
    for piece, (count, length) in zip(pieces, runs, strict=True):
        if count > 1:
            piece = piece.squeeze(0).unflatten(1, (count, length)).transpose(0, 1)
        yield piece


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    window: int | None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in documents of one length, `(n, heads, length, head_dim)` to `(n, length, heads,
    head_dim)`.

    With a window, each block of queries gets only the keys within reach, so that the cost is linear
    in the length.
    """
    length = query.shape[2]
    if window is None or length <= window:
        return attend_to_batch(module, query, key, value, None, is_causal=is_causal, **kwargs)[0]
    has_bias = kwargs.get("position_bias") is not None
    size = length if has_bias else WINDOWS_OF_A_BLOCK * window
    places = torch.arange(length, device=query.device)
    outputs = []
    for start in range(0, length, size):
        first = max(start - window, 0)
        last = start + size + (0 if is_causal else window)
        queries = places[start : start + size, None]
        mask = is_in_window(queries, places[first:last], window, is_causal)[None, None]
        output, _ = attend_to_batch(
            module,
            query[:, :, start : start + size],
            key[:, :, first:last],
            value[:, :, first:last],
            mask,
            is_causal=False,  # The mask is already causal if it must be.
            **kwargs,
        )
        outputs.append(output)
    return torch.cat(outputs, dim=1)


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
    """Whether torch's variable-length attention can compute the flat row in one call. It needs an
    Ampere or newer GPU and half precision, and has neither dropout nor the features that sdpa
    lacks."""
    if varlen_attn is None or not query.is_cuda or dropout or position_bias is not None:
        return False
    is_half = query.dtype in HALF_PRECISION
    fits = query.shape[-1] == value.shape[-1] <= 256 and query.shape[-1] % 8 == 0
    if not is_half or not fits or needs_eager(kwargs):
        return False
    return torch.cuda.get_device_capability(query.device) >= (8, 0)


def attend_at_once(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: FlatMask,
    scaling: float | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention in a flat row by torch's variable-length attention."""
    assert varlen_attn is not None
    reach = -1 if mask.window is None else mask.window - 1  # -1 means the whole document.
    output = varlen_attn(
        query[0].transpose(0, 1),  # (N, heads, head_dim)
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        *mask.cu_seq_lens(query.device),
        mask.queries.longest,
        mask.keys.longest,
        scale=scaling,
        window_size=(reach, 0 if mask.is_causal else reach),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


def is_slow_in_half_precision(query: torch.Tensor, mask: FlatMask) -> bool:
    is_half = query.dtype in HALF_PRECISION
    needs_gradient = query.requires_grad and torch.is_grad_enabled()
    is_short = mask.keys.longest < MIN_HALF_PRECISION_KEYS
    return query.device.type == "cpu" and is_half and needs_gradient and is_short


AttentionInterface.register(NAME, padding_free_attention)
AttentionMaskInterface.register(NAME, padding_free_mask)
AttentionMaskInterface.register(OWN_NAME, partial(padding_free_mask, make_dense=eager_mask))
