"""The masks of the attention implementation "padding_free".

The mask functions of transformers (`create_causal_mask` and its siblings) request each mask from
the attention implementation of the model. Under "padding_free" they get a `DocumentMask`, which
keeps the mask function and the padding mask. A layer that computes the padded batch takes the
ordinary mask from it. A layer that computes a flat row of real tokens (`layers.py`) takes a
`FlatMask`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from transformers import masking_utils
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
)
from transformers.utils.import_utils import is_tracing

from .batch import FlatTokens
from .plan import Plan, current, request_of_layers
from .sorted_rows import SortedRows

NAME = "padding_free"
# For models that need masks in the form of "eager".
EAGER_NAME = "padding_free_eager"
HALF_PRECISION = (torch.float16, torch.bfloat16)
# The share of real tokens up to which a flat row is faster than the padded batch.
MAX_REAL = 0.9

# The arguments of `sdpa_mask` that let it look for padding, and return no mask if there is none.
SKIPS = ("allow_is_causal_skip", "allow_is_bidirectional_skip")
ONE_SIDED = "sliding_window_overlay"
# The mask functions of windows, each with the number that makes the window count the query itself.
WINDOWS = {ONE_SIDED: 0, "sliding_window_bidirectional_overlay": 1}


def is_nearly_full(is_real: torch.Tensor) -> bool:
    """Whether so many tokens are real that a flat row would cost more than it saves. A traced graph
    does not ask, because its values cannot be read."""
    return not is_tracing(is_real) and int(is_real.count_nonzero()) > MAX_REAL * is_real.numel()


class Pattern(NamedTuple):
    """The keys that a query attends to within its document.

    Args:
        is_causal: Whether a query does not attend to later keys.
        window: The number of tokens that a query reaches on each side, including itself; None: the
            whole document.
        documents: `(B, L)`, the number of each token's document; None: a row is a document.
    """

    is_causal: bool = False
    window: int | None = None
    documents: torch.Tensor | None = None


def pattern_of(mask_function: Callable[..., Any]) -> Pattern | None:
    """The pattern of a mask function whose definition is known; None for any other function."""
    pattern = Pattern()
    is_one_sided = False
    for part in conjuncts(mask_function):
        factory, given = definition_of(part)
        if part is causal_mask_function:
            pattern = pattern._replace(is_causal=True)
        elif factory == "packed_sequence_mask_function" and pattern.documents is None:
            pattern = pattern._replace(documents=given["packed_sequence_mask"])
        elif factory in WINDOWS and pattern.window is None:
            pattern = pattern._replace(window=given["sliding_window"] + WINDOWS[factory])
            is_one_sided = factory == ONE_SIDED
        elif part is not bidirectional_mask_function:
            return None
    # A window of this kind bounds only the earlier keys.
    return None if is_one_sided and not pattern.is_causal else pattern


def conjuncts(mask_function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The mask functions, all of which must allow a key."""
    factory, given = definition_of(mask_function)
    if factory == "and_masks":
        for part in given["mask_functions"]:
            yield from conjuncts(part)
    elif factory == "remap_positions_for_packed_sequence":
        # Positions rise by one within a document, and this mask stands beside that of documents.
        yield from conjuncts(given["mask_function"])
    else:
        yield mask_function


def definition_of(mask_function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """The transformers function that has made a mask function, and the arguments of that call. Mask
    functions have no name of their own, and closures hold what they were made from."""
    factory, _, _ = getattr(mask_function, "__qualname__", "").partition(".<locals>")
    cells = getattr(mask_function, "__closure__", None)
    if not cells or mask_function.__module__ != masking_utils.__name__:
        return "", {}
    names = mask_function.__code__.co_freevars
    return factory, {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


# Runs of neighbouring documents of equal length: the number of documents, and their length.
Runs = list[tuple[int, int]]


@dataclass(eq=False)
class FlatMask:
    """The attention mask of a flat row.

    Args:
        queries, keys: The tokens of both sides; the same object except in cross-attention.
        dense: Makes the ordinary mask of the padded batch, `(B, 1, Lq, Lk)`, or None if attention
            needs none.
        pattern: The keys that a query attends to within its document, if all tokens are in
            documents and follow it. None: only the ordinary mask is correct.
        sorted_rows: The rows in groups of similar length, in an exported graph.
    """

    queries: FlatTokens
    keys: FlatTokens
    dense: Callable[[], torch.Tensor | None]
    pattern: Pattern | None = None
    sorted_rows: SortedRows | None = None
    _made: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        # torch calls this method when other code uses the mask.
        raise RuntimeError(
            "a mask of padding_free was used as a tensor. Checkpointed layers do so in the "
            "backward pass if padding_free was switched off, or the attention implementation was "
            "changed, after the forward pass: change it after the backward pass."
        )

    def dense_on(self, device: torch.device) -> torch.Tensor | None:
        """The ordinary mask on a device. In a model that is spread over several devices, layers are
        not where the mask was made."""
        dense = self.dense()
        return None if dense is None else dense.to(device)

    def additive_for(self, query: torch.Tensor) -> torch.Tensor | None:
        """The ordinary mask in the form that is added to the scores of `query`. It is made once, so
        that sdpa has nothing to convert in the layers."""
        key = (query.dtype, query.device)
        if key not in self._made:
            dense = self.dense_on(query.device)
            self._made[key] = None if dense is None else as_additive(dense, query.dtype)
        return self._made[key]

    @cached_property
    def runs(self) -> tuple[Runs, Runs, Runs]:
        """The runs of queries, of keys and of values."""
        lengths = zip(self.queries.lengths, self.keys.lengths, strict=True)
        runs = [(len(list(run)), *pair) for pair, run in groupby(lengths)]
        queries = [(count, length) for count, length, _ in runs]
        keys = [(count, length) for count, _, length in runs]
        return queries, keys, keys

    def cu_seq_lens(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The document boundaries of queries and of keys, `(documents + 1,)` each."""
        if device not in self._made:
            borders = [[0, *accumulate(side.lengths)] for side in (self.queries, self.keys)]
            self._made[device] = torch.tensor(borders, dtype=torch.int32, device=device).unbind()
        return self._made[device]


def as_additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask that is added to scores, from one that may be True where a query sees a key."""
    if mask.dtype != torch.bool:
        return mask
    zeros = torch.zeros_like(mask, dtype=dtype)
    return zeros.masked_fill(~mask, torch.finfo(dtype).min)


class DocumentMask:
    """A mask in unevaluated form: a transformers mask function and a padding mask.

    Args:
        plan: The plan of the batch.
        make_dense: The function that makes the ordinary mask from `arguments`: `sdpa_mask` or
            `eager_mask`.
        arguments: The arguments of `sdpa_mask`. They include the shape of the mask, `(B, 1, Lq,
            Lk)`, and `attention_mask`, `(B, Lk)`, True where a key is a real token, or None if all
            keys are.
    """

    def __init__(
        self,
        plan: Plan,
        make_dense: Callable[..., torch.Tensor | None] = sdpa_mask,
        **arguments: Any,
    ):
        self.plan = plan
        self.make_dense = make_dense
        self.arguments = arguments
        self.shape: tuple[int, int] = (arguments["batch_size"], arguments["q_length"])
        self.key_shape: tuple[int, int] = (arguments["batch_size"], arguments["kv_length"])
        # Transformers passes this argument for masks with which tokens attend to later ones.
        self.is_causal = "allow_is_bidirectional_skip" not in arguments
        # (The lengths do not tell: a graph in which they are compared holds for one outcome alone.)
        self.may_be_cross_attention = plan.has_cross_attention and not self.is_causal
        self.is_traced = is_tracing(arguments["attention_mask"])
        is_real = arguments["attention_mask"]
        if is_real is None:
            is_real = torch.ones(self.key_shape, dtype=torch.bool, device="cpu")
        # `(B, Lk)`, False at padding; on the CPU, except in a traced graph.
        self.is_real: torch.Tensor = is_real if self.is_traced else is_real.cpu()
        # The masks of cross-attention, by those of their queries.
        self.cross_masks: dict[FlatMask, FlatMask] = {}
        if self.is_traced:
            # What a graph computes within a layer may not be used by another one. (torch.compile
            # can read a cached property only if it has been set.)
            self.computes_padding = False
            self.tokens = tokens = plan.tokens(self.is_real, self.is_causal)
            self.dense = dense = make_dense(**arguments)
            self.flat = flat = FlatMask(queries=tokens, keys=tokens, dense=lambda: dense)
            is_exported = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
            # Under torch.compile, a length that is read from the data would break the graph. The
            # columns of a mask with heads would have to be collected for each head.
            takes_groups = is_exported and not self.may_be_cross_attention
            if takes_groups and dense is not None and dense.shape[1] == 1:
                flat.sorted_rows = SortedRows(tokens, dense)

    @cached_property
    def dense(self) -> torch.Tensor | None:
        """The ordinary mask, `(B, 1, Lq, Lk)`, or None if attention needs none."""
        return self.make_dense(**self.arguments)

    def contiguous(self) -> torch.Tensor | None:
        """The ordinary mask. Up to transformers 5.23, `generate` calls this method on its masks."""
        return self.dense

    @cached_property
    def pattern(self) -> Pattern | None:
        return pattern_of(self.arguments["mask_function"])

    @cached_property
    def tokens(self) -> FlatTokens:
        """The computed tokens among the keys."""
        documents = self.pattern and self.pattern.documents
        return self.plan.tokens(self.is_real, self.is_causal, documents)

    @cached_property
    def computes_padding(self) -> bool:
        """Whether the layers compute the padded batch, because it costs less than a flat row.

        With packed rows or windows a flat row always pays off. In half precision on a CPU it does
        so even for a full batch, because attention by document is faster.
        """
        if self.is_real.numel() == 0:
            return True
        if self.arguments["mask_function"] not in (
            bidirectional_mask_function,
            causal_mask_function,
        ):
            return False
        is_half = self.arguments["dtype"] in HALF_PRECISION or torch.is_autocast_enabled("cpu")
        if is_half and torch.device(self.arguments["device"]).type == "cpu":
            return False
        return is_nearly_full(self.is_real)

    def or_dense(self) -> "DocumentMask | torch.Tensor | None":
        """This mask, or the ordinary one if it is known that layers compute padding."""
        # The keys of cross-attention may all be real although the queries are padded.
        if self.may_be_cross_attention or not self.computes_padding:
            return self
        return self.dense

    @cached_property
    def flat(self) -> FlatMask | None:
        """The mask of the flat row in self-attention; None if padding is to be computed."""
        if self.computes_padding:
            return None
        if self.arguments["attention_mask"] is not None:
            # There is padding to mask. On an accelerator, a search for it would be waited for.
            self.arguments |= dict.fromkeys(SKIPS, False)
        tokens = self.tokens
        return FlatMask(
            queries=tokens,
            keys=tokens,
            dense=lambda: self.dense,
            pattern=self.pattern if tokens.are_documents else None,
        )

    def flat_from(self, queries: FlatMask) -> FlatMask:
        """The mask of cross-attention from the flat row of `queries` to the flat row of these
        keys."""
        if queries not in self.cross_masks:
            keys = self.keys_of(queries)
            self.cross_masks[queries] = FlatMask(
                queries=queries.queries,
                keys=self.tokens if keys is None else keys,
                dense=lambda: self.dense,
                pattern=None if keys is None else Pattern(),
            )
        return self.cross_masks[queries]

    def keys_of(self, queries: FlatMask) -> FlatTokens | None:
        """The keys in the order of the rows of `queries`; None if rows are packed, or if keys
        other than padding are hidden."""
        is_packed = queries.pattern is None or queries.pattern.documents is not None
        if is_packed or self.pattern != Pattern() or not self.tokens.are_documents:
            return None
        numbers = queries.queries.numbers.amax(dim=1, keepdim=True) * self.is_real
        return FlatTokens(numbers, count=len(queries.queries.lengths))


def padding_free_mask(
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    make_dense: Callable[..., torch.Tensor | None] = sdpa_mask,
    **arguments: Any,
) -> DocumentMask | torch.Tensor | None:
    """The mask of this attention implementation, with the arguments of `sdpa_mask` in transformers,
    which passes them by name.

    Only a batch without earlier tokens gets a `DocumentMask`. The ordinary mask is returned for
    generation steps after the prompt, and for caches of a fixed size.
    """
    arguments |= {"q_length": q_length, "kv_length": kv_length}
    has_earlier_tokens = isinstance(q_offset, torch.Tensor) or q_offset > 0 or kv_offset > 0
    if q_length <= 1 or has_earlier_tokens:
        return make_dense(q_offset=q_offset, kv_offset=kv_offset, **arguments)
    # sdpa may leave out a causal mask, but not a mask of cross-attention.
    is_fixed_size = arguments.get("allow_is_causal_skip", True) and kv_length != q_length
    attention_mask = arguments["attention_mask"]
    shape = (arguments["batch_size"], kv_length)
    fits = attention_mask is None or attention_mask.shape == shape
    plan = current.plan or Plan()
    computes_padding = plan.why_padded or request_of_layers({}, arguments["config"])
    is_full_graph = attention_mask is None and is_tracing()
    if is_fixed_size or not fits or computes_padding or is_full_graph:
        return make_dense(**arguments)
    if make_dense is eager_mask:
        arguments["allow_is_causal_skip"] = False  # These modules rely on the mask to be causal.
    return DocumentMask(plan, make_dense=make_dense, **arguments).or_dense()


AttentionMaskInterface.register(NAME, padding_free_mask)
AttentionMaskInterface.register(EAGER_NAME, partial(padding_free_mask, make_dense=eager_mask))
