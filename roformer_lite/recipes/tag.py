"""The task tag: every token of a sentence gets a tag."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import (
    AutoModelForTokenClassification,
    BatchEncoding,
    DataCollatorForTokenClassification,
    PreTrainedModel,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteForTokenClassification
from hf_roformer_lite.model.losses import IGNORE_INDEX
from hf_roformer_lite.model.text_features import IMPOSSIBLE, RoFormerLiteWordScores
from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ..data.data_files import Row, file_format, read_tagged, text_of, value_of
from ..errors import InputError
from ..evaluate.metrics import Metrics, tagging_metrics
from ..evaluate.report import LabelReport, Outcome, report_of_classes, report_of_entities
from ..tasks.task_arguments import TagDataArguments
from .base import Answer, Input, Shown, quoted
from .labels import LabelRecipe, labels_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer

    from hf_roformer_lite.model.text_features import RoFormerLiteTextScores

    from ..answers import SavedModel
    from ..evaluate.baselines import Baselines, BaselinesRight
    from ..train.run import Run
    from ..train.text_scores_weights import Split

CHARACTERS = "characters"
WORDS = "words"
# Of the entities of the training data. With more, they are tagged by other rules than IOB2.
MAX_IMPOSSIBLE_SHARE = 0.01
# Sentences from which `--unit auto` is found.
NUM_INSPECTED = 1000
# Parts of long sentences that are tagged at once, however small a batch is.
MIN_PARTS_AT_ONCE = 8
IOB2 = re.compile(r"O|[BI]-.+")
HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")


class Tag(LabelRecipe):
    """Every token of a sentence gets a tag.

    A row has `tokens` and as many `tags`. What the model tags are its units: the tokens, or their
    characters. The model is an encoder with a head for the tag of each token, and a conditional
    random field on words beside it.
    """

    options_class = TagDataArguments
    options: TagDataArguments
    pipeline_tag = "token-classification"
    architecture = "ForTokenClassification"
    auto_model = AutoModelForTokenClassification
    label_word = "tag"
    labelled = "tokens"
    names_column = "tags"
    outside = "O"

    def __init__(self, options: TagDataArguments):
        super().__init__(options)
        self.unit: str = options.unit
        # What stands between two units in the text that the tokenizer gets. None: it gets the units
        # in a list.
        self.joiner: str | None = " "
        self.has_entities = False
        # Tags that the training data lack, which the rest of a word may need.
        self.added: set[str] = set()

    # Reading the data.

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) == ".jsonl":
                yield from super().read_rows([path])
                continue
            token_column = self.options.token_column or "1"
            tag_column = self.options.tag_column or "-1"
            for column in (token_column, tag_column):
                if not re.fullmatch(r"-?\d+", column):
                    raise InputError(
                        f"{path}: --token_column and --tag_column must be numbers here, not "
                        f"{token_column} and {tag_column}"
                    )
            yield from read_tagged(path, int(token_column), int(tag_column))

    def select_columns(self, row: Row) -> Row:
        tokens = self.texts_in(row, self.options.token_column or "tokens", "token_column")
        tags = self.texts_in(row, self.options.tag_column or "tags", "tag_column")
        self.require(len(tokens) == len(tags), row, f"{len(tokens)} tokens, but {len(tags)} tags")
        return {"tokens": tokens, "tags": tags, "origin": row["origin"]}

    def texts_in(self, row: Row, column: str, option: str) -> list[str]:
        """The list of texts in a column."""
        value = value_of(row, column, option)
        message = f"column {column!r} must be a list of texts, none empty"
        self.require(are_texts(value), row, message)
        return value

    def is_empty(self, row: Row) -> bool:
        return not row["tokens"]

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """With a space between two units, across which no token is made."""
        return (" ".join(self.units(row["tokens"])) for row in rows)

    def inspect(self, rows: DatasetDict) -> None:
        tags = set(chain.from_iterable(rows["train"]["tags"]))
        self.has_entities = are_entities(tags)
        if self.unit == "auto":
            number = min(len(rows["train"]), NUM_INSPECTED)
            sample = rows["train"][:number]["tokens"]
            text = "".join(chain.from_iterable(sample))
            is_chinese = len(HAN.findall(text)) > len(text) / 2
            self.unit = CHARACTERS if is_chinese and self.has_entities else WORDS
        if self.has_entities:
            self.added = {"I" + tag[1:] for tag in tags if tag != "O"} - tags
            tags |= self.added
        self.set_labels(sorted(tags, key=lambda tag: (tag != "O", tag[1:], tag)))

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        super().inspect_model(config, settings)
        self.has_entities = are_entities(self.labels)
        self.unit = settings.get("unit", WORDS)
        self.joiner = settings.get("joiner")

    def settings(self) -> dict[str, Any]:
        return {"unit": self.unit, "joiner": self.joiner, **super().settings()}

    def units(self, tokens: Iterable[str]) -> list[str]:
        """The units of a sentence."""
        if self.unit != CHARACTERS:
            return list(tokens)
        return [character for token in tokens for character in characters_of(token)]

    def unit_tags(self, row: Row) -> list[str]:
        """The tags of the units of a row."""
        if self.unit != CHARACTERS:
            return row["tags"]
        found = []
        for token, tag in zip(row["tokens"], row["tags"], strict=True):
            later = "I" + tag[1:] if tag.startswith("B-") else tag
            found.append(tag)
            found.extend([later] * (len(characters_of(token)) - 1))
        return found

    # The tokenizer, and encoding.

    @property
    def new_tokenizer(self) -> dict[str, Any]:
        if self.unit == CHARACTERS:
            return {"algorithm": "wordpiece", "lowercase": False}
        return {}

    def adapt_tokenizer(self) -> None:
        """Where characters have tags, let no token have two of them, whatever the text that is
        encoded later. A tokenizer of a class that would forget that when it is loaded again stays
        as it is, and gets split words."""
        if self.unit != CHARACTERS:
            self.joiner = " " if self.tokenizer.is_fast else None
            return
        if type(self.tokenizer) not in (RoFormerLiteTokenizer, TokenizersBackend):
            self.joiner = None
            return
        self.joiner = ""
        backend = self.tokenizer.backend_tokenizer
        kept = [] if backend.pre_tokenizer is None else [backend.pre_tokenizer]
        is_adapted = kept and len(kept[0].pre_tokenize_str("ab")) == 2
        if is_adapted:
            return
        without_space = pre_tokenizers.Split(Regex(r"\s"), "removed")
        # Here, (?m) lets the dot match line breaks.
        characters = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([without_space, characters, *kept])

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """Without `training`, a sentence is encoded as it is answered: a long one is several
        examples, one after another."""
        if not training:
            self.note_foreign(self.unit_tags(row) for row in rows)
        return rows.map(
            partial(self.encode_batch, training=training),
            batched=True,
            remove_columns=rows.column_names,
            desc="Encoding",
        )

    def encode_batch(self, batch: dict[str, list], training: bool) -> dict[str, list]:
        split = self.known_units if training else self.split
        sentences = split([self.units(tokens) for tokens in batch["tokens"]])
        parts: list[list[str]] = []
        tags: list[list[str]] = []
        for number, own_parts in enumerate(sentences):
            row = {name: column[number] for name, column in batch.items()}
            left = iter(self.unit_tags(row))
            for part in own_parts:
                parts.append(part)
                tags.append(list(islice(left, len(part))))
        inputs, starts = self.encode_units(parts, truncation=True)
        labels = []
        for ids, places, own_tags in zip(inputs["input_ids"], starts, tags, strict=True):
            own_labels = [IGNORE_INDEX] * len(ids)
            for unit, place in places.items():
                # Of entities, 0 is O.
                own_labels[place] = self.labels.get(own_tags[unit], 0)
            labels.append(own_labels)
        return {**inputs, "labels": labels}
