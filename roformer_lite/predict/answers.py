"""How a saved model answers: one class for each task, with its options, its input, and the columns
of its answers."""

from __future__ import annotations

import json
import logging
import math
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase
from transformers.configuration_utils import PreTrainedConfig

from hf_roformer_lite.padding_free import padding_free

from ..data.blocks import document_tokens
from ..data.data_files import Row, text_of, value_of
from ..errors import InputError
from ..saved_model import load_complete_model, model_class_of
from ..sentence_models import open_sentence_model
from ..tasks.classify import MULTI, REGRESSION, SINGLE, problem_type_of
from ..tasks.embed import EmbedModel
from ..tasks.rerank import RerankModel
from ..tasks.sentence import SentenceModel
from ..tasks.tag import encode_words, legal_tags, split_sentences
from .engines import ENGINES, Engine

_PARTS_AT_ONCE = 8  # of sentences that are too long
_RANKING = ("top_k", "threshold", "none_label")  # options about labels
_ROUNDING = 2e-4  # between numbers of two engines, which are written with four decimals
_NONE = "-"  # stands for a label below the threshold
# no limit on the number of tokens to draw from
_SAMPLING = {"temperature": 0.8, "top_p": 0.95, "top_k": 0}
_SPACES = ("Ġ", "▁", " ")  # which tokens after a space begin with, by the kind of the tokenizer

logger = logging.getLogger(__name__)

Input = str | list[str]  # a text; or a pair of texts, or the tokens of a sentence


@dataclass
class SavedModel:
    """A model, or an engine in its place, with its tokenizer and the settings of its training, as
    saved."""

    model: PreTrainedModel | Engine
    tokenizer: PreTrainedTokenizerBase
    settings: dict[str, Any]
    positions: int | None = None  # of tokens that the model has, where they end


@dataclass
class Answer:
    """What a model answers to one input.

    Args:
        line: As `predict` writes it for a line of text.
        columns: As it writes it after the columns of a table.
    """

    line: str
    columns: dict[str, Any]

    def agrees_with(self, other: Answer) -> bool:
        """Whether labels, tags and text are equal, and numbers differ by rounding alone."""
        (words, numbers), (their_words, their_numbers) = self._parts(), other._parts()
        close = [
            math.isclose(*pair, abs_tol=_ROUNDING)
            for pair in zip(numbers, their_numbers, strict=False)
        ]
        return words == their_words and len(numbers) == len(their_numbers) and all(close)

    def _parts(self) -> tuple[list[Any], list[float]]:
        """Words and numbers; the scores of several labels are one column of text."""
        scores = {
            name: value
            for name, value in self.columns.items()
            if name.startswith(("score", "value"))
        }
        numbers = re.findall(r"-?\d[\d.e+-]*", " ".join(map(str, scores.values())))
        return [value for name, value in self.columns.items() if name not in scores], [
            *map(float, numbers)
        ]


class Answers(ABC):
    """How models of one task answer."""

    options: ClassVar[tuple[str, ...]] = ()  # those of `predict` that they use
    engines: ClassVar[tuple[str, ...]] = tuple(ENGINES)

    def __init__(self, saved: SavedModel):
        self.saved, self.model, self.tokenizer = saved, saved.model, saved.tokenizer

    @classmethod
    def check(
        cls, task: str, config: PreTrainedConfig, settings: dict[str, Any], options: dict[str, Any]
    ) -> None:
        """Refuse options of `predict` that a saved model does not use, before its weights are read.

        Raises:
            InputError: naming the option and those that it uses.
        """
        foreign = [name for name in options if name not in cls.options]
        if foreign:
            theirs = ", ".join(f"--{name}" for name in cls.options) or "none of these options"
            raise InputError(f"--{foreign[0]} is not for {task} models, which take {theirs}")

    @classmethod
    def load(cls, directory: str, config: PreTrainedConfig, device: torch.device) -> Any:
        """The saved model; `InputError` when a file is missing or wrong."""
        return _padding_free(
            load_complete_model(directory, config, model_class_of(config, directory)).to(device)
        )

    def input_of(self, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        """What is answered of a row of a table; `InputError` when it lacks the column, or that is
        no text."""
        return text_of(row, text_column, "text_column")

    def columns(self, options: dict[str, Any]) -> list[str]:
        """The names of an answer's columns in a table."""
        return ["prediction"]

    @abstractmethod
    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        """An answer to each input, none of them empty, as one batch. `options` are those of the
        class that were given, by their names."""

    def texts(self, ids: torch.Tensor) -> list[Answer]:
        """Tokens as answers that are text; a line has no line breaks."""
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [
            Answer(" ".join(text.split("\n")).strip(), {"prediction": text.strip()})
            for text in texts
        ]

    def check_length(self, inputs: list[Input], encoded: BatchEncoding, more: int = 0) -> None:
        """Refuse an input that, with so many `more` tokens, has more of them than the model has
        positions."""
        lengths = encoded["attention_mask"].sum(-1) + more
        longest, most = int(lengths.argmax()), self.saved.positions
        if most is not None and lengths[longest] > most:
            generated = f", {more} of them to be generated (--max_new_tokens)" if more else ""
            raise InputError(
                f"{inputs[longest][:40]!r} has {lengths[longest]} tokens{generated}; this model has places for {most}"
            )

    def encode(self, *columns: list[str]) -> BatchEncoding:
        """Tensors of texts, or of pairs, with a warning when some are truncated to what the model
        takes."""
        longest = self.tokenizer.model_max_length
        encoded = self.tokenizer(*columns, truncation=True, padding=True, return_tensors="pt")
        if encoded["input_ids"].shape[1] >= longest:
            whole = self.tokenizer(*columns, truncation=False, verbose=False)["input_ids"]
            truncated = sum(len(ids) > longest for ids in whole)
            if truncated:
                logger.warning("%d lines are truncated to %d tokens", truncated, longest)
        return encoded.to(self.model.device)


class Seq2SeqAnswers(Answers):
    """Generated text, by beam search as saved with the model."""

    options = ("beams", "max_new_tokens")

    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        return self.texts(self.model.generate(**self.encode(inputs), **_limits(options)))


class MaskedLMAnswers(Answers):
    """The text with the most probable token in place of each mask."""

    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        encoded = self.tokenizer(inputs, padding=True, return_tensors="pt", verbose=False).to(
            self.model.device
        )
        self.check_length(inputs, encoded)
        logits = self.model(**encoded).logits  # (B, L, vocab)
        logits[..., self.tokenizer.all_special_ids] = -torch.inf  # what a mask hides is text
        masked = encoded["input_ids"] == self.tokenizer.mask_token_id
        filled = torch.where(masked, logits.argmax(-1), encoded["input_ids"])
        return [
            self.texts([self._joined(*row)])[0]
            for row in zip(filled.tolist(), masked.tolist(), strict=True)
        ]

    def _joined(self, ids: list[int], masked: list[bool]) -> list[int]:
        """Without the token of a lone space before a mask that is filled by a token with its own
        space."""
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        pairs = zip(tokens, tokens[1:], masked[1:], strict=False)
        doubled = [
            is_mask and token in _SPACES and next_.startswith(token)
            for token, next_, is_mask in pairs
        ]
        return [
            token for token, left_out in zip(ids, [*doubled, False], strict=True) if not left_out
        ]


class CausalLMAnswers(Answers):
    """Text that continues the input: drawn at random unless `greedy` or `beams` is given."""

    options = (
        "max_new_tokens",
        "temperature",
        "top_p",
        "top_k",
        "repetition_penalty",
        "seed",
        "greedy",
        "beams",
    )

    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        first, _ = document_tokens(self.tokenizer)
        prompts = [first + text for text in inputs]  # no [SEP], which would end the text
        encoded = self.tokenizer(
            prompts,
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
            verbose=False,
        ).to(self.model.device)
        arguments = {"max_new_tokens": 50, **_limits(options), **self._choice_of_tokens(options)}
        self.check_length(inputs, encoded, arguments["max_new_tokens"])
        return self.texts(
            self.model.generate(**encoded, **arguments)[:, encoded["input_ids"].shape[1] :]
        )

    def _choice_of_tokens(self, options: dict[str, Any]) -> dict[str, Any]:
        """Arguments of `generate` that say how the next token is chosen. What was saved with the
        model overrides our own defaults."""
        chosen = {name: options[name] for name in ("repetition_penalty",) if name in options}
        if options.get("greedy"):
            return {**chosen, "do_sample": False, "num_beams": 1}
        if "beams" in options:
            return {**chosen, "do_sample": False}
        for name, default in _SAMPLING.items():
            given = options.get(name, getattr(self.model.generation_config, name, None))
            chosen[name] = default if given is None else given
        return {**chosen, "do_sample": True, "num_beams": 1}


class ClassifyAnswers(Answers):
    """`label TAB probability`, with `top_k` several of them; with several labels for a text, those
    whose probability is above one half, or reaches the `threshold`; for regression the number.
    Without `top_k`, the default of `threshold` is what `--min_precision` chose when the model was
    trained."""

    options = (*_RANKING, "text_pair_column")

    @classmethod
    def check(
        cls, task: str, config: PreTrainedConfig, settings: dict[str, Any], options: dict[str, Any]
    ) -> None:
        super().check(task, config, settings, options)
        ranking = [name for name in _RANKING if name in options]
        if ranking and problem_type_of(config) == REGRESSION:
            raise InputError(f"--{ranking[0]} is for labels; this model gives a number")
        if "none_label" in options and "threshold" not in {**settings, **options}:
            name = options["none_label"]
            raise InputError(
                f"--none_label {name} has no effect without a threshold; give --threshold"
            )
        if options.get("top_k", 1) > config.num_labels:
            raise InputError(
                f"--top_k {options['top_k']}: this model has {config.num_labels} labels"
            )
        if "text_pair_column" in options and settings.get("pairs") is False:
            raise InputError(
                f"--text_pair_column {options['text_pair_column']}: this model takes one text, and no pairs"
            )

    def input_of(self, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        text = text_of(row, text_column, "text_column")
        return (
            text
            if text_pair_column is None
            else [text, text_of(row, text_pair_column, "text_pair_column")]
        )

    def columns(self, options: dict[str, Any]) -> list[str]:
        if problem_type_of(self.model.config) == REGRESSION:
            return ["value"]
        places = (
            [f"_{place}" for place in range(1, options["top_k"] + 1)]
            if "top_k" in options
            else [""]
        )
        return [name + place for place in places for name in ("label", "score")]

    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        takes_pairs, problem_type = (
            self.saved.settings.get("pairs"),
            problem_type_of(self.model.config),
        )
        if "top_k" not in options and self.saved.settings.get("threshold") is not None:
            options = {"threshold": self.saved.settings["threshold"], **options}
        rows = [
            text if isinstance(text, list) else text.split("\t") if takes_pairs else [text]
            for text in inputs
        ]
        for row in rows:
            if takes_pairs and len(row) != 2:
                raise InputError(
                    f"this model takes pairs of texts, separated by a tab or in two columns of a table "
                    f"(--text_column, --text_pair_column), not {row[0]!r}"
                )
        encoded = self.encode(*(list(column) for column in zip(*rows, strict=True)))
        logits = self.model(**encoded).logits.float()  # (B, labels)
        if problem_type == REGRESSION:
            return [
                Answer(f"{value:.4f}", {"value": round(value, 4)})
                for value in logits.squeeze(-1).tolist()
            ]
        scores = logits.softmax(-1) if problem_type == SINGLE else logits.sigmoid()
        if problem_type == MULTI and "top_k" not in options:
            chosen = logits > 0 if "threshold" not in options else scores >= options["threshold"]
            return [self._all_of(*row, options) for row in zip(chosen, scores, strict=True)]
        ranked = scores.sort(dim=-1, descending=True, stable=True)
        best = zip(ranked.indices.tolist(), ranked.values.tolist(), strict=True)
        return [self._first_of(labels, found, options) for labels, found in best]

    def _first_of(self, labels: list[int], scores: list[float], options: dict[str, Any]) -> Answer:
        """The most probable labels; below the threshold, none."""
        names, none = self.model.config.id2label, options.get("none_label", _NONE)
        found: list[str | float] = []
        for label, score in list(zip(labels, scores, strict=True))[: options.get("top_k", 1)]:
            found += [
                none if score < options.get("threshold", 0) else names[label],
                round(score, 4),
            ]
        line = "\t".join(value if isinstance(value, str) else f"{value:.4f}" for value in found)
        return Answer(line, dict(zip(self.columns(options), found, strict=True)))

    def _all_of(
        self, chosen: torch.Tensor, scores: torch.Tensor, options: dict[str, Any]
    ) -> Answer:
        """Every label that was chosen."""
        separator = self.saved.settings.get("label_separator") or ","
        numbers = chosen.nonzero().flatten().tolist()
        label = separator.join(self.model.config.id2label[number] for number in numbers)
        if not numbers and "threshold" in options:
            label = options.get("none_label", _NONE)
        return Answer(
            label, {"label": label, "score": separator.join(f"{scores[i]:.4f}" for i in numbers)}
        )


class TagAnswers(Answers):
    """`token/TAG token/TAG …` as a line, the tags alone as a column. The tokens of a text are
    separated by spaces, or are its characters if the model was trained so.

    A sentence longer than what the model takes is tagged in parts, each for itself; of a word
    longer than that only the beginning is read.
    """

    def input_of(self, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        tokens = value_of(row, text_column, "text_column")
        are_tokens = isinstance(tokens, list) and all(
            isinstance(token, str) and token.strip() for token in tokens
        )
        return tokens if are_tokens else text_of(row, text_column)

    def columns(self, options: dict[str, Any]) -> list[str]:
        return ["tags"]

    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        by_character = self.saved.settings.get("unit") == "characters"
        sentences = [given if isinstance(given, list) else given.split() for given in inputs]
        if by_character:
            sentences = [
                list("".join(words)) if isinstance(given, str) else words
                for given, words in zip(inputs, sentences, strict=True)
            ]
        units = [
            ["".join(word.split()) for word in words] if by_character else words
            for words in sentences
        ]
        found = self._tags_of([[*"".join(words)] if by_character else words for words in units])
        answers = []
        for words, own, tags in zip(sentences, units, found, strict=True):
            if by_character:  # a word has the tag of its first character
                starts = accumulate(map(len, own[:-1]), initial=0)
                tags = legal_tags([tags[start] for start in starts], self.model.config.label2id)
            answers.append(
                Answer(" ".join(map("/".join, zip(words, tags, strict=True))), {"tags": tags})
            )
        return answers

    def _tags_of(self, sentences: list[list[str]]) -> list[list[str]]:
        """The tags of the words of each sentence: a word has that of its first token."""
        joiner, names = self.saved.settings.get("joiner"), self.model.config.id2label
        split = split_sentences(self.tokenizer, sentences, joiner)
        parts = [(i, part) for i, own in enumerate(split) for part in own]
        tags: list[list[str]] = [[] for _ in sentences]
        at_once = max(len(sentences), _PARTS_AT_ONCE)
        for start in range(0, len(parts), at_once):
            owners, batch = zip(*parts[start : start + at_once], strict=True)
            encoded, firsts = encode_words(
                self.tokenizer, list(batch), joiner, self.tokenizer.model_max_length
            )
            padded = self.tokenizer.pad(encoded, padding_side="right", return_tensors="pt").to(
                self.model.device
            )
            best = self.model(**padded).logits.argmax(-1).tolist()  # (B, L)
            for i, row, first in zip(owners, best, firsts, strict=True):
                tags[i] += [
                    names[number]
                    for number, word in zip(row, first, strict=False)
                    if word is not None
                ]
        return tags


class SentenceAnswers(Answers):
    """Answers of a model of sentence-transformers."""

    engines = ("torch",)
    kind: ClassVar[type[SentenceModel]]

    @classmethod
    def load(cls, directory: str, config: PreTrainedConfig, device: torch.device) -> Any:
        super().load(directory, config, device)  # which refuses damaged files
        return _padding_free(open_sentence_model(cls.kind.sentence_class(), directory, str(device)))


class EmbedAnswers(SentenceAnswers):
    """The vector as a list of JSON, with as many digits as a number of 32 bits holds."""

    kind = EmbedModel

    def columns(self, options: dict[str, Any]) -> list[str]:
        return ["embedding"]

    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        vectors = self.model.encode(inputs, batch_size=len(inputs), show_progress_bar=False)
        rows = [[float(f"{number:.8g}") for number in vector] for vector in vectors.tolist()]
        return [Answer(json.dumps(row), {"embedding": row}) for row in rows]


class RerankAnswers(SentenceAnswers):
    """The score of a pair of texts, a query and a document."""

    kind = RerankModel
    options = ("text_pair_column",)

    def input_of(self, row: Row, text_column: str, text_pair_column: str | None) -> Input:
        if text_pair_column is None:
            raise InputError(
                "rerank models score pairs of texts; give --text_pair_column, the column of the second"
            )
        return [
            text_of(row, text_column, "text_column"),
            text_of(row, text_pair_column, "text_pair_column"),
        ]

    def columns(self, options: dict[str, Any]) -> list[str]:
        return ["score"]

    def answer(self, inputs: list[Input], options: dict[str, Any]) -> list[Answer]:
        pairs = [given.split("\t") if isinstance(given, str) else given for given in inputs]
        for pair in pairs:
            if len(pair) != 2:
                raise InputError(
                    "rerank models score pairs of texts, separated by a tab or in two columns of a table; got "
                    f"{pair[0]!r} with {len(pair) - 1} tabs"
                )
        scores = self.model.predict(pairs, batch_size=len(pairs), show_progress_bar=False).tolist()
        return [Answer(f"{score:.4f}", {"score": round(score, 4)}) for score in scores]


ANSWERS: dict[str, type[Answers]] = {
    "seq2seq": Seq2SeqAnswers,
    "mlm": MaskedLMAnswers,
    "causal": CausalLMAnswers,
    "classify": ClassifyAnswers,
    "tag": TagAnswers,
    "embed": EmbedAnswers,
    "rerank": RerankAnswers,
}


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `generate` for the options `beams` and `max_new_tokens`, where they were
    given."""
    arguments = {"num_beams": options["beams"]} if "beams" in options else {}
    if "max_new_tokens" in options:
        # in place of the saved limit
        arguments |= {"max_new_tokens": options["max_new_tokens"], "max_length": None}
    return arguments


def _padding_free(model: Any) -> Any:
    """The model, which computes no padding from now on, where that is possible."""
    with suppress(ValueError):  # the training has said why
        padding_free(model)
    return model.eval()
