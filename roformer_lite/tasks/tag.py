"""The task tag: every token of a sentence gets a tag."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteForTokenClassification
from hf_roformer_lite.model.text_features import IMPOSSIBLE, RoFormerLiteWordScores
from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ..data.data_files import Row, file_format, read_tagged, value_of
from ..errors import InputError
from ..evaluate.metrics import Metrics, tagging_metrics
from ..evaluate.report import LabelReport, Outcome, report_of_classes, report_of_entities
from .base import Task
from .labels import LabelData, LabelMetrics, LabelModel, labels_of
from .task_arguments import TagDataArguments

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer

    from hf_roformer_lite.model.text_features import RoFormerLiteTextScores

    from ..evaluate.baselines import Baselines
    from ..text_scores.weights import Split
    from ..train.run import Run

# of the entities of the training data; with more they are tagged by other rules than IOB2
_MOST_IMPOSSIBLE = 0.01

_IOB = re.compile(r"O|[BI]-.+")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")


class TagData(LabelData):
    """Sentences: rows of `tokens` and as many `tags`."""

    label_word, labelled, outside, names_column = "tag", "tokens", "O", "tags"
    args: TagDataArguments

    def __init__(self, args: TagDataArguments):
        super().__init__(args)
        self.unit = args.unit
        self.joiner: str | None = " "
        self.has_entities = False
        # labels that the training data lack: the rest of a word may need them
        self.added: set[str] = set()

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
        names = {
            "tokens": self.args.token_column or "tokens",
            "tags": self.args.tag_column or "tags",
        }
        raw = {role: value_of(row, column, f"{role[:-1]}_column") for role, column in names.items()}
        for role, value in raw.items():
            is_list = isinstance(value, list) and all(
                isinstance(item, str) and item.strip() for item in value
            )
            self.require(
                is_list, row, f"column {names[role]!r} must be a list of texts, none empty"
            )
        tokens, tags = raw["tokens"], raw["tags"]
        self.require(len(tokens) == len(tags), row, f"{len(tokens)} tokens, but {len(tags)} tags")
        return {**raw, "origin": row["origin"]}

    def is_empty(self, row: Row) -> bool:
        return not row["tokens"]

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """With a space between two units, across which no token is made."""
        return (" ".join(self.units(row["tokens"], row["tags"])[0]) for row in rows)

    @property
    def new_tokenizer(self) -> dict[str, Any]:
        return {"algorithm": "wordpiece", "lowercase": False} if self.unit == "characters" else {}

    def adapt_tokenizer(self) -> None:
        """Where characters have tags, let no token have two of them, whatever the text that is
        encoded later. A tokenizer of a class that would forget that when it is loaded again stays
        as it is, and gets split words."""
        if self.unit != "characters":
            self.joiner = " " if self.tokenizer.is_fast else None
            return
        if type(self.tokenizer) not in (RoFormerLiteTokenizer, TokenizersBackend):
            self.joiner = None
            return
        self.joiner, backend = "", self.tokenizer.backend_tokenizer
        kept = [] if backend.pre_tokenizer is None else [backend.pre_tokenizer]
        if kept and len(kept[0].pre_tokenize_str("ab")) == 2:  # it is adapted already
            return
        without_space = pre_tokenizers.Split(Regex(r"\s"), "removed")
        # here, (?m) lets the dot match line breaks
        characters = pre_tokenizers.Split(Regex(r"(?m)."), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([without_space, characters, *kept])

    def inspect(self, rows: DatasetDict) -> None:
        tags = set(chain.from_iterable(rows["train"]["tags"]))
        self.has_entities = are_entities(tags)
        if self.unit == "auto":
            sample = rows["train"][: min(len(rows["train"]), 1000)]["tokens"]
            characters = "".join(chain.from_iterable(sample))
            mostly_han = len(_HAN.findall(characters)) > len(characters) / 2
            self.unit = "characters" if mostly_han and self.has_entities else "words"
        if self.has_entities:
            self.added = {"I" + tag[1:] for tag in tags if tag != "O"} - tags
            tags |= self.added
        self.set_labels(sorted(tags, key=lambda tag: (tag != "O", tag[1:], tag)))

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        super().inspect_model(config, settings)
        self.has_entities = are_entities(self.labels)
        self.unit, self.joiner = settings.get("unit", "words"), settings.get("joiner")

    def settings(self) -> dict[str, Any]:
        return {"unit": self.unit, "joiner": self.joiner, **super().settings()}

    def units(self, tokens: list[str], tags: list[str]) -> tuple[list[str], list[str]]:
        """The units of a sentence that the model tags, and their tags: its tokens, or the
        characters of its tokens."""
        if self.unit == "words":
            return tokens, tags
        pairs = [
            (character, "I" + tag[1:] if position and tag.startswith("B-") else tag)
            for token, tag in zip(tokens, tags, strict=True)
            for position, character in enumerate("".join(token.split()))
        ]
        return [character for character, _ in pairs], [tag for _, tag in pairs]

    def encode(self, rows: Dataset, training: bool) -> Dataset:
        """Without `training`, a sentence is encoded as `predict` does it: a long one is several
        examples, one after another, with the columns `part`, its number in the sentence, and
        `tags`, as they are in the data."""
        if not training:
            self.note_foreign(self.units(row["tokens"], row["tags"])[1] for row in rows)

        def tokenize(batch: dict[str, list]) -> dict[str, list]:
            sentences = [
                self.units(*pair) for pair in zip(batch["tokens"], batch["tags"], strict=True)
            ]
            extra: dict[str, list] = {}
            if not training:
                found = split_sentences(
                    self.tokenizer, [tokens for tokens, _ in sentences], self.joiner
                )
                sizes = [[len(part) for part in parts] for parts in found]
                sentences = [
                    (part, tags[start : start + len(part)])
                    for parts, (_, tags), own in zip(found, sentences, sizes, strict=True)
                    for part, start in zip(parts, np.cumsum([0, *own[:-1]]).tolist(), strict=True)
                ]
                extra["part"] = [number for own in sizes for number in range(len(own))]
                extra["tags"] = [tags for _, tags in sentences]
            words = [tokens for tokens, _ in sentences]
            inputs, firsts = encode_words(
                self.tokenizer, words, self.joiner, self.tokenizer.model_max_length
            )
            # 0 is O of entities
            numbers = [[self.labels.get(tag, 0) for tag in tags] for _, tags in sentences]
            labels = [
                [-100 if word is None else own[word] for word in first]
                for first, own in zip(firsts, numbers, strict=True)
            ]
            return {**inputs, **extra, "labels": labels}

        return rows.map(tokenize, batched=True, remove_columns=rows.column_names, desc="Encoding")

    def collator(self, model: PreTrainedModel) -> DataCollatorForTokenClassification:
        return DataCollatorForTokenClassification(self.tokenizer)


class TagModel(LabelModel):
    """An encoder with a head for the tag of each token, and a conditional random field on words
    beside it."""

    architecture = "ForTokenClassification"
    auto_model = AutoModelForTokenClassification

    def why_new_head(self, config: PreTrainedConfig) -> str:
        theirs, ours = set(labels_of(config)), set(self.data.labels)
        if ours - self.data.added <= theirs <= ours:
            self.data.set_labels(labels_of(config))
        return super().why_new_head(config)

    def complete(
        self,
        run: Run,
        trainer: Trainer,
        rows: DatasetDict,
        encoded: DatasetDict,
        metrics: TagMetrics,
    ) -> Baselines:
        """A model of this package also learns to answer one tag for each word, in a sequence that
        can be."""
        parts = super().complete(run, trainer, rows, encoded, metrics)
        from ..text_scores.token_bytes import token_bytes

        model, tokens = trainer.model, token_bytes(self.data.tokenizer)
        is_ours = (
            isinstance(model, RoFormerLiteForTokenClassification) and not trainer.is_fsdp_enabled
        )
        if not is_ours or tokens is None or self.data.joiner is None:
            return parts
        if model.text_scores is None:
            config = self._decoding(model.config)
            config.classifier_text_features = 0
            model.add_text_scores(RoFormerLiteWordScores(config, config.num_labels))
        scores = model.text_scores
        scores.decodes = model.config.decode_tags = True
        self._forbid(scores, encoded["train"])
        with torch.no_grad():
            scores.token_bytes[: len(tokens)] = self._with_spaces(tokens).to(
                scores.token_bytes.device
            )
        return parts

    def fit_text_scores(
        self, tokens: torch.Tensor, train: Dataset, config: PreTrainedConfig
    ) -> RoFormerLiteWordScores:
        from ..text_scores.fit import fit_word_scores

        answers, config = [np.array(row) for row in train["labels"]], self._decoding(config)
        scores = fit_word_scores(self._with_spaces(tokens), train["input_ids"][:], answers, config)
        self._forbid(scores, train, transitions=False)
        return scores

    def _decoding(self, config: PreTrainedConfig) -> PreTrainedConfig:
        config = copy(config)
        config.decode_tags = True
        return config

    def _with_spaces(self, tokens: torch.Tensor) -> torch.Tensor:
        """`token_bytes` with a space before each character that has a tag of its own, and before an
        unknown word."""
        starts = torch.zeros(len(tokens), dtype=torch.bool)
        if self.data.unit == "characters":
            starts = (tokens[:, 0] > ord(" ")) & ((tokens[:, 0] < 0x80) | (tokens[:, 0] >= 0xC0))
        starts[self.data.tokenizer.unk_token_id] = True
        moved = torch.nn.functional.pad(tokens, (1, 0), value=ord(" "))[:, : tokens.shape[1]]
        return torch.where(starts[:, None], moved, tokens)

    @torch.no_grad()
    def _forbid(
        self, scores: RoFormerLiteWordScores, train: Dataset, transitions: bool = True
    ) -> None:
        """Forbid tags that the training data don't have, which are there for the rest of a word,
        and the transitions to I-X from other tags than B-X and I-X, unless the data have them."""
        names, data = list(self.data.labels), self.data.labels
        sentences = [[number for number in row if number >= 0] for row in train["labels"]]
        counts = np.bincount(np.array([*chain(*sentences)], dtype=int), minlength=len(names))
        scores.bias[torch.from_numpy(counts == 0)] = IMPOSSIBLE
        inside = {
            number: (data["B" + tag[1:]], number)
            for tag, number in data.items()
            if _begins(tag) in data
        }
        followed = ((-1, row[0]) for row in sentences if row)
        pairs = Counter(chain(followed, *map(pairwise, sentences)))
        wrong = sum(
            count
            for (left, tag), count in pairs.items()
            if tag in inside and left not in inside[tag]
        )
        if not transitions or wrong > _MOST_IMPOSSIBLE * sum(
            counts[begin] for begin, _ in inside.values()
        ):
            return
        for tag, may_precede in inside.items():
            forbidden = torch.ones(len(names), dtype=torch.bool)
            forbidden[list(may_precede)] = False
            scores.transitions[forbidden, tag] = IMPOSSIBLE


class TagMetrics(LabelMetrics):
    """F1 of whole entities by seqeval, where the tags mark entities; otherwise accuracy and F1 of
    the tags."""

    data: TagData

    @property
    def names(self) -> Sequence[str]:
        return (
            ("f1", "precision", "recall", "accuracy")
            if self.data.has_entities
            else ("accuracy", "macro_f1")
        )

    @property
    def main(self) -> str:
        return "f1" if self.data.has_entities else "accuracy"

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    def compute(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        return tagging_metrics(*self._tags(prediction, rows), self.data.has_entities)

    def _tags(
        self, prediction: EvalPrediction, rows: Dataset
    ) -> tuple[list[list[str]], list[list[str]]]:
        """Predicted and true tags of each sentence, whose parts follow one another."""
        true = [self.data.units(row["tokens"], row["tags"])[1] for row in rows]
        flat = np.concatenate(
            [
                ids[labels != -100]
                for ids, labels in zip(prediction.predictions, prediction.label_ids, strict=True)
            ]
        )
        return self._by_sentence(flat, true), true

    def _by_sentence(self, flat: np.ndarray, sentences: list[list[str]]) -> list[list[str]]:
        """The names of tags, one for each tag of the sentences."""
        names, ends = list(self.data.labels), np.cumsum([len(tags) for tags in sentences]).tolist()
        return [
            [names[i] for i in flat[end - len(tags) : end]]
            for end, tags in zip(ends, sentences, strict=True)
        ]

    def outcomes(
        self, prediction: EvalPrediction, rows: Dataset, encoded: Dataset
    ) -> list[Outcome]:
        found = []
        for row, predicted, true in zip(rows, *self._tags(prediction, rows), strict=True):
            tokens, _ = self.data.units(row["tokens"], row["tags"])
            wrong = sum(ours != theirs for ours, theirs in zip(predicted, true, strict=True))
            columns = {"tokens": tokens, "tags": true, "prediction": predicted}
            found.append(Outcome(row["origin"], columns, wrong, true, predicted))
        return found

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        true, predicted = (
            [outcome.true for outcome in outcomes],
            [outcome.predicted for outcome in outcomes],
        )
        if self.data.has_entities:
            return report_of_entities(true, predicted)
        labels = [*self.data.labels, *sorted(self.data.foreign)]
        return report_of_classes([*chain(*true)], [*chain(*predicted)], labels)

    def split_of(
        self, trainer: Trainer, scores: RoFormerLiteTextScores, rows: Dataset, encoded: Dataset
    ) -> Split:
        from ..text_scores.weights import make_split

        ids, answers = (
            encoded["input_ids"][:],
            np.concatenate([np.array(row) for row in encoded["labels"]]),
        )
        trainer.preprocess_logits_for_metrics = None
        predictions = trainer.predict(encoded).predictions[: len(ids)]
        trainer.preprocess_logits_for_metrics = self.reduce_logits
        logits = np.concatenate(
            [row[: len(row_ids)] for row, row_ids in zip(predictions, ids, strict=True)]
        )
        true: list[list[str]] = []
        for part, tags in zip(encoded["part"], encoded["tags"], strict=True):
            true = [*true, tags] if part == 0 else [*true[:-1], true[-1] + tags]

        def measure(joint: np.ndarray) -> Metrics:
            found = self._by_sentence(joint.argmax(-1)[answers != -100], true)
            return tagging_metrics(found, true, self.data.has_entities)

        return make_split(scores, ids, logits, answers, measure)

    def baselines(self, rows: DatasetDict, encoded: DatasetDict) -> Baselines:
        from ..evaluate.baselines import tagging_baselines

        sentences = {
            split: tuple(
                zip(
                    *(self.data.units(row["tokens"], row["tags"]) for row in rows[split]),
                    strict=True,
                )
            )
            for split in rows
        }
        return tagging_baselines(self.data.has_entities, sentences.pop("train"), sentences)

    def notes(self, model: PreTrainedModel) -> list[str]:
        notes = ["Accuracy and F1 are fractions from 0 to 1; macro F1 is the mean over the tags."]
        if self.data.has_entities:
            notes = [
                "Precision, recall and F1 count whole entities (seqeval), accuracy counts tokens; all are fractions "
                "from 0 to 1."
            ]
        if self.data.foreign:
            notes.append(self.data.foreign_sentence(self.data.foreign))
        return notes


class TagTask(Task):
    """Every token of a sentence gets a tag."""

    arguments = TagDataArguments
    pipeline_tag = "token-classification"
    data_class, model_class, metrics_class = TagData, TagModel, TagMetrics


def are_entities(tags: Collection[str]) -> bool:
    """Whether all tags are those of IOB2."""
    return all(_IOB.fullmatch(tag) for tag in tags) and len(tags) > 1


def legal_tags(tags: list[str], labels: Collection[str]) -> list[str]:
    """The tags of a sentence with B-X, if there is that label, for each I-X that follows neither
    B-X nor I-X."""
    lefts = ["O", *tags[:-1]]
    return [
        _begins(tag) if _begins(tag) in labels and left not in (tag, _begins(tag)) else tag
        for left, tag in zip(lefts, tags, strict=True)
    ]


def _begins(tag: str) -> str | None:
    """B-X of I-X."""
    return "B" + tag[1:] if tag.startswith("I-") else None


def split_sentences(
    tokenizer: PreTrainedTokenizerBase, sentences: list[list[str]], joiner: str | None
) -> list[list[list[str]]]:
    """Each sentence in parts of as many whole words as `model_max_length` has room for; most have
    one part. `joiner` is that of `encode_words`."""
    longest = tokenizer.model_max_length

    def fits(words: list[str]) -> bool:
        return len(encode_words(tokenizer, [words], joiner)[0]["input_ids"][0]) <= longest

    encoded, firsts = encode_words(tokenizer, sentences, joiner)
    parts = []
    for words, ids, first in zip(sentences, encoded["input_ids"], firsts, strict=True):
        parts.append([words])
        starts = [place for place, word in enumerate(first) if word is not None]
        taken = 0
        while len(ids) > longest and taken < len(words):
            room = longest - tokenizer.num_special_tokens_to_add()
            end = int(np.searchsorted(starts, starts[taken] + room, side="right")) - 1
            end = len(words) if starts[taken] + room >= len(ids) - 1 else max(end, taken + 1)
            # At the beginning of a text, words may have other tokens than inside it.
            while (
                end > taken + 1
                and len(encode_words(tokenizer, [words[taken:end]], joiner)[0]["input_ids"][0])
                > longest
            ):
                end -= 1
            parts[-1][-1:] = [words[taken:end], words[end:]]
            taken = end
        parts[-1] = [part for part in parts[-1] if part]
    return parts


def encode_words(
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[list[str]],
    joiner: str | None,
    max_length: int | None = None,
) -> tuple[Any, list[list[int | None]]]:
    """Encode lists of words as the text that they are with `joiner` between them, or without one as
    split words.

    A word without any token, such as a lone control character, is encoded as [UNK].

    Returns:
        What the tokenizer returns, and of each token of each sentence the number of the word that
        begins with it, None for all others.
    """
    encoded, words = _encode(tokenizer, sentences, joiner, max_length)
    whole = _encode(tokenizer, sentences, joiner)[1] if max_length else words
    lost = [set(range(len(own))) - set(found) for own, found in zip(sentences, whole, strict=True)]
    if any(lost):
        known = [
            [tokenizer.unk_token if j in missing else word for j, word in enumerate(own)]
            for own, missing in zip(sentences, lost, strict=True)
        ]
        encoded, words = _encode(tokenizer, known, joiner, max_length)
    return encoded, [_firsts(own) for own in words]


def _encode(
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[list[str]],
    joiner: str | None,
    max_length: int | None = None,
) -> tuple[Any, list[list[int | None]]]:
    """The same with the number of the word that each token belongs to."""
    options = {"verbose": False, "truncation": max_length is not None, "max_length": max_length}
    if joiner is None:
        encoded = tokenizer(sentences, is_split_into_words=True, **options)
        return encoded, [encoded.word_ids(i) for i in range(len(sentences))]
    encoded = tokenizer(
        [joiner.join(words) for words in sentences], return_offsets_mapping=True, **options
    )
    words_of = []
    for words, spans in zip(sentences, encoded.pop("offset_mapping"), strict=True):
        places = [
            None if character.isspace() else number
            for number, word in enumerate(words)
            for character in word + (joiner if number + 1 < len(words) else "")
        ]
        words_of.append(
            [next((n for n in places[start:end] if n is not None), None) for start, end in spans]
        )
    return encoded, words_of


def _firsts(words: list[int | None]) -> list[int | None]:
    """The number of each word at its first token, None at all other tokens."""
    seen: set[int | None] = {None}
    return [None if word in seen or seen.add(word) else word for word in words]
