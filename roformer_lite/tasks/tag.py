"""The task tag: every token of a sentence gets a tag."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig

from ..data.data_files import Row, file_format, read_tagged, text_of, value_of
from ..errors import InputError
from ..evaluate.metrics import ByLabel, Metrics, metrics_by_entity, metrics_by_label, tagging_metrics
from .answers import Answer, Input, Outcome, SavedModel
from .base import quoted
from .labels import LabelTask
from .task_arguments import TagDataArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer

    from hf_roformer_lite.model.text_features import RoFormerLiteTextScores, RoFormerLiteWordScores

    from ..evaluate.baselines import Baselines
    from ..train.text_scores_weights import Split

_PARTS_AT_ONCE = 8  # of sentences that are too long
_IOB = re.compile(r"O|[BI]-.+")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")


class TagTask(LabelTask):
    """Every token of a sentence gets a tag."""

    architecture = "ForTokenClassification"
    auto_model = AutoModelForTokenClassification
    pipeline_tag = "token-classification"
    label_word = "tag"
    metric_names = ("f1", "precision", "recall", "accuracy", "macro_f1")
    arguments = TagDataArguments

    def __init__(self, args: TagDataArguments):
        super().__init__(args)
        self.unit = args.unit
        self.has_entities = False

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) == ".jsonl":
                yield from super().read_rows([path])
                continue
            columns = (self.args.token_column or "1", self.args.tag_column or "-1")
            if not all(re.fullmatch(r"-?\d+", column) for column in columns):
                raise InputError(
                    f"{path}: --token_column and --tag_column must be numbers here, not {' and '.join(columns)}"
                )
            yield from read_tagged(path, int(columns[0]), int(columns[1]))

    def select_columns(self, row: Row) -> Row:
        names = {"tokens": self.args.token_column or "tokens", "tags": self.args.tag_column or "tags"}
        raw = {role: value_of(row, column, f"{role[:-1]}_column") for role, column in names.items()}
        for role, value in raw.items():
            is_list = isinstance(value, list) and all(isinstance(item, str) and item.strip() for item in value)
            self.require(is_list, row, f"column {names[role]!r} must be a list of texts, none empty")
        tokens, tags = raw["tokens"], raw["tags"]
        self.require(len(tokens) == len(tags), row, f"{len(tokens)} tokens, but {len(tags)} tags")
        return {**raw, "origin": row["origin"]}

    def is_empty(self, row: Row) -> bool:
        return not row["tokens"]

    def inspect_training_data(self, rows: Dataset) -> None:
        tags = set(chain.from_iterable(rows["tags"]))
        self.has_entities = are_entities(tags)
        if self.unit == "auto":
            characters = "".join(chain.from_iterable(rows[: min(len(rows), 1000)]["tokens"]))
            mostly_han = len(_HAN.findall(characters)) > len(characters) / 2
            self.unit = "characters" if mostly_han and self.has_entities else "words"
        if self.unit == "characters":
            tags |= {"I" + tag[1:] for tag in tags if _IOB.fullmatch(tag) and tag != "O"}
        self.set_labels(sorted(tags, key=lambda tag: (tag != "O", tag[1:], tag)))

    def units(self, tokens: list[str], tags: list[str]) -> tuple[list[str], list[str]]:
        """The units of a sentence that the model tags, and their tags: its tokens, or the characters of its tokens."""
        if self.unit == "words":
            return tokens, tags
        pairs = [
            (character, "I" + tag[1:] if position and tag.startswith("B-") else tag)
            for token, tag in zip(tokens, tags, strict=True)
            for position, character in enumerate("".join(token.split()))
        ]
        return [character for character, _ in pairs], [tag for _, tag in pairs]

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        joiner = "" if self.unit == "characters" else " "
        return (joiner.join(row["tokens"]) for row in rows)

    def prediction_settings(self) -> dict[str, Any]:
        return {"unit": self.unit, **super().prediction_settings()}

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        limit = self.args.max_length if training else None  # evaluation counts every token

        def tokenize(batch: dict[str, list]) -> dict[str, list]:
            sentences = [self.units(*pair) for pair in zip(batch["tokens"], batch["tags"], strict=True)]
            inputs = encode_words(self.tokenizer, [tokens for tokens, _ in sentences], limit)
            labels = []
            for i, (_, tags) in enumerate(sentences):
                numbers = [self.label_number(tag, batch["origin"][i]) for tag in tags]
                labels.append([-100 if word is None else numbers[word] for word in first_pieces(inputs.word_ids(i))])
            return {**inputs, "labels": labels}

        return rows.map(tokenize, batched=True, remove_columns=rows.column_names, desc="Encoding")

    def collator(self, model: PreTrainedModel) -> DataCollatorForTokenClassification:
        return DataCollatorForTokenClassification(self.tokenizer)

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    def metrics(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        return tagging_metrics(*self._tags(prediction, len(rows)), self.has_entities)

    def metrics_by_label(self, prediction: EvalPrediction, rows: Dataset) -> ByLabel:
        predicted, true = self._tags(prediction, len(rows))
        if self.has_entities:
            return metrics_by_entity(predicted, true)
        numbers = [np.array([self.labels[tag] for row in tags for tag in row]) for tags in (predicted, true)]
        return metrics_by_label(*numbers, list(self.labels))

    def _tags(self, prediction: EvalPrediction, rows: int) -> tuple[list[list[str]], list[list[str]]]:
        """Predicted and true tags of each of the first `rows` sentences."""
        names, predicted, true = list(self.labels), [], []
        for ids, labels in zip(prediction.predictions[:rows], prediction.label_ids[:rows], strict=True):
            predicted.append([names[i] for i in ids[labels != -100]])
            true.append([names[i] for i in labels[labels != -100]])
        return predicted, true

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        super().inspect_model(config, settings)
        self.has_entities = are_entities(self.labels)
        self.unit = settings.get("unit", "words")

    def outcomes(self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset) -> list[Outcome]:
        found = []
        for row, predicted, true in zip(rows, *self._tags(prediction, len(rows)), strict=True):
            tokens, _ = self.units(row["tokens"], row["tags"])
            wrong = sum(ours != theirs for ours, theirs in zip(predicted, true, strict=True))
            columns = {"tokens": tokens, "tags": true, "prediction": predicted}
            found.append(Outcome(row["origin"], columns, wrong, true, predicted))
        return found

    @property
    def main_metric(self) -> str:
        return "f1" if self.has_entities else "accuracy"

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import tagging_baselines

        sentences = {
            split: tuple(zip(*(self.units(row["tokens"], row["tags"]) for row in rows[split]), strict=True))
            for split in rows
        }
        return tagging_baselines(self.has_entities, sentences.pop("train"), sentences)

    def fit_text_scores(
        self, tokens: torch.Tensor, train: Dataset, config: PreTrainedConfig
    ) -> RoFormerLiteWordScores:
        from ..train.text_scores_fit import fit_word_scores

        return fit_word_scores(tokens, train["input_ids"][:], [np.array(row) for row in train["labels"]], config)

    def split_of(self, trainer: Trainer, scores: RoFormerLiteTextScores, encoded: Dataset) -> Split:
        from ..train.text_scores_weights import make_split

        ids, answers = encoded["input_ids"][:], [np.array(row) for row in encoded["labels"]]
        trainer.preprocess_logits_for_metrics = None
        rows = trainer.predict(encoded).predictions[: len(ids)]
        trainer.preprocess_logits_for_metrics = self.reduce_logits
        logits = np.concatenate([row[: len(row_ids)] for row, row_ids in zip(rows, ids, strict=True)])
        measure = partial(self._measure_flat, answers=answers)
        return make_split(scores, ids, logits, np.concatenate(answers), measure)

    def _measure_flat(self, logits: np.ndarray, answers: list[np.ndarray]) -> Metrics:
        """Metrics for the logits of all tokens, one sentence after another."""
        names, best = list(self.labels), np.split(logits.argmax(-1), np.cumsum([len(row) for row in answers])[:-1])
        predicted = [[names[i] for i in found[row != -100]] for found, row in zip(best, answers, strict=True)]
        true = [[names[i] for i in row[row != -100]] for row in answers]
        return tagging_metrics(predicted, true, self.has_entities)

    def example_line(self, row: Row) -> str:
        return next(iter(self.texts([row])))

    def neutral_example(self) -> Row:
        tokens = list("这是一句话") if self.unit == "characters" else ["This", "is", "a", "sentence", "."]
        return {"tokens": tokens, "tags": ["O"] * len(tokens)}

    def snippet(self, model_id: str, row: Row) -> str:
        return self.loading_code(model_id) + (
            f"tokens = {quoted(self.units(row['tokens'], row['tags'])[0])}\n"
            "inputs = tokenizer(tokens, is_split_into_words=True, return_tensors='pt')\n"
            "tags = model(**inputs).logits.argmax(-1)[0].tolist()\n"
            "first = {word: place for place, word in reversed(list(enumerate(inputs.word_ids())))}\n"
            "print([(token, model.config.id2label[tags[first[i]]]) for i, token in enumerate(tokens)])"
        )

    def metric_notes(self, model: PreTrainedModel) -> list[str]:
        if not self.has_entities:
            return ["Accuracy and F1 are fractions from 0 to 1; macro F1 is the mean over the tags."]
        return [
            "Precision, recall and F1 count whole entities (seqeval), accuracy counts tokens; all are fractions from "
            "0 to 1."
        ]

    @classmethod
    def input_of(cls, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        tokens = value_of(row, text_column, "text_column")
        are_tokens = isinstance(tokens, list) and all(isinstance(token, str) and token.strip() for token in tokens)
        return tokens if are_tokens else text_of(row, text_column)

    @classmethod
    def answer_columns(cls, saved: SavedModel, options: dict[str, Any]) -> list[str]:
        return ["tags"]

    @classmethod
    def predict(cls, saved: SavedModel, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """`token/TAG token/TAG …` as a line, the tags alone as a column. The tokens of a text are separated by spaces,
        or are its characters if the model was trained so.

        A sentence longer than what the model takes is tagged in parts, each for itself; of a word longer than that
        only the beginning is read.
        """
        sentences = [cls.tokens_of(saved, given) for given in inputs]
        parts = [(i, part) for i, words in enumerate(sentences) for part in split_sentence(saved.tokenizer, words)]
        tags: list[list[str]] = [[] for _ in sentences]
        at_once = max(len(inputs), _PARTS_AT_ONCE)
        for first in range(0, len(parts), at_once):
            batch = parts[first : first + at_once]
            for (i, _), found in zip(batch, _tags_of(saved, [part for _, part in batch]), strict=True):
                tags[i] += found
        return [
            Answer(" ".join(map("/".join, zip(*pair, strict=True))), {"tags": pair[1]})
            for pair in zip(sentences, tags, strict=True)
        ]

    @staticmethod
    def tokens_of(saved: SavedModel, given: Input) -> list[str]:
        """The tokens of a text; those that are given stay as they are."""
        if isinstance(given, list):
            return given
        return list("".join(given.split())) if saved.settings.get("unit") == "characters" else given.split()


def are_entities(tags: Collection[str]) -> bool:
    """Whether all tags are those of IOB2."""
    return all(_IOB.fullmatch(tag) for tag in tags) and len(tags) > 1


def _tags_of(saved: SavedModel, sentences: list[list[str]]) -> Iterator[list[str]]:
    """The tag of each word, which is that of its first token."""
    encoded = encode_words(saved.tokenizer, sentences, saved.tokenizer.model_max_length)
    padded = saved.tokenizer.pad(encoded, return_tensors="pt").to(saved.model.device)
    best = saved.model(**padded).logits.argmax(-1).tolist()  # (B, L)
    for i, words in enumerate(sentences):
        first = {word: place for place, word in enumerate(first_pieces(encoded.word_ids(i))) if word is not None}
        yield [saved.model.config.id2label[best[i][first[word]]] for word in range(len(words))]


def split_sentence(tokenizer: PreTrainedTokenizerBase, words: list[str]) -> Iterator[list[str]]:
    """A sentence in parts of as many whole words as `model_max_length` has room for; one part if it has for all."""
    room = tokenizer.model_max_length - tokenizer.num_special_tokens_to_add()
    sizes = Counter(encode_words(tokenizer, [words]).word_ids(0))
    start, taken = 0, 0
    for number in range(len(words)):
        if taken and taken + sizes[number] > room:
            yield words[start:number]
            start, taken = number, 0
        taken += sizes[number]
    yield words[start:]


def encode_words(tokenizer: PreTrainedTokenizerBase, sentences: list[list[str]], max_length: int | None = None) -> Any:
    """Encode lists of words. A word without any token, such as a lone control character, is encoded as [UNK]."""
    options = {"is_split_into_words": True, "truncation": max_length is not None, "max_length": max_length}
    encoded = tokenizer(sentences, verbose=False, **options)
    whole = tokenizer(sentences, verbose=False, is_split_into_words=True) if max_length else encoded
    lost = [set(range(len(words))) - set(whole.word_ids(i)) for i, words in enumerate(sentences)]
    if any(lost):
        sentences = [
            [tokenizer.unk_token if j in lost[i] else word for j, word in enumerate(words)]
            for i, words in enumerate(sentences)
        ]
        encoded = tokenizer(sentences, verbose=False, **options)
    return encoded


def first_pieces(word_ids: list[int | None]) -> list[int | None]:
    """The number of each word at its first token, None at all other tokens."""
    return [
        word if position == 0 or word != word_ids[position - 1] else None for position, word in enumerate(word_ids)
    ]
