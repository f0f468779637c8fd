"""The task tag: every token of a sentence gets a tag."""

from __future__ import annotations

import re
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

from ..data.data_files import Row, file_format, read_tagged, value_of
from ..errors import InputError
from ..evaluate.metrics import Metrics, tagging_metrics
from ..evaluate.report import LabelReport, Outcome, report_of_classes, report_of_entities
from .base import Task
from .labels import LabelData, LabelMetrics, LabelModel
from .task_arguments import TagDataArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer

    from hf_roformer_lite.model.text_features import RoFormerLiteTextScores, RoFormerLiteWordScores

    from ..evaluate.baselines import Baselines
    from ..train.text_scores_weights import Split

_IOB = re.compile(r"O|[BI]-.+")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")


class TagData(LabelData):
    """Sentences: rows of `tokens` and as many `tags`."""

    label_word = "tag"
    args: TagDataArguments

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

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        joiner = "" if self.unit == "characters" else " "
        return (joiner.join(row["tokens"]) for row in rows)

    def inspect(self, rows: DatasetDict) -> None:
        tags = set(chain.from_iterable(rows["train"]["tags"]))
        self.has_entities = are_entities(tags)
        if self.unit == "auto":
            sample = rows["train"][: min(len(rows["train"]), 1000)]["tokens"]
            characters = "".join(chain.from_iterable(sample))
            mostly_han = len(_HAN.findall(characters)) > len(characters) / 2
            self.unit = "characters" if mostly_han and self.has_entities else "words"
        if self.unit == "characters":
            tags |= {"I" + tag[1:] for tag in tags if _IOB.fullmatch(tag) and tag != "O"}
        self.set_labels(sorted(tags, key=lambda tag: (tag != "O", tag[1:], tag)))

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        super().inspect_model(config, settings)
        self.has_entities = are_entities(self.labels)
        self.unit = settings.get("unit", "words")

    def settings(self) -> dict[str, Any]:
        return {"unit": self.unit, **super().settings()}

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


class TagModel(LabelModel):
    """An encoder with a head for the tag of each token, and a conditional random field on words beside it."""

    architecture = "ForTokenClassification"
    auto_model = AutoModelForTokenClassification

    def fit_text_scores(
        self, tokens: torch.Tensor, train: Dataset, config: PreTrainedConfig
    ) -> RoFormerLiteWordScores:
        from ..train.text_scores_fit import fit_word_scores

        return fit_word_scores(tokens, train["input_ids"][:], [np.array(row) for row in train["labels"]], config)


class TagMetrics(LabelMetrics):
    """F1 of whole entities by seqeval, where the tags mark entities; otherwise accuracy and F1 of the tags."""

    data: TagData

    @property
    def names(self) -> Sequence[str]:
        return ("f1", "precision", "recall", "accuracy") if self.data.has_entities else ("accuracy", "macro_f1")

    @property
    def main(self) -> str:
        return "f1" if self.data.has_entities else "accuracy"

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    def compute(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        return self._measure(prediction.predictions[: len(rows)], prediction.label_ids[: len(rows)])

    def _measure(self, best: Iterable[np.ndarray], answers: Iterable[np.ndarray]) -> Metrics:
        return tagging_metrics(*self._tags(best, answers), self.data.has_entities)

    def _tags(self, best: Iterable[np.ndarray], answers: Iterable[np.ndarray]) -> tuple[list[list[str]], ...]:
        """Predicted and true tags of each sentence, of the best class and the right one at each of its tokens."""
        names, predicted, true = list(self.data.labels), [], []
        for ids, labels in zip(best, answers, strict=True):
            predicted.append([names[i] for i in ids[labels != -100]])
            true.append([names[i] for i in labels[labels != -100]])
        return predicted, true

    def outcomes(self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset) -> list[Outcome]:
        found = []
        tags = self._tags(prediction.predictions[: len(rows)], prediction.label_ids[: len(rows)])
        for row, predicted, true in zip(rows, *tags, strict=True):
            tokens, _ = self.data.units(row["tokens"], row["tags"])
            wrong = sum(ours != theirs for ours, theirs in zip(predicted, true, strict=True))
            columns = {"tokens": tokens, "tags": true, "prediction": predicted}
            found.append(Outcome(row["origin"], columns, wrong, true, predicted))
        return found

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        true, predicted = [outcome.true for outcome in outcomes], [outcome.predicted for outcome in outcomes]
        if self.data.has_entities:
            return report_of_entities(true, predicted)
        return report_of_classes([*chain(*true)], [*chain(*predicted)], list(self.data.labels))

    def split_of(self, trainer: Trainer, scores: RoFormerLiteTextScores, encoded: Dataset) -> Split:
        from ..train.text_scores_weights import make_split

        ids, answers = encoded["input_ids"][:], [np.array(row) for row in encoded["labels"]]
        trainer.preprocess_logits_for_metrics = None
        rows = trainer.predict(encoded).predictions[: len(ids)]
        trainer.preprocess_logits_for_metrics = self.reduce_logits
        logits = np.concatenate([row[: len(row_ids)] for row, row_ids in zip(rows, ids, strict=True)])
        return make_split(scores, ids, logits, np.concatenate(answers), partial(self._measure_flat, answers=answers))

    def _measure_flat(self, logits: np.ndarray, answers: list[np.ndarray]) -> Metrics:
        """Metrics for the logits of all tokens, one sentence after another."""
        return self._measure(np.split(logits.argmax(-1), np.cumsum([len(row) for row in answers])[:-1]), answers)

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import tagging_baselines

        sentences = {
            split: tuple(zip(*(self.data.units(row["tokens"], row["tags"]) for row in rows[split]), strict=True))
            for split in rows
        }
        return tagging_baselines(self.data.has_entities, sentences.pop("train"), sentences)

    def notes(self, model: PreTrainedModel) -> list[str]:
        if not self.data.has_entities:
            return ["Accuracy and F1 are fractions from 0 to 1; macro F1 is the mean over the tags."]
        return [
            "Precision, recall and F1 count whole entities (seqeval), accuracy counts tokens; all are fractions from "
            "0 to 1."
        ]


class TagTask(Task):
    """Every token of a sentence gets a tag."""

    arguments = TagDataArguments
    pipeline_tag = "token-classification"
    data_class, model_class, metrics_class = TagData, TagModel, TagMetrics


def are_entities(tags: Collection[str]) -> bool:
    """Whether all tags are those of IOB2."""
    return all(_IOB.fullmatch(tag) for tag in tags) and len(tags) > 1


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
