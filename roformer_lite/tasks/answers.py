"""What a task predicts with, what it is given, and what it answers."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

if TYPE_CHECKING:
    from ..predict.engines import Engine


logger = logging.getLogger(__name__)


@dataclass
class SavedModel:
    """What a task predicts with: a model, or an engine in its place, a tokenizer, as saved, and the task's
    `prediction_settings`."""

    model: PreTrainedModel | Engine
    tokenizer: PreTrainedTokenizerBase
    settings: dict[str, Any]


Input = str | list[str]  # a text; or a pair of texts, or the tokens of a sentence


@dataclass
class Answer:
    """What a model answers to one input.

    Args:
        line: As `predict` writes it for a line of text.
        columns: As it writes it after the columns of a table.
    """

    line: str
    columns: dict[str, Any]


@dataclass
class Outcome:
    """What a model answered to one labelled row, or to one block of the text of a language model.

    Args:
        origin: Where the row comes from, as `file:line`.
        columns: Inputs, what is right and what was answered, for a table.
        mistake: 0 where the answer is right, and larger the worse it is, to find the worst ones.
        true, predicted: The labels of a row, or the tags of a sentence. Empty for tasks without labels.
    """

    origin: str
    columns: dict[str, Any]
    mistake: float
    true: list[str] = field(default_factory=list)
    predicted: list[str] = field(default_factory=list)


def text_answer(text: str) -> Answer:
    """Text as an answer; a line has no line breaks."""
    return Answer(" ".join(text.split("\n")).strip(), {"prediction": text.strip()})


def encode_lines(tokenizer: PreTrainedTokenizerBase, *columns: list[str]) -> BatchEncoding:
    """Tensors of lines, or of pairs of lines, with a warning when some are truncated to what the model takes."""
    encoded = tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
    if encoded["input_ids"].shape[1] >= tokenizer.model_max_length:
        whole = tokenizer(*columns, truncation=False, verbose=False)["input_ids"]
        truncated = sum(len(ids) > tokenizer.model_max_length for ids in whole)
        if truncated:
            logger.warning("%d lines are truncated to %d tokens", truncated, tokenizer.model_max_length)
    return encoded


def generation_limits(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate` for the options `beams` and `max_new_tokens`, where they were given."""
    arguments = {"num_beams": options["beams"]} if "beams" in options else {}
    if "max_new_tokens" in options:
        arguments |= {"max_new_tokens": options["max_new_tokens"], "max_length": None}  # in place of the saved limit
    return arguments
