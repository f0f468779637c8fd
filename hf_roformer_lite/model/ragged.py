"""Which tokens of a batch are real, and where their documents begin: the one place that knows padding and packing.

A batch has one of two layouts:

* Ragged: the N real tokens in one row, `(N, hidden)`, so that padding costs nothing outside attention. A few spare
  rows may follow them; they repeat the last token and reach no output.
* Dense: `(B, L, hidden)`, when there is nothing to remove, when shapes must not depend on the data (tracing, key-value
  caches), and when the outputs of every layer are asked for.

A document is a run of tokens that see each other: a row of the batch, or one of several packed into a row. A masked
token does not exist: positions count the real tokens of the document, wherever the padding stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch
from transformers.utils.import_utils import is_tracing

from .host_side import move_together, numbers, on_host
from .operators import find_tokens, real_tokens


@dataclass
class RaggedBatch:
    """The real tokens of a batch of `batch_size` rows of `seq_len` places. Made by `RaggedBatch.build`, whose index
    tensors are on the host where they depend on the data: `to` sends them to the batch."""

    batch_size: int
    seq_len: int
    position_ids: torch.Tensor  # (num_rows,) ragged; (B, L) dense, or (1, L) where all rows are alike
    attention_mask: torch.Tensor | None = None  # (B, L) bool; None: every token is real
    token_index: torch.Tensor | None = None  # (num_rows,) places of the tokens in the flattened batch; None: dense
    document_ids: torch.Tensor | None = None  # (B, L), dense and packed only
    lengths: Sequence[int] = ()  # tokens of each document; empty where shapes must not depend on the data
    is_packed: bool = False
    row_lengths: torch.Tensor | None = None  # (B,) on the host, in place of `lengths` in graphs that know no lengths

    @property
    def is_dense(self) -> bool:
        return self.token_index is None

    @property
    def num_rows(self) -> int:
        """Real tokens and spare rows, or all places of a dense batch."""
        return self.batch_size * self.seq_len if self.is_dense else len(self.token_index)

    @property
    def real_rows(self) -> slice:
        """The rows of a ragged batch that are no spare rows."""
        return slice(None) if self.row_lengths is not None else slice(sum(self.lengths))

    def cu_seqlens(self) -> torch.Tensor:
        """Borders of the documents among the real tokens, `(documents + 1,)` int32, as flash attention takes them."""
        borders = np.array([0, *accumulate(self.lengths)], dtype=np.int32)
        return move_together(torch.from_dlpack(borders), self.position_ids.device)

    def document_of_token(self) -> torch.Tensor:
        """Number of the document each row belongs to, `(num_rows,)`; the spare rows are a document of their own."""
        spare = self.num_rows - sum(self.lengths)
        documents = np.repeat(np.arange(len(self.lengths) + 1), [*self.lengths, spare])
        return move_together(torch.from_dlpack(documents), self.position_ids.device)

    @classmethod
    def build(
        cls,
        batch_size: int,
        seq_len: int,
        device: torch.device,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cu_seq_lens: torch.Tensor | None = None,
        dense: bool = False,
        tracing: bool = False,
        compiling: bool = False,
        choose_num_rows: Callable[[int], int] = int,
    ) -> RaggedBatch:
        """Find the real tokens and their documents.

        Args:
            batch_size, seq_len: Shape of the padded batch, B and L.
            device: Where the batch is.
            attention_mask: `(B, L)`, nonzero where a token is real, in any pattern. Default: all are real.
            position_ids: `(B, L)` or `(1, L)`. A real token whose position is not above that of the real token
                before it in its row begins a new document (packing). With a mask beside them its position must be 0:
                `generate` counts on from the 0 that it gives to padding. Default: counted from 0 in each document.
            cu_seq_lens: `(documents + 1,)` borders of the documents in the flattened batch, the other form of packing
                (transformers' `DataCollatorWithFlattening`). Excludes `attention_mask`.
            dense: Take the dense layout.
            tracing: Take the dense layout and read no value of any tensor. `position_ids` are then always taken for
                those of packed documents.
            compiling: Take the ragged layout of a graph that knows no lengths where there is a mask alone, and else
                do as when tracing.
            choose_num_rows: From the number of real tokens to that of the rows to compute. Default: the same.

        Raises:
            ValueError: when the shapes do not fit together.
        """
        attention_mask, position_ids = _checked(batch_size, seq_len, attention_mask, position_ids, cu_seq_lens)
        if compiling and attention_mask is not None and position_ids is None:
            index, positions, lengths = find_tokens(attention_mask)
            return cls(batch_size, seq_len, positions, attention_mask, index, row_lengths=lengths)
        if dense or tracing:
            batch = cls._build_dense(batch_size, seq_len, device, attention_mask, position_ids, cu_seq_lens)
            if not tracing and batch.document_ids is not None and not bool(batch.document_ids.any()):
                batch.document_ids, batch.is_packed = None, False
            return batch
        batch = cls._build_ragged(batch_size, seq_len, device, attention_mask, position_ids, cu_seq_lens)
        return batch if batch.is_dense else batch._with_spare_rows(choose_num_rows(batch.num_rows))

    @classmethod
    def _build_ragged(
        cls,
        batch_size: int,
        seq_len: int,
        device: torch.device,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cu_seq_lens: torch.Tensor | None,
    ) -> RaggedBatch:
        """The real tokens alone; dense when there is no padding and no packing."""
        given = on_host(attention_mask, position_ids, cu_seq_lens)
        mask, positions, borders = (None if tensor is None else numbers(tensor) for tensor in given)
        if mask is not None and mask.all():
            mask = attention_mask = None
        if mask is None and positions is None and borders is None:
            position_ids = torch.arange(seq_len, device=device).unsqueeze(0)
            return cls(batch_size, seq_len, position_ids, lengths=[seq_len] * batch_size)
        if positions is None and borders is None:
            index, positions, lengths = real_tokens(mask)
            lengths, is_packed = lengths.tolist(), False
        else:
            index = np.arange(batch_size * seq_len) if mask is None else np.flatnonzero(mask)
            lengths, is_packed = _document_lengths(batch_size, seq_len, mask, positions, borders, index)
            if mask is None and not is_packed:
                return cls(batch_size, seq_len, position_ids, lengths=lengths)
            if positions is None:
                starts = np.array([0, *accumulate(lengths)][:-1], dtype=np.int64)
                positions = np.arange(len(index)) - np.repeat(starts, lengths)
            else:
                positions = positions.ravel()[index]
        tensors = torch.from_dlpack(positions), attention_mask, torch.from_dlpack(index)  # (N,), (B, L), (N,)
        return cls(batch_size, seq_len, *tensors, lengths=lengths, is_packed=is_packed)

    def _with_spare_rows(self, num_rows: int) -> RaggedBatch:
        """A ragged batch whose last token is repeated until there are `num_rows`."""
        spare = num_rows - self.num_rows
        if not spare:
            return self
        index, positions = (
            torch.cat((tensor, tensor[-1:].expand(spare))) for tensor in (self.token_index, self.position_ids)
        )
        return replace(self, token_index=index, position_ids=positions)

    @classmethod
    def _build_dense(
        cls,
        batch_size: int,
        seq_len: int,
        device: torch.device,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        cu_seq_lens: torch.Tensor | None,
    ) -> RaggedBatch:
        document_ids = None
        if attention_mask is not None:
            attention_mask = attention_mask.to(device)
        if cu_seq_lens is not None:
            flat = torch.arange(batch_size * seq_len, device=device)
            document_ids = torch.searchsorted(cu_seq_lens[1:].to(device), flat, right=True).view(batch_size, seq_len)
        elif position_ids is not None:
            document_ids = _find_restarts(position_ids, attention_mask).cumsum(-1)  # (B, L)
        if position_ids is None:
            position_ids = torch.arange(seq_len, device=device).unsqueeze(0)
            if attention_mask is not None:
                position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
            elif document_ids is not None:
                flat = torch.arange(batch_size * seq_len, device=device).view(batch_size, seq_len)
                position_ids = flat - cu_seq_lens.to(device)[document_ids]
        return cls(
            batch_size,
            seq_len,
            position_ids,
            attention_mask,
            document_ids=document_ids,
            is_packed=document_ids is not None,
        )

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> RaggedBatch:
        """The same on `device`, for layers on another one (accelerate's hooks call this); itself if it is there."""
        return self if self.position_ids.device == torch.device(device) else move_together(self, device)

    def gather(self, padded: torch.Tensor) -> torch.Tensor:
        """`(B, L, ...)` to the layout of this batch: `(num_rows, ...)` ragged, unchanged dense."""
        if self.is_dense:
            return padded
        return padded.flatten(0, 1).index_select(0, self.token_index.to(padded.device))

    def restore(self, states: torch.Tensor) -> torch.Tensor:
        """The layout of this batch to `(B, L, ...)`, with zeros at padding."""
        if not self.is_dense:
            padded = states.new_zeros(self.batch_size * self.seq_len, *states.shape[1:])
            real = self.real_rows
            padded.index_copy_(0, self.token_index[real].to(states.device), states[real])
            return padded.unflatten(0, (self.batch_size, self.seq_len))
        if self.attention_mask is None:
            return states
        return states.masked_fill(~self.attention_mask[..., None].to(states.device), 0.0)

    def _ragged(self) -> RaggedBatch:
        """A dense packed batch in the ragged layout."""
        rows = torch.arange(self.batch_size, device=self.position_ids.device)[:, None] * self.seq_len
        documents = rows + self.document_ids  # (B, L), rising
        real = torch.ones_like(documents, dtype=torch.bool) if self.attention_mask is None else self.attention_mask
        token_index = real.flatten().nonzero().squeeze(-1)
        lengths = documents.flatten()[token_index].unique_consecutive(return_counts=True)[1].tolist()
        return RaggedBatch(
            self.batch_size,
            self.seq_len,
            self.position_ids.flatten()[token_index],
            self.attention_mask,
            token_index,
            lengths=lengths,
            is_packed=True,
        )

    def tokens_of_documents(self, padded: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """The real tokens of `(B, L)`, `(N,)`; their places in the flattened batch, `(N,)`; the number of the document
        of each, `(N,)`, rising; and how many documents there are."""
        self = self.to(padded.device)
        if self.is_packed and not is_tracing(padded):
            batch = self if not self.is_dense else self._ragged()
            real = batch.real_rows
            places, documents = batch.token_index[real], batch.document_of_token()[real]
            return padded.flatten()[places], places, documents, len(batch.lengths)
        if not self.is_dense:
            places = self.token_index[self.real_rows]
        elif self.attention_mask is None:
            places = torch.arange(padded.numel(), device=padded.device)
        else:
            places = self.attention_mask.flatten().nonzero().squeeze(-1)
        return padded.flatten()[places], places, places // self.seq_len, self.batch_size

    def pool(self, padded: torch.Tensor, how: str) -> torch.Tensor:
        """One vector a document, `(documents, hidden)`, of restored states `(B, L, hidden)`.

        `how` is `mean`, `cls` (the first real token) or `last` (the last one). A document without tokens gives zeros.
        """
        self = self.to(padded.device)
        if self.is_packed and not is_tracing(padded):
            batch = self if not self.is_dense else self._ragged()
            tokens = batch.gather(padded)
            lengths = move_together(torch.from_dlpack(np.array(batch.lengths)), padded.device)
            if how == "mean":
                sums = tokens.new_zeros(len(lengths) + 1, tokens.shape[-1])
                return sums.index_add(0, batch.document_of_token(), tokens)[:-1] / lengths[:, None]
            ends = lengths.cumsum(0)
            return tokens[ends - lengths if how == "cls" else ends - 1]
        if not padded.shape[1]:
            return padded.sum(1)
        if self.attention_mask is None:
            return padded.mean(1) if how == "mean" else padded[:, 0 if how == "cls" else -1]
        if how == "mean":
            return padded.sum(1) / self.attention_mask.sum(1, keepdim=True).clamp(min=1)
        real = self.attention_mask.int()
        place = real.argmax(1) if how == "cls" else self.seq_len - 1 - real.flip(1).argmax(1)
        return padded[torch.arange(self.batch_size, device=padded.device), place]


def _find_restarts(position_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Where a real token begins another document of its row, `(B, L)`; see `RaggedBatch.build`."""
    places = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    if attention_mask is not None:
        places = places.where(attention_mask, -1)
    last = torch.nn.functional.pad(places.cummax(-1).values[:, :-1], (1, 0), value=-1)  # the real place before, or -1
    restarts = (last >= 0) & (position_ids <= position_ids.gather(1, last.clamp(min=0)))
    return restarts if attention_mask is None else restarts & attention_mask & (position_ids == 0)


def _checked(
    batch_size: int,
    seq_len: int,
    attention_mask: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    cu_seq_lens: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The mask as booleans and the positions as `(B, L)`; their shapes have been checked."""
    if attention_mask is not None:
        if cu_seq_lens is not None:
            raise ValueError("attention_mask and cu_seq_lens were both given; packed input has no padding to mask.")
        attention_mask = attention_mask.bool()
    if position_ids is not None:
        position_ids = position_ids.expand(batch_size, seq_len)
    return attention_mask, position_ids


def _document_lengths(
    batch_size: int,
    seq_len: int,
    mask: np.ndarray | None,
    positions: np.ndarray | None,
    borders: np.ndarray | None,
    index: np.ndarray,
) -> tuple[list[int], bool]:
    """Tokens of each document, and whether a row holds more than one."""
    if borders is not None:
        lengths = np.diff(borders)
        if borders[:1].tolist() != [0] or borders[-1] != batch_size * seq_len or lengths.min(initial=1) < 1:
            raise ValueError(
                f"cu_seq_lens_q={borders.tolist()} must rise from 0 to the number of tokens, {batch_size * seq_len}."
            )
        return lengths.tolist(), True
    if positions is not None and len(index) > 1:
        given = (None if array is None else torch.from_dlpack(array) for array in (positions, mask))
        restarts = numbers(_find_restarts(*given)).ravel()[index]  # (N,)
        if restarts.any():
            row = index // seq_len
            begins = np.flatnonzero(restarts | (np.diff(row, prepend=-1) != 0))
            return np.diff(begins, append=len(index)).tolist(), True
    if mask is None:
        return [seq_len] * batch_size, False
    return mask.sum(1).tolist(), False
