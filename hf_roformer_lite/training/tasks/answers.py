"""What a saved model is for its task, what it is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

if TYPE_CHECKING:
    from ...engines.loading import Engine


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
        columns: As it writes it behind the columns of a table.
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
