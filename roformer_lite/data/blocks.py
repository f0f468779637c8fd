"""Splits tokenized documents into blocks for language models, and collates encoded rows of any task
into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerBase

from hf_roformer_lite.model.losses import IGNORE_INDEX

from ..errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset

# The tokenizer gets at most this many lines of a document at once.
# It needs a hundred times as much memory as the text.
NUM_LINES_AT_ONCE = 1000


def cut_blocks(
    pieces: Iterable[tuple[str, Sequence[int]]],
    start: int,
    end: int,
    block_size: int,
    is_causal: bool,
) -> Iterator[list[int]]:
    """Blocks of at most `block_size` tokens; no block spans two documents.

    In causal language modelling `[CLS]` and `[SEP]` enclose the whole document; in masked language
    modelling they enclose every block, as they will enclose the user's texts. The last two blocks
    of a document share the rest evenly, so that no block is very short.

    Args:
        pieces: The name of a document and its next token ids. A document ends where the name
            changes.
        start, end: The ids of `[CLS]` and `[SEP]`.
        block_size: The largest number of tokens.
        is_causal: Whether the blocks are for causal language modelling.
    """
    before = [] if is_causal else [start]
    after = [] if is_causal else [end]
    capacity = block_size - len(before) - len(after)
    for _, own_pieces in groupby(pieces, key=itemgetter(0)):
        ids = [start] if is_causal else []
        for _, more in own_pieces:
            ids.extend(more)
            whole = max(len(ids) // capacity - 1, 0) * capacity
            for at in range(0, whole, capacity):
                yield [*before, *ids[at : at + capacity], *after]
            ids = ids[whole:]
        if is_causal:
            ids.append(end)
        for block in np.array_split(ids, -(-len(ids) // capacity) or 1):
            if len(block):
                yield [*before, *block.tolist(), *after]


def document_ids(tokenizer: PreTrainedTokenizerBase) -> Any:
    """The two ids before and after a document: of [CLS] and [SEP], or of the start and end tokens
    of a tokenizer without them. If there is no start token, as in Qwen's tokenizers, a document
    begins after the end of another one.

    Raises:
        InputError: if the tokenizer has no token for the end.
    """
    last = tokenizer.sep_token or tokenizer.eos_token
    if last is None:
        raise InputError(
            "the tokenizer has no token for the end of a text; its tokenizer_config.json must "
            "name an eos_token"
        )
    first = tokenizer.cls_token or tokenizer.bos_token or last
    # For transformers, the result may also be a single number.
    return tokenizer.convert_tokens_to_ids([first, last])


def stop_after_documents(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let `generate` stop at the token that ends the documents in training."""
    _, end = document_ids(tokenizer)
    if end not in np.atleast_1d(model.generation_config.eos_token_id):
        model.generation_config.eos_token_id = end


def blocks(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    is_causal: bool,
) -> Iterator[dict[str, list[int]]]:
    """The blocks of rows with `document` and `text`, as examples; see `cut_blocks`."""
    start, end = document_ids(tokenizer)
    pieces = _tokenized(rows, tokenizer)
    for ids in cut_blocks(pieces, start, end, block_size, is_causal):
        block = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if is_causal:
            block["labels"] = ids
        yield block


def _tokenized(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[str, list[int]]]:
    for document, lines in groupby(rows, key=itemgetter("document")):
        # The lines of a document are encoded together, because a tokenizer may join line ends, or
        # put a space at the beginning of each text.
        while part := list(islice(lines, NUM_LINES_AT_ONCE)):
            encoded: Any = tokenizer(
                "".join(line["text"] for line in part),
                add_special_tokens=False,
                truncation=False,
                return_attention_mask=False,
                verbose=False,
            )
            yield document, encoded["input_ids"]


class BlockCollator(DataCollatorForLanguageModeling):
    """The transformers collator, with at least one masked token in every batch.

    In a batch of a few tokens, the random choice may mask none of them. A model could not learn
    from such a batch, and very short text could not be evaluated at all.
    """

    def torch_mask_tokens(
        self,
        inputs: torch.Tensor,
        special_tokens_mask: Any | None = None,
        offset_mapping: Any | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs with masks `(B, L)`, and labels `(B, L)` that are -100 at all other tokens."""
        ids = inputs.clone()
        inputs, labels = super().torch_mask_tokens(inputs, special_tokens_mask, offset_mapping)
        if (labels == IGNORE_INDEX).all():
            special = torch.tensor(self.tokenizer.all_special_ids)
            words = (~torch.isin(ids, special)).nonzero()
            if len(words):
                row, place = words[torch.randint(len(words), (), generator=self.generator)]
                labels[row, place] = ids[row, place]
                inputs[row, place] = self.tokenizer.mask_token_id
        return inputs, labels


def batches(
    model: Any, encoded: Any, collator: Any, batch_size: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Batches of encoded rows in their order, on the device of the model."""
    for batch in DataLoader(encoded, batch_size=batch_size, collate_fn=collator):
        yield {name: tensor.to(model.device) for name, tensor in batch.items()}
