"""A loaded model with its tokenizer, as the tasks use it to predict."""

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import BatchEncoding, DataCollatorWithPadding, PreTrainedTokenizerBase

from ..baseline.files import JoinedBaseline
from ..data.blocks import batches
from ..errors import InputError

# An input is a text, a pair of texts, or the words of a sentence.
Input = str | list[str]

# A tokenizer adds at most this many tokens to a text or a pair of texts.
MAX_ADDED_TOKENS = 8
# At least this many windows of long texts are read at once, even if the batch size is smaller.
MIN_ROWS_AT_ONCE = 8
# This fraction of a window overlaps with the next one.
OVERLAP = 0.25

logger = logging.getLogger(__name__)


@dataclass
class LoadedModel:
    """A saved model that is ready to predict.

    Args:
        model: A transformers or sentence-transformers model, or an exported graph.
        tokenizer: The saved tokenizer.
        positions: The maximum number of positions; None if there is no limit.
        joined: The baseline that joins the answer of the model; None for the model alone.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    positions: int | None = None
    joined: JoinedBaseline | None = None

    @torch.no_grad()
    def in_batches(
        self,
        inputs: Sequence[Input],
        batch_size: int,
        answer: Callable[[list[Input]], list[Any]],
    ) -> list[Any]:
        """The results of `answer` for the inputs in their order, with None for an empty input.

        Inputs of similar length share a batch, which saves time in models that compute padding.

        Args:
            inputs: Texts, pairs of texts or lists of words, depending on the task.
            batch_size: The number of inputs in a batch.
            answer: Returns a result for each input of a batch, none of which is empty.
        """
        answers: list[Any] = [None] * len(inputs)
        places = [place for place, given in enumerate(inputs) if not is_empty(given)]
        places.sort(key=lambda place: len("".join(inputs[place])))
        for start in range(0, len(places), batch_size):
            batch = places[start : start + batch_size]
            found = answer([inputs[place] for place in batch])
            for place, one in zip(batch, found, strict=True):
                answers[place] = one
        return answers

    @torch.no_grad()
    def logits(self, encoded: BatchEncoding, batch_size: int) -> list[np.ndarray]:
        """The logits of each encoded row, `(labels,)` or `(L, labels)`, where `L` may include
        padding on the right.

        Args:
            encoded: The rows, without padding.
            batch_size: The number of texts from which the rows were made. So many rows are read at
                once, or a few more.
        """
        rows_of_values = zip(*encoded.values(), strict=True)
        rows = [dict(zip(encoded, values, strict=True)) for values in rows_of_values]
        collator = DataCollatorWithPadding(right_sided(self.tokenizer))
        found = []
        for batch in batches(self.model, rows, collator, max(batch_size, MIN_ROWS_AT_ONCE)):
            logits = self.model(**batch).logits
            if logits.isnan().any():
                raise InputError(
                    "the model returns NaN instead of scores, probably because its training "
                    "diverged; train it again with a lower --learning_rate, and with another "
                    "--output_dir or with --overwrite_output_dir"
                )
            found.extend(logits.double().cpu().numpy())
        return found

    def encoded(self, inputs: Sequence[Input], **options: Any) -> BatchEncoding:
        """The output of the tokenizer for texts, or for pairs of texts."""
        texts = [given if isinstance(given, str) else tuple(given) for given in inputs]
        return self.tokenizer(texts, **options)

    def lengths(self, inputs: Sequence[Input], **options: Any) -> list[int]:
        """The number of tokens of each text, or of each pair of texts."""
        encoded = self.encoded(inputs, truncation=False, verbose=False, **options)
        return [len(ids) for ids in encoded["input_ids"]]

    def warn_of_truncation(self, inputs: Sequence[Input]) -> None:
        """Warn about inputs that are too long for the model."""
        longest = getattr(self.model, "max_seq_length", None) or self.tokenizer.model_max_length
        # A token has at least one byte, so texts with fewer bytes fit and need not be tokenized.
        room = longest - MAX_ADDED_TOKENS
        doubtful = [given for given in inputs if len("".join(given).encode()) > room]
        if not doubtful:
            return
        truncated = sum(length > longest for length in self.lengths(doubtful))
        if truncated:
            logger.warning("%d lines are truncated to %d tokens", truncated, longest)

    def check_positions(self, inputs: list[str], more: int = 0, **options: Any) -> None:
        """Reject an input that, together with `more` tokens, exceeds the positions of the model.

        Raises:
            InputError: with the input and both numbers.
        """
        if self.positions is None:
            return
        for given, length in zip(inputs, self.lengths(inputs, **options), strict=True):
            if length + more > self.positions:
                generated = f", including {more} to generate (--max_new_tokens)" if more else ""
                raise InputError(
                    f"{given[:40]!r} needs {length + more} positions{generated}, but this model "
                    f"has positions for only {self.positions}"
                )


def right_sided(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer that pads and truncates on the right, for tasks with a label for each
    token."""
    tokenizer = copy(tokenizer)
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = "right"
    return tokenizer


def window_options(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The arguments with which a fast tokenizer divides a long text into overlapping windows. Its
    output then has `overflow_to_sample_mapping`, the number of the text of each window."""
    room = tokenizer.model_max_length - tokenizer.num_special_tokens_to_add()
    return {
        "truncation": True,
        "return_overflowing_tokens": True,
        "stride": int(OVERLAP * max(0, room)),
    }


def texts_of(
    token_ids: np.ndarray | torch.Tensor, tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """The text of generated tokens `(rows, length)`, as the `prediction` of each row."""
    texts = tokenizer.batch_decode(token_ids, skip_special_tokens=True)
    return [{"prediction": text.strip()} for text in texts]


def line_of(given: Input) -> str:
    """A text, or a pair of texts separated by a tab."""
    return given if isinstance(given, str) else "\t".join(given)


def is_empty(given: Input) -> bool:
    parts = [given] if isinstance(given, str) else given
    return not parts or not all(part.strip() for part in parts)
