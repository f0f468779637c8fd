"""The task tag: every token of a sentence gets a tag."""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Regex, pre_tokenizers
from transformers import (
    AutoModelForTokenClassification,
    BatchEncoding,
    DataCollatorForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.configuration_utils import PreTrainedConfig
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteForTokenClassification
from hf_roformer_lite.model.losses import IGNORE_INDEX
from hf_roformer_lite.model.tag_chain import IMPOSSIBLE
from hf_roformer_lite.model.tag_scores import RoFormerLiteWordScores
from hf_roformer_lite.model.tokenization_roformer_lite import RoFormerLiteTokenizer

from ..data.data_files import Row, file_format, read_tagged, text_of, value_of
from ..errors import InputError
from ..evaluate.baselines import Baselines, tagging_baselines
from ..evaluate.metrics import STRICT_SCHEMES, Metrics, scheme_of, tagging_metrics
from ..evaluate.report import LabelReport, Outcome, report_of_classes, report_of_entities
from ..options.tasks import TagDataArguments
from ..text_scores.fit import fit_word_scores, tags_of_words
from ..text_scores.token_bytes import SPACE_MARK, speller_of
from ..text_scores.weights import Split, make_split
from .base import Answer, Input, MeasuredBaselines, Shown, padding_right, quoted
from .labels import LabelRecipe, labels_of

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import EvalPrediction, Trainer

    from hf_roformer_lite.model.ngram_scores import RoFormerLiteTextScores

    from ..answers import SavedModel
    from ..run import Run

logger = logging.getLogger(__name__)

CHARACTERS = "characters"
WORDS = "words"
# `--unit auto` depends on this many sentences.
NUM_INSPECTED = 1000
# At least this many parts of long sentences are tagged at once, even if the batch size is smaller.
MIN_PARTS_AT_ONCE = 8
HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")


class Tag(LabelRecipe):
    """Every token of a sentence gets a tag.

    A row has `tokens` and the same number of `tags`. The units that the model tags are the tokens
    or their characters. The model is an encoder with a head for the tag of each token, combined
    with a conditional random field on words.
    """

    options_class = TagDataArguments
    options: TagDataArguments
    pipeline_tag = "token-classification"
    architecture = "ForTokenClassification"
    auto_model = AutoModelForTokenClassification
    label_word = "tag"
    text_part = "conditional random field on words"
    labelled = "tokens"
    names_column = "tags"
    outside = "O"

    def __init__(self, options: TagDataArguments):
        super().__init__(options)
        self.unit: str = options.unit
        # The text between two units in the input of the tokenizer; None if the tokenizer gets a
        # list of units.
        self.joiner: str | None = " "
        # The scheme by which the tags mark entities; None for tags without a scheme.
        self.scheme: str | None = None
        # Tags that do not occur in the training data, but may be needed inside a word.
        self.added: set[str] = set()

    # Reading the data.

    def read_rows(self, files: Sequence[str]) -> Iterator[Row]:
        for path in files:
            if file_format(path) == ".jsonl":
                yield from super().read_rows([path])
                continue
            columns: dict[str, int] = {}
            for name in ("token_column", "tag_column"):
                column = getattr(self.options, name)
                if column is None:
                    continue
                if not is_place(column):
                    raise InputError(f"{path}: --{name} must be a number here, not {column}")
                columns[name] = int(column)
            yield from read_tagged(path, **columns)

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

    def labels_of_items(self, rows: Dataset) -> Iterable[Sequence[str]]:
        return ([tag] for tag in chain.from_iterable(self.truth(rows)))

    def is_empty(self, row: Row) -> bool:
        return not row["tokens"]

    def texts(self, rows: Iterable[Row]) -> Iterator[str]:
        """The texts with a space between units, so that no token spans two units."""
        return (" ".join(self.units(row["tokens"])) for row in rows)

    def inspect(self, rows: DatasetDict) -> None:
        self.scheme = scheme_of(rows["train"]["tags"])
        tags = set(chain.from_iterable(rows["train"]["tags"]))
        self.check_labels(tags, separator=" ")
        has_begin_and_inside = self.scheme in ("IOB1", "IOB2")
        if self.unit == "auto":
            sample = rows["train"][:NUM_INSPECTED]["tokens"]
            text = "".join(chain.from_iterable(sample))
            is_chinese = len(HAN.findall(text)) > len(text) / 2
            self.unit = CHARACTERS if is_chinese and has_begin_and_inside else WORDS
            if self.unit == CHARACTERS and any(len(token) > 1 for token in chain(*sample)):
                logger.warning(
                    "the text is Chinese, and its words are split: each character gets a tag "
                    "(--unit words tags the words of the data)"
                )
        if self.unit == CHARACTERS and self.scheme in STRICT_SCHEMES:
            raise InputError(
                f"--unit {CHARACTERS} can't split words with tags of the scheme {self.scheme}; "
                "use IOB2 tags or --unit words"
            )
        if has_begin_and_inside:
            self.added = {"I" + tag[1:] for tag in tags if tag != "O"} - tags
            tags |= self.added
        self.set_labels(sorted(tags, key=lambda tag: (tag != "O", tag[1:], tag)))

    def inspect_model(self, config: PreTrainedConfig, settings: dict[str, Any]) -> None:
        super().inspect_model(config, settings)
        self.scheme = settings.get("scheme", scheme_of([list(self.labels)]))
        self.unit = settings.get("unit", WORDS)
        self.joiner = settings.get("joiner")

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

    def adapt_tokenizer(self) -> None:
        """Prevent tokens from spanning two units in any text. Some classes of tokenizers would lose
        that change when they are loaded again; they get lists of units instead.

        Raises:
            InputError: for a tokenizer written in Python, which does not say where tokens come
                from.
        """
        if not self.tokenizer.is_fast:
            raise InputError(
                f"{type(self.tokenizer).__name__} is written in Python and does not say which word "
                "a token belongs to; give a model with a fast tokenizer"
            )
        splits = []
        if self.unit == CHARACTERS:
            # Here, (?m) lets the dot match line breaks.
            splits.append(pre_tokenizers.Split(Regex(r"\s"), "removed"))
            splits.append(pre_tokenizers.Split(Regex(r"(?m)."), "isolated"))
        elif has_tokens_of_several_words(self.tokenizer):
            splits.append(pre_tokenizers.Split(Regex(f"[ {SPACE_MARK}]"), "merged_with_next"))
        is_adaptable = type(self.tokenizer) in (RoFormerLiteTokenizer, TokenizersBackend)
        if splits and not is_adaptable:
            self.joiner = None
            return
        self.joiner = "" if self.unit == CHARACTERS else " "
        if not splits:
            return
        backend = self.tokenizer.backend_tokenizer
        kept = [] if backend.pre_tokenizer is None else [backend.pre_tokenizer]
        is_adapted = kept and len(kept[0].pre_tokenize_str(f"a{self.joiner}b")) == 2
        if not is_adapted:
            backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, *kept])

    def encode_batch(self, batch: dict[str, list], training: bool) -> dict[str, Any]:
        """Encode some rows. Without `training`, they are encoded in the same way as in prediction:
        a long sentence becomes several consecutive examples."""
        sentences = [self.units(tokens) for tokens in batch["tokens"]]
        parts = self.with_unknown(sentences) if training else self.split(sentences)
        inputs, starts = self.encode_units(parts, truncation=True)
        tags = chain.from_iterable(self.truth(batch))
        labels = []
        for part, ids, places in zip(parts, inputs["input_ids"], starts, strict=True):
            own_tags = list(islice(tags, len(part)))
            own_labels = [IGNORE_INDEX] * len(ids)
            for unit, place in places.items():
                # For tags of entities, the number of O is 0.
                own_labels[place] = self.labels.get(own_tags[unit], 0)
            labels.append(own_labels)
        return {**inputs, "labels": labels}

    def encode_units(
        self, sentences: list[list[str]], **options: Any
    ) -> tuple[BatchEncoding, list[dict[int, int]]]:
        """Encode lists of units as texts with the joiner between units, or as lists if there is no
        joiner.

        Returns:
            The output of the tokenizer, and for each sentence the index of the first token of each
            unit that has one.
        """
        if self.joiner is None:
            encoded = self.tokenizer(sentences, is_split_into_words=True, verbose=False, **options)
            units = [encoded.word_ids(number) for number in range(len(sentences))]
        else:
            texts = [self.joiner.join(sentence) for sentence in sentences]
            encoded = self.tokenizer(texts, return_offsets_mapping=True, verbose=False, **options)
            units = []
            for sentence, spans in zip(sentences, encoded.pop("offset_mapping"), strict=True):
                owners = unit_of_characters(sentence, self.joiner)
                units.append([first_unit(owners[start:end]) for start, end in spans])
        starts = []
        for own, ids in zip(units, encoded["input_ids"], strict=True):
            places: dict[int, int] = {}
            for place, unit in enumerate(own):
                has_text = unit in places and ids[places[unit]] not in self.blank_tokens
                if unit is not None and not has_text:
                    places[unit] = place
            starts.append(places)
        return encoded, starts

    @cached_property
    def blank_tokens(self) -> set[int]:
        """The ids of the tokens that consist only of spaces. Tokenizers may split the space from a
        rare word and regard it as the first token of the word, although it does not have the word's
        tag."""
        spell = speller_of(self.tokenizer)
        vocabulary = self.tokenizer.get_vocab().items()
        return {number for token, number in vocabulary if not spell(token).strip()}

    def with_unknown(self, sentences: list[list[str]]) -> list[list[str]]:
        """Replace units that have no token, such as a lone control character, by the unknown token,
        or by the padding token if there is no unknown token."""
        _, starts = self.encode_units(sentences, add_special_tokens=False)
        unknown = self.tokenizer.unk_token or self.tokenizer.pad_token
        return [
            [unit if number in places else unknown for number, unit in enumerate(sentence)]
            for sentence, places in zip(sentences, starts, strict=True)
        ]

    def split(self, sentences: list[list[str]]) -> list[list[str]]:
        """Split sentences into parts of as many whole units as fit into the model, and return the
        parts of all sentences. Most sentences have one part. A unit that is too long is a part of
        its own."""
        sentences = self.with_unknown(sentences)
        encoded, starts = self.encode_units(sentences, add_special_tokens=False)
        room = self.tokenizer.model_max_length - self.tokenizer.num_special_tokens_to_add()
        parts = []
        for sentence, ids, places in zip(sentences, encoded["input_ids"], starts, strict=True):
            if len(ids) <= room:
                parts.append(sentence)
                continue
            # The number of tokens before each unit, and before the end.
            before = [*places.values(), len(ids)]
            begin = 0
            while begin < len(sentence):
                end = bisect_right(before, before[begin] + room) - 1
                # Units may have different tokens at the beginning of a text.
                while end > begin + 1 and self.is_too_long(sentence[begin:end]):
                    end -= 1
                end = max(end, begin + 1)
                parts.append(sentence[begin:end])
                begin = end
        return parts

    def is_too_long(self, sentence: list[str]) -> bool:
        encoded, _ = self.encode_units([sentence])
        return len(encoded["input_ids"][0]) > self.tokenizer.model_max_length

    def collator(self, model: PreTrainedModel) -> DataCollatorForTokenClassification:
        # The logits of a sentence are the first ones of its row.
        return DataCollatorForTokenClassification(padding_right(self.tokenizer))

    # The model, and its training.

    def why_new_head(self, config: PreTrainedConfig) -> str:
        theirs = set(labels_of(config))
        ours = set(self.labels)
        if ours - self.added <= theirs <= ours:
            self.set_labels(labels_of(config))
        return super().why_new_head(config)

    def complete(
        self, run: Run, trainer: Trainer, rows: DatasetDict, encoded: DatasetDict
    ) -> Baselines:
        """Besides adding scores of the text, let a model of this package predict one tag per word
        and only valid sequences."""
        parts = super().complete(run, trainer, rows, encoded)
        reads_words = self.token_bytes is not None and self.joiner is not None
        if reads_words and not trainer.is_fsdp_enabled:
            self.restrict_tags(trainer.model, encoded["train"])
        return parts

    def restrict_tags(self, model: RoFormerLiteForTokenClassification, train: Dataset) -> None:
        """Let a model predict one tag per word and only transitions that the scheme of its tags
        allows."""
        scores = model.text_scores
        if scores is None:
            config = copy(model.config)
            config.classifier_text_features = 0
            scores = RoFormerLiteWordScores(config, config.num_labels)
        scores.decodes = True
        scores.set_token_bytes(self.token_bytes)
        model.add_text_scores(scores)
        self.forbid_unseen_tags(scores, train, model.config)
        self.forbid_transitions(scores)

    def fit_text_scores(
        self, train: Dataset, config: PreTrainedConfig, calibrates: bool
    ) -> RoFormerLiteWordScores:
        # The scores of a random field are always calibrated.
        config = copy(config)
        config.decode_tags = True
        scores = fit_word_scores(self.token_bytes, *examples_of(train), config)
        self.forbid_unseen_tags(scores, train, config)
        return scores

    def adapt_token_bytes(self, tokens: torch.Tensor) -> torch.Tensor:
        """Put a space before each character that has a tag of its own, and before unknown
        words."""
        starts = torch.zeros(len(tokens), dtype=torch.bool)
        if self.unit == CHARACTERS:
            first = tokens[:, 0]
            begins_character = (first < 0x80) | (first >= 0xC0)
            starts = (first > ord(" ")) & begins_character
        if self.tokenizer.unk_token_id is not None:
            starts[self.tokenizer.unk_token_id] = True
        moved = torch.nn.functional.pad(tokens, (1, 0), value=ord(" "))[:, : tokens.shape[1]]
        return torch.where(starts[:, None], moved, tokens)

    @torch.no_grad()
    def forbid_unseen_tags(
        self, scores: RoFormerLiteWordScores, train: Dataset, config: PreTrainedConfig
    ) -> None:
        """Forbid tags that no word of the training data has."""
        sentences = tags_of_words(self.token_bytes, *examples_of(train), config)
        seen = set(chain.from_iterable(sentences))
        for number in self.labels.values():
            if number not in seen:
                scores.bias[number] = IMPOSSIBLE

    @torch.no_grad()
    def forbid_transitions(self, scores: RoFormerLiteWordScores) -> None:
        """Forbid the transitions to I-X from tags other than B-X and I-X, unless entities may begin
        with I-X."""
        if self.scheme in (None, "IOB1"):
            return
        for tag, number in self.labels.items():
            begin = self.labels.get(begin_of(tag))
            if begin is None:
                continue
            is_forbidden = torch.ones(len(self.labels), dtype=torch.bool)
            is_forbidden[[begin, number]] = False
            scores.transitions[is_forbidden, number] = IMPOSSIBLE

    def split_of(
        self, trainer: Trainer, scores: RoFormerLiteTextScores, rows: Dataset, encoded: Dataset
    ) -> Split:
        ids, own_labels = examples_of(encoded)
        labels = np.concatenate(own_labels)
        # The weights depend on all logits.
        trainer.preprocess_logits_for_metrics = None
        predictions = trainer.predict(encoded).predictions[: len(ids)]
        logits = np.concatenate(
            [own[: len(own_ids)] for own, own_ids in zip(predictions, ids, strict=True)]
        )
        true = self.truth(rows)

        def measure(joint: np.ndarray) -> Metrics:
            return self.metrics_of(joint.argmax(-1)[labels != IGNORE_INDEX], true)

        return make_split(scores, ids, logits, labels, measure)

    # Choosing a checkpoint.

    @property
    def metric_names(self) -> Sequence[str]:
        """The metrics include the F1 of whole entities, or of tags if they do not mark entities."""
        if self.scheme is not None:
            return ("f1", "precision", "recall", "accuracy")
        return ("accuracy", "macro_f1")

    @property
    def main_metric(self) -> str:
        return "accuracy" if self.scheme is None else "f1"

    def reduce_logits(self, logits: Any, labels: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    def choose(self, prediction: EvalPrediction, rows: Dataset) -> Metrics:
        found = [
            numbers[labels != IGNORE_INDEX]
            for numbers, labels in zip(prediction.predictions, prediction.label_ids, strict=True)
        ]
        return self.metrics_of(np.concatenate(found), self.truth(rows))

    def metrics_of(self, numbers: np.ndarray, true: list[list[str]]) -> Metrics:
        """The metrics of predicted tags.

        Args:
            numbers: The numbers of the tags of all units, in the order of the sentences.
            true: The true tags of each sentence.
        """
        names = list(self.labels)
        predicted = by_sentence([names[number] for number in numbers], true)
        return tagging_metrics(predicted, true, self.scheme)

    # Answering.

    def text_columns(self) -> list[str]:
        column = self.options.token_column
        if column is None or is_place(column):
            # The training data had no column names.
            return ["tokens"]
        return [column]

    def input_of_line(self, line: str) -> Input:
        return self.units(line.split())

    def input_of_columns(self, row: Row, columns: Sequence[str]) -> Input:
        """A list of words, or text."""
        value = value_of(row, columns[0], "text_column")
        if are_texts(value):
            return value
        return self.input_of_line(text_of(row, columns[0], "text_column"))

    def input_of_row(self, row: Row) -> Input:
        return self.units(row["tokens"])

    def answer(
        self, saved: SavedModel, inputs: list[Input], options: dict[str, Any]
    ) -> list[Answer]:
        """The words of a sentence as `tokens`, and their `tags`. A word gets the tag of its first
        unit. With IOB2, each I-X follows B-X or I-X.

        Sentences that are too long for the model are split into parts, which are tagged separately.
        Only the beginning of a word that is too long is read.
        """
        found = self.tags_of(saved, [self.units(words) for words in inputs])
        answers = []
        for words, tags in zip(inputs, found, strict=True):
            if self.unit == CHARACTERS:
                lengths = [len(characters_of(word)) for word in words]
                tags = [tags[start] for start in accumulate(lengths[:-1], initial=0)]
            if self.scheme == "IOB2":
                tags = legal_tags(tags, self.labels)
            answers.append({"tokens": list(words), "tags": tags})
        return answers

    def tags_of(self, saved: SavedModel, sentences: list[list[str]]) -> list[list[str]]:
        """The tags of the units of each sentence. A unit gets the tag of its first token."""
        parts = self.split(sentences)
        batch_size = max(len(sentences), MIN_PARTS_AT_ONCE)
        names = labels_of(saved.model.config)
        tags: list[str] = []
        for start in range(0, len(parts), batch_size):
            batch = parts[start : start + batch_size]
            encoded, starts = self.encode_units(batch, truncation=True, padding=True)
            inputs = encoded.convert_to_tensors("pt").to(saved.model.device)
            best = saved.model(**inputs).logits.argmax(-1).tolist()
            for part, places, own_best in zip(batch, starts, best, strict=True):
                tags.extend(names[own_best[places[unit]]] for unit in range(len(part)))
        return by_sentence(tags, sentences)

    def answer_columns(self, options: dict[str, Any]) -> list[str]:
        return ["tags"]

    def show(self, answer: Answer, options: dict[str, Any]) -> Shown:
        """`token/TAG token/TAG …` as a line; only the tags as a column."""
        pairs = zip(answer["tokens"], answer["tags"], strict=True)
        line = " ".join(f"{token}/{tag}" for token, tag in pairs)
        return Shown(line=line, columns={"tags": answer["tags"]})

    # Measuring.

    def measure(self, answers: list[Answer], rows: Dataset) -> Metrics:
        true = self.truth(rows)
        predicted = [answer["tags"] for answer in answers]
        return tagging_metrics(predicted, true, self.scheme)

    def outcome(self, row: Row, answer: Answer) -> Outcome:
        true = self.unit_tags(row["tokens"], row["tags"])
        predicted = answer["tags"]
        columns = {"tokens": answer["tokens"], "tags": true, "prediction": predicted}
        severity = sum(ours != theirs for ours, theirs in zip(predicted, true, strict=True))
        return Outcome(row["origin"], columns, severity, true, predicted)

    def measurements(self, rows: Dataset) -> int:
        # Without entities the main metric is that of single tokens.
        return len(rows) if self.scheme else sum(map(len, self.truth(rows)))

    def report(self, outcomes: Sequence[Outcome]) -> LabelReport | None:
        true = [outcome.true for outcome in outcomes]
        predicted = [outcome.predicted for outcome in outcomes]
        if self.scheme is not None:
            return report_of_entities(true, predicted, self.scheme)
        return report_of_classes(
            [*chain(*true)], [*chain(*predicted)], self.with_unseen_labels(true)
        )

    def baselines(self, rows: DatasetDict) -> MeasuredBaselines:
        examples = {}
        for split, own_rows in rows.items():
            sentences = tuple(self.units(tokens) for tokens in own_rows["tokens"])
            examples[split] = (sentences, tuple(self.truth(own_rows)))
        train = examples.pop("train")
        return tagging_baselines(self.scheme, train, examples), {}

    # What the card shows.

    def notes(self) -> list[str]:
        about_metrics = (
            "Accuracy and F1 are fractions from 0 to 1; macro F1 is the unweighted mean over the "
            "tags, which do not mark entities."
        )
        if self.scheme is not None:
            about_metrics = (
                f"Precision, recall and F1 count whole entities (seqeval, {self.scheme}), accuracy "
                "counts tokens; all are fractions from 0 to 1."
            )
        return [about_metrics, *super().notes()]

    def neutral_example(self) -> Row:
        tokens = ["This", "is", "a", "sentence", "."]
        if self.unit == CHARACTERS:
            tokens = list("这是一句话")
        return {"tokens": tokens, "tags": ["O"] * len(tokens)}

    def example_line(self, row: Row) -> str:
        return " ".join(self.units(row["tokens"]))

    def snippet(self, row: Row) -> str:
        return (
            f"tokens = {quoted(self.units(row['tokens']))}\n"
            "inputs = tokenizer(tokens, is_split_into_words=True, return_tensors='pt')\n"
            "tags = model(**inputs).logits.argmax(-1)[0].tolist()\n"
            "places = [i for i, token in enumerate(inputs.tokens()) if token.strip('▁Ġ')]\n"
            "first = {inputs.token_to_word(place): place for place in reversed(places)}\n"
            "print([(token, model.config.id2label[tags[first[i]]]) "
            "for i, token in enumerate(tokens)])"
        )


def is_place(column: str) -> bool:
    """Whether a column is given by its number, as in files without column names."""
    return re.fullmatch(r"-?\d+", column) is not None


def are_texts(value: Any) -> bool:
    """Whether a value is a list of texts, none of them empty."""
    if not isinstance(value, list):
        return False
    return all(isinstance(item, str) and item.strip() for item in value)


def characters_of(token: str) -> str:
    """The characters of a token that have a tag of their own."""
    return "".join(token.split())


def begin_of(tag: str) -> str | None:
    """The tag B-X that corresponds to I-X; None for all other tags."""
    return "B" + tag[1:] if tag.startswith("I-") else None


def legal_tags(tags: list[str], labels: Collection[str]) -> list[str]:
    """Replace each I-X that follows neither B-X nor I-X by B-X, if there is such a label."""
    found = []
    for left, tag in zip(["O", *tags], tags, strict=False):
        begin = begin_of(tag)
        if begin in labels and left not in (begin, tag):
            tag = begin
        found.append(tag)
    return found


def unit_of_characters(units: list[str], joiner: str) -> list[int | None]:
    """The index of the unit that contains each character of the joined text; None for spaces."""
    owners: list[int | None] = []
    for number, unit in enumerate(units):
        if number:
            owners.extend([None] * len(joiner))
        owners.extend(None if character.isspace() else number for character in unit)
    return owners


def first_unit(owners: Iterable[int | None]) -> int | None:
    """The first unit in a list of the units of characters."""
    return next((number for number in owners if number is not None), None)


def has_tokens_of_several_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a token may span several words, because the tokenizer does not split texts at
    spaces."""
    backend = tokenizer.backend_tokenizer
    text = "a b"
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is not None and len(backend.pre_tokenizer.pre_tokenize_str(text)) > 1:
        return False
    spell = speller_of(tokenizer)
    added = tokenizer.get_added_vocab()
    return any(
        b" " in spell(token).strip() for token in tokenizer.get_vocab() if token not in added
    )


def examples_of(encoded: Dataset) -> tuple[list[list[int]], list[np.ndarray]]:
    """The tokens of each encoded sentence, and their labels."""
    return encoded["input_ids"][:], [np.array(labels) for labels in encoded["labels"]]


def by_sentence(tags: Iterable[str], sentences: list[list[str]]) -> list[list[str]]:
    """Divide consecutive tags into sentences with the lengths of `sentences`."""
    left = iter(tags)
    return [list(islice(left, len(units))) for units in sentences]
