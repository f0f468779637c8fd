"""What the page asks a model: the answers of `predict`, texts in order of their scores, and words behind a mask."""

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from transformers import set_seed

from ..commands.predict import SEED, AnsweringArguments
from ..commands.predictor import Predictor
from ..commands.tables import TableWriter
from ..errors import InputError
from ..training.tasks.answers import Answer, Input
from ..training.tasks.sentence import PairTask
from .attention import AttentionMaps, attention_maps

MOST_LINES = 1000  # that one click asks about; `predict` has no limit
LONGEST_TEXT = 20_000  # characters
_BATCH = 32  # as `predict`, so that what is drawn at random is the same


@dataclass(frozen=True)
class Candidate:
    """A token that may stand behind a mask.

    Args:
        mask: Number of the mask in the text, from 1.
        token: The token as text; white space as a dot.
        probability: Among all tokens that are text.
    """

    mask: int
    token: str
    probability: float


class Trial:
    """A saved model that visitors of a page ask. Questions wait for each other: the model has one state, and so have
    the random numbers.

    Args:
        predictor: As `roformer-lite predict` loads it.
    """

    def __init__(self, predictor: Predictor):
        self.predictor, self.task, self.saved = predictor, predictor.task, predictor.saved
        self._turn = threading.Lock()
        self._maps = lru_cache(maxsize=8)(self._compute_maps)  # the controls of a picture ask for the same maps again
        self._vectors = lru_cache(maxsize=2)(self._compute_vectors)  # of the texts that are compared

    @property
    def takes_pairs(self) -> bool:
        """Whether the model answers pairs of texts."""
        return bool(self.saved.settings.get("pairs")) or issubclass(self.task, PairTask)

    @property
    def has_attention(self) -> bool:
        """Whether attention can be shown: a model of torch computes, and no exported graph."""
        return isinstance(self.saved.model, torch.nn.Module)

    def answer(self, inputs: Sequence[Input], options: dict[str, Any] | None = None) -> list[Answer]:
        """What `predict` answers to the same texts, with the same options.

        Args:
            inputs: Texts, or pairs of texts, whatever the task takes.
            options: Of `predict` for this task, by their names.

        Raises:
            InputError: when an option has an impossible value, or there is more text than the page takes.
        """
        options = AnsweringArguments(**(options or {})).given
        _check_size(inputs)
        with self._turn:
            set_seed(options.pop("seed", SEED))
            return self.predictor.answer(inputs, _BATCH, options)

    def table(self, lines: Sequence[str], options: dict[str, Any] | None = None) -> str:
        """The answers to several texts as a .csv file: the column `text`, and behind it those of `predict`."""
        stream = io.StringIO(newline="")
        writer = TableWriter(stream, ".csv")
        for line, answer in zip(lines, self.answer(lines, options), strict=True):
            writer.write({"text": line, **answer.columns})
        return stream.getvalue()

    def rank(self, query: str, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Texts with their scores, the highest first: the score of the pair for models of pairs, otherwise the cosine.

        Args:
            query: What the texts are compared with.
            texts: None of them empty.
        """
        if self.takes_pairs:
            scores = [answer.columns["score"] for answer in self.answer([[query, text] for text in texts])]
        else:
            scores = self._cosines(query, tuple(texts))
        return sorted(zip(texts, scores, strict=True), key=lambda pair: -pair[1])

    def _cosines(self, query: str, texts: tuple[str, ...]) -> list[float]:
        others = self._vectors(texts)
        (answer,) = self.answer([query])
        own = next(iter(answer.columns.values()))
        return [_cosine(own, other) for other in others]

    def _compute_vectors(self, texts: tuple[str, ...]) -> list[Any]:
        return [next(iter(answer.columns.values())) for answer in self.answer(texts)]

    def candidates(self, text: str, count: int = 5) -> list[Candidate]:
        """The most probable tokens behind each mask of a text; the first of each is what `predict` fills in.

        Raises:
            InputError: when there is no mask.
        """
        _check_size([text])
        tokenizer = self.saved.tokenizer
        encoded = tokenizer(text, return_tensors="pt", verbose=False)
        masks = (encoded["input_ids"][0] == tokenizer.mask_token_id).nonzero().flatten()
        if not len(masks):
            raise InputError(f"the text has no {tokenizer.mask_token}; write it where a word shall be found")
        with self._turn, torch.inference_mode():
            logits = self.saved.model(**encoded.to(self.saved.model.device)).logits[0, masks].float()  # (masks, vocab)
            logits[:, tokenizer.all_special_ids] = -torch.inf  # what a mask hides is text
            best = logits.softmax(-1).topk(count)
        return [
            Candidate(mask, tokenizer.decode([token]).strip() or "·", probability)
            for mask, row in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True), 1)
            for token, probability in zip(*row, strict=True)
        ]

    def attention(self, given: Input, options: dict[str, Any] | None = None) -> list[AttentionMaps]:
        """Where the model looks while it reads `given`, and while it writes its answer; see `attention_maps`."""
        _check_size([given])
        parts = (given,) if isinstance(given, str) else tuple(given)
        return self._maps(parts, tuple(sorted((options or {}).items())))

    def _compute_maps(self, parts: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> list[AttentionMaps]:
        given = AnsweringArguments(**dict(options)).given
        with self._turn:
            set_seed(given.pop("seed", SEED))
            return attention_maps(self.predictor, list(parts), given)


def _check_size(inputs: Sequence[Input]) -> None:
    if len(inputs) > MOST_LINES:
        raise InputError(f"{len(inputs)} texts; this page takes {MOST_LINES} at once, and `roformer-lite predict` any")
    longest = max((sum(map(len, given)) for given in inputs), default=0)
    if longest > LONGEST_TEXT:
        raise InputError(f"a text of {longest} characters; this page takes {LONGEST_TEXT}")


def _cosine(own: Any, other: Any) -> float:
    """Of two vectors, which are lists or, if sparse, weights by their names; 0 where one has no direction."""
    if isinstance(own, dict):
        names = sorted({*own, *other})
        own, other = ([vector.get(name, 0.0) for name in names] for vector in (own, other))
    lengths = float(np.linalg.norm(own) * np.linalg.norm(other))
    return round(float(np.dot(own, other)) / lengths, 4) if lengths else 0.0
