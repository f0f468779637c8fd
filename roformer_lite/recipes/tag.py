"""The task tag: every token of a sentence gets a tag."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_roformer_lite.model.losses import IGNORE_INDEX

from ..baseline.crf import WordTagger
from ..baseline.join import Join, choose_join
from ..baseline.sequences import best_sequence
from ..data.data_files import Row, file_format, read_tagged, text_of, value_of
from ..data.reader import require
from ..data.sampling import sample_rows
from ..data.scripts import HAN
from ..errors import InputError
from ..measuring.baselines import Predictions
from ..measuring.metrics import Metrics, tagging_metrics
from ..measuring.report import Outcome, report_of_entities
from ..measuring.significance import Measured, entity_f1, ratio
from ..measuring.tag_schemes import STRICT_SCHEMES, legal_transitions, scheme_of
from ..options.tasks import TagDataArguments
from .base import Answer, FittedBaseline, Shown
from .labels import LabelReader, LabelRecipe, labels_of
from .loaded_model import Input, LoadedModel, right_sided
from .words import CHARACTERS, WORDS, UnitTokenizer, adapt, characters_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction

logger = logging.getLogger(__name__)

# `--unit auto` depends on this many sentences.
NUM_INSPECTED = 1000
# The factors of the transitions of a random field that are tried.
SCALES = (0.5, 0.7, 1.0)
DEFAULT_SCALE = 0.7
# The weight of the encoder is chosen on at most this many sentences, and on fewer if there are many
# pairs of tags.
MAX_SENTENCES = 1000
MAX_PAIRS = 5_000_000


class TagReader(LabelReader):
    """Reads `tokens` and the same number of `tags`."""

    names_column = "tags"
    input_columns = ("tokens",)

    options: TagDataArguments

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) == ".jsonl":
                yield from super().read_rows([path])
                continue
            for name in ("token_column", "tag_column", "column_names"):
                if getattr(self.options, name) is not None:
                    raise InputError(
                        f"{path}: --{name} is not for column files, in which tabs or spaces "
                        "separate the columns, and the token is in the first one and the tag in "
                        "the last (`cut -f 2,4` selects columns)"
                    )
            yield from read_tagged(path)

    def select_columns(self, row: Row) -> Row:
        tokens = texts_in(row, self.options.token_column or "tokens", "token_column")
        tags = texts_in(row, self.options.tag_column or "tags", "tag_column")
        require(len(tokens) == len(tags), row, f"{len(tokens)} tokens, but {len(tags)} tags")
        return {"tokens": tokens, "tags": tags, "origin": row["origin"]}

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        return (" ".join(row["tokens"]) for row in rows)


@dataclass(frozen=True)
class Tag(LabelRecipe):
    """Every token of a sentence gets a tag.

    The units that the model tags are the tokens or their characters. The model is an encoder with a
    head for the tag of each token. A conditional random field on words may join its answer.

    Args:
        unit: The unit that gets a tag.
        scheme: The scheme by which the tags mark entities; None for tags without a scheme.
        joiner: The text between two units in the input of the tokenizer; None if the tokenizer gets
            a list of units.
    """

    options_class = TagDataArguments
    reader_class = TagReader
    pipeline_tag = "token-classification"
    architecture = "ForTokenClassification"
    auto_model = AutoModelForTokenClassification
    answer_column = "tags"
    label_word = "tag"
    baseline_class = WordTagger
    labelled = "tokens"
    outside = "O"

    options: TagDataArguments
    unit: str = WORDS
    scheme: str | None = None
    joiner: str | None = None

    # What is found in the data or in a saved model.

    @classmethod
    def inspect(cls, options: TagDataArguments, rows: DatasetDict) -> Self:
        scheme = scheme_of(rows["train"]["tags"])
        tags = set(chain.from_iterable(rows["train"]["tags"]))
        cls.check_labels(tags, separator=" ")
        added: set[str] = set()
        if scheme in ("IOB1", "IOB2"):
            # These tags may be needed inside a word.
            added = {"I" + tag[1:] for tag in tags if tag != "O"} - tags
        names = sorted(tags | added, key=lambda tag: (tag != "O", tag[1:], tag))
        found = cls(
            options,
            labels=cls.numbered(names),
            unit=unit_of(options, scheme, rows["train"]),
            scheme=scheme,
        )
        return found.report_unseen_labels(rows)

    @classmethod
    def of_model(
        cls, options: TagDataArguments, config: PreTrainedConfig, settings: dict[str, Any]
    ) -> Self:
        names = labels_of(config)
        return cls(
            options,
            labels=cls.numbered(names),
            unit=settings.get("unit", WORDS),
            # Without a training, any I-X may begin an entity.
            scheme=settings.get("scheme", scheme_of(zip(names))),
            joiner=settings.get("joiner"),
        )

    def labels_of_items(self, rows: Dataset) -> Iterable[Sequence[str]]:
        return ([tag] for tag in chain.from_iterable(self.truth(rows)))

    def settings(self) -> dict[str, Any]:
        own = {"unit": self.unit, "joiner": self.joiner, "scheme": self.scheme}
        return {**own, **super().settings()}

    def units(self, tokens: Iterable[str]) -> list[str]:
        """The units of a sentence."""
        if self.unit != CHARACTERS:
            return list(tokens)
        return [character for token in tokens for character in characters_of(token)]

    def truth(self, rows: Dataset | dict[str, list]) -> list[list[str]]:
        """The tags of the units of each row."""
        return list(map(self.unit_tags, rows["tokens"], rows["tags"]))

    def unit_tags(self, tokens: Sequence[str], tags: Sequence[str]) -> list[str]:
        """The tags of the units of a sentence."""
        if self.unit != CHARACTERS:
            return list(tags)
        found = []
        for token, tag in zip(tokens, tags, strict=True):
            inside = "I" + tag[1:] if tag.startswith("B-") else tag
            found.append(tag)
            found.extend([inside] * (len(characters_of(token)) - 1))
        return found

    # The tokenizer, and encoding.

    @property
    def new_tokenizer(self) -> dict[str, Any]:
        if self.unit == CHARACTERS:
            return {"algorithm": "wordpiece", "lowercase": False}
        return {}

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The texts with a space between units, so that no token spans two units."""
        return (" ".join(self.units(row["tokens"])) for row in rows)

    def adapted_to(self, tokenizer: PreTrainedTokenizerBase) -> Self:
        return replace(self, joiner=adapt(tokenizer, self.unit))

    def encode_batch(
        self, batch: dict[str, list], tokenizer: PreTrainedTokenizerBase, training: bool
    ) -> dict[str, Any]:
        """Encode some rows. Without `training`, they are encoded in the same way as in prediction:
        a long sentence becomes several consecutive examples."""
        sentences, tags = self.examples(batch)
        of_units = UnitTokenizer(tokenizer, self.joiner)
        if training:
            inputs, starts = of_units.encode(of_units.with_unknown(sentences), truncation=True)
            numbers = list(range(len(sentences)))
        else:
            inputs, numbers, starts = of_units.windows(sentences)
        labels = []
        for number, ids, places in zip(numbers, inputs["input_ids"], starts, strict=True):
            own_labels = [IGNORE_INDEX] * len(ids)
            for unit, place in places.items():
                # For tags of entities, the number of O is 0.
                own_labels[place] = self.labels.get(tags[number][unit], 0)
            labels.append(own_labels)
        return {**inputs, "labels": labels}

    def collator(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
    ) -> DataCollatorForTokenClassification:
        # The logits of a sentence are the first ones of its row.
        return DataCollatorForTokenClassification(right_sided(tokenizer))

    # Choosing a checkpoint.

    @property
    def metric_names(self) -> Sequence[str]:
        """The metrics include the F1 of whole entities, or of tags if they do not mark entities."""
        if self.scheme is not None:
            return ("f1", "precision", "recall", "accuracy")
        return ("accuracy", "macro_f1")

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        """The numbers of the tags, `(rows, length)`: the best sequence that the scheme allows, as
        in an answer, but for each window of a long sentence by itself. 0 where there is no label.
        """
        found = torch.zeros_like(labels)
        for own_logits, own_labels, own_found in zip(logits, labels, found, strict=True):
            is_labelled = own_labels != IGNORE_INDEX
            scores = own_logits[is_labelled].float().cpu().numpy()
            own_found[is_labelled] = own_found.new_tensor(best_sequence(scores, self.legal))
        return found

    def choose(
        self, prediction: EvalPrediction, rows: Dataset, tokenizer: PreTrainedTokenizerBase
    ) -> Metrics:
        is_labelled = np.not_equal(prediction.label_ids, IGNORE_INDEX)
        left = iter(np.asarray(prediction.predictions)[is_labelled])
        true = self.truth(rows)
        predicted = [self.named(islice(left, len(own))) for own in true]
        return tagging_metrics(predicted, true, self.scheme)

    # Answering.

    def text_columns(self) -> list[str]:
        return [self.options.token_column or "tokens"]

    def input_of_line(self, line: str) -> Input:
        """The words of a line, which tabs, spaces and line breaks separate."""
        words = re.split("[ \t\r\n]", line)
        return self.units(word for word in words if word.strip())

    def input_of_columns(self, row: Row, columns: Sequence[str]) -> Input:
        """A list of words, or text."""
        if isinstance(value_of(row, columns[0], "text_column"), list):
            return texts_in(row, columns[0], "text_column")
        return self.input_of_line(text_of(row, columns[0], "text_column"))

    def input_of_row(self, row: Row) -> Input:
        return self.units(row["tokens"])

    def answer(
        self, saved: LoadedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The words of a sentence as `tokens`, and their `tags`: the best sequence of tags that
        the scheme allows. The scores of a word are those of its first unit.

        Sentences that are too long are read in overlapping windows, and each word has the scores of
        the window in which it is farther from an edge.
        """
        sentences = [self.units(words) for words in inputs]
        answers = []
        for words, units, logits in zip(
            inputs, sentences, self.encoder_logits(saved, sentences), strict=True
        ):
            scores = logits
            transitions = self.legal
            if saved.joined is not None:
                field: Any = saved.joined.model
                scores, transitions = self.joint(
                    saved.joined.join, logits, field.scores(units), field
                )
            if self.unit == CHARACTERS:
                lengths = [len(characters_of(word)) for word in words]
                scores = scores[list(accumulate(lengths[:-1], initial=0))]
            numbers = best_sequence(scores, transitions)
            answers.append({"tokens": list(words), "tags": self.named(numbers)})
        return answers

    def named(self, numbers: Iterable[int]) -> list[str]:
        """The tags with these numbers."""
        names = list(self.labels)
        return [names[number] for number in numbers]

    @cached_property
    def legal(self) -> np.ndarray:
        """The result of `legal_transitions` for the tags of the model."""
        return legal_transitions(list(self.labels), self.scheme)

    def joint(
        self, join: Join, logits: np.ndarray, scores: np.ndarray, field: WordTagger
    ) -> tuple[np.ndarray, np.ndarray]:
        """The joint scores of the words of a sentence, `(words, tags)`, and of the transitions that
        the scheme allows, as `best_sequence` takes them.

        Args:
            join: The weight of the encoder, and the scale of the transitions.
            logits: The logits of the encoder, `(words, tags)`.
            scores: The scores of the field, `(words, tags)`.
            field: The field.
        """
        weight = 1 - join.weight
        joint = join.weight * logits + weight * scores
        return joint, self.legal + np.pad(weight * join.scale * field.transitions, (1, 0))

    def encoder_logits(self, saved: LoadedModel, sentences: list[list[str]]) -> list[np.ndarray]:
        """The logits of the first token of each unit of each sentence, `(units, tags)`."""
        of_units = UnitTokenizer(saved.tokenizer, self.joiner)
        encoded, numbers, starts = of_units.windows(sentences)
        logits = saved.logits(encoded, batch_size=len(sentences))
        found = [np.zeros((len(units), len(self.labels))) for units in sentences]
        for number, places, of_window in zip(numbers, starts, logits, strict=True):
            for unit, place in places.items():
                found[number][unit] = of_window[place]
        return found

    def choose_join(
        self,
        saved: LoadedModel,
        baseline: WordTagger,
        rows: Dataset | None,
        batch_size: int,
    ) -> Join:
        if rows is None:
            return Join(DEFAULT_SCALE)
        num_sentences = min(MAX_SENTENCES, max(1, MAX_PAIRS // len(self.labels) ** 2))
        rows = rows.select(sample_rows(range(len(rows)), num_sentences))
        sentences, true = self.examples(rows)
        logits = saved.in_batches(sentences, batch_size, answer=partial(self.encoder_logits, saved))
        of_field = [baseline.scores(units) for units in sentences]

        def losses_of(join: Join) -> np.ndarray:
            errors = []
            for own_logits, own_scores, own_true in zip(logits, of_field, true, strict=True):
                found = best_sequence(*self.joint(join, own_logits, own_scores, baseline))
                errors.append(num_errors(self.named(found), own_true))
            return np.array(errors)

        return choose_join(losses_of, SCALES, DEFAULT_SCALE)

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """`token/TAG token/TAG …` as a line; only the tags as a column."""
        pairs = zip(answer["tokens"], answer["tags"], strict=True)
        line = " ".join(f"{token}/{tag}" for token, tag in pairs)
        return Shown(line=line, columns={"tags": answer["tags"]})

    # Measuring.

    def predicted(self, answers: list[Answer]) -> list[list[str]]:
        return [answer["tags"] for answer in answers]

    def measured(self, predicted: list[list[str]], rows: Dataset) -> Measured:
        """The metrics of the tags of each sentence."""
        true = self.truth(rows)
        metrics = tagging_metrics(predicted, true, self.scheme)
        if self.scheme is not None:
            return Measured(metrics, entity_f1(predicted, true, self.scheme))
        lengths = np.array(list(map(len, true)))
        errors = np.array(list(map(num_errors, predicted, true)))
        return Measured(metrics, ratio(lengths - errors, lengths))

    def outcome(self, row: Row, answer: Answer) -> Outcome:
        true = self.unit_tags(row["tokens"], row["tags"])
        predicted = answer["tags"]
        columns = {"tokens": answer["tokens"], "tags": true, "prediction": predicted}
        return Outcome(row["origin"], columns, num_errors(predicted, true), true, predicted)

    def report(self, outcomes: Sequence[Outcome]) -> dict[str, Metrics]:
        if self.scheme is None:
            return super().report(outcomes)
        true = [outcome.true for outcome in outcomes]
        predicted = [outcome.predicted for outcome in outcomes]
        return report_of_entities(true, predicted, self.scheme)

    def examples(self, rows: Dataset | dict[str, list]) -> tuple[list[list[str]], list[list[str]]]:
        """The units and the tags of each sentence."""
        return [self.units(tokens) for tokens in rows["tokens"]], self.truth(rows)

    def fit_baseline(self, rows: DatasetDict) -> FittedBaseline | None:
        sentences, tags = self.examples(rows["train"])
        field = WordTagger.fit(sentences, tags, list(self.labels))
        # A field takes long to fit, and validation rows did not make it better.
        return {"validation": field, "test": field}

    def baselines(self, rows: DatasetDict, fitted: FittedBaseline | None) -> Predictions:
        # Every tagger has this baseline.
        assert fitted is not None
        field = fitted["test"]
        tagged = {}
        for split, own_rows in rows.items():
            if split != "train":
                sentences, _ = self.examples(own_rows)
                tagged[split] = [self.named(field.tag(words)) for words in sentences]
        return {WordTagger.name: tagged}

    # What the card shows.

    @property
    def neutral_example(self) -> Row:
        tokens = ["This", "is", "a", "sentence", "."]
        if self.unit == CHARACTERS:
            tokens = list("这是一句话")
        return {"tokens": tokens, "tags": ["O"] * len(tokens)}

    def example_line(self, tokenizer: PreTrainedTokenizerBase) -> str:
        return " ".join(self.neutral_example["tokens"])


def texts_in(row: Row, column: str, option: str) -> list[str]:
    """The list of texts in a column; `option` as for `value_of`.

    Raises:
        InputError: if it is no list, or if an item is empty or no text.
    """
    value = value_of(row, column, option)
    are_texts = isinstance(value, list) and all(
        isinstance(item, str) and item.strip() for item in value
    )
    require(are_texts, row, f"column {column!r} must be a list of texts, none empty")
    return value


def num_errors(predicted: Sequence[str], true: Sequence[str]) -> int:
    """The number of wrong tags of a sentence."""
    return sum(ours != theirs for ours, theirs in zip(predicted, true, strict=True))


def unit_of(options: TagDataArguments, scheme: str | None, rows: Dataset) -> str:
    """The unit that gets a tag.

    Args:
        options: The options of the task.
        scheme: The scheme of the tags.
        rows: The training data.

    Raises:
        InputError: if the tags of words cannot be divided among their characters.
    """
    unit: str = options.unit
    if unit == "auto":
        sample = rows[:NUM_INSPECTED]["tokens"]
        text = "".join(chain.from_iterable(sample))
        is_chinese = len(HAN.findall(text)) > len(text) / 2
        unit = CHARACTERS if is_chinese and scheme in ("IOB1", "IOB2") else WORDS
        if unit == CHARACTERS and any(len(token) > 1 for token in chain(*sample)):
            logger.info(
                "the text is Chinese, and its words are split: each character gets a tag "
                "(--unit words tags the words of the data)"
            )
    if unit == CHARACTERS and scheme in STRICT_SCHEMES:
        raise InputError(
            f"--unit {CHARACTERS} can't split words with tags of the scheme {scheme}; use IOB2 "
            "tags or --unit words"
        )
    return unit
