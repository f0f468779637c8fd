"""Fits the scores of the text that a trained classifier or tagger adds to its logits. Only a
training needs scipy and scikit-learn, which are imported in functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.text_features import (
    RoFormerLiteDocumentScores,
    RoFormerLiteTextScores,
    RoFormerLiteWordScores,
    Words,
)

from ..evaluate.baselines import train_crf

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_MOST_SCORES = 4_000_000  # rows times labels: 16 MB
_AT_ONCE = 512  # examples
_KEYS = 2**31  # hashes are below
_ADDED = 0.1  # to the sum of a feature over the examples with a label, and over those without
# of naive Bayes in the weight of an n-gram: it helps some data and harms others
_SHARES = (0.0, 0.5)
# examples, and examples times labels, to choose between them by
_FEWEST_TRIED, _MOST_TRIED = 30, 300_000
_COST = 2.0  # of an error, against the size of the weights: `C` of scikit-learn
# The first bytes of kana and Han. Text in which so many characters begin so is read by the
# character.
_HAN, _MOSTLY = (0xE3, 0xE9), 0.25

Examples = Sequence[Sequence[int]]  # token ids of each


def fit_document_scores(
    tokens: torch.Tensor,
    examples: Examples,
    answers: np.ndarray,
    config: RoFormerLiteConfig,
    importance: np.ndarray | None = None,
) -> RoFormerLiteDocumentScores:
    """A linear support vector machine (ridge regression for numbers) on the n-grams of the training
    texts, with TF-IDF as weight. The commonest are taken, as many as fit into 16 MB of scores.

    They are those of the baseline: one or two words, and parts of words, both sorts with the same
    influence; in Chinese and Japanese one to three characters.

    Args:
        tokens: `token_bytes` of the tokenizer.
        examples: The training texts.
        answers: Classes `(examples,)`, `(examples, labels)` of 0 and 1, or numbers `(examples,)`.
        config: That of the classifier.
        importance: Of each example, `(examples,)`. Default: all are alike.
    """
    from scipy.sparse import diags
    from sklearn.preprocessing import normalize

    config = copy(config)
    config.classifier_text_counts = True
    scores = _empty_scores(RoFormerLiteDocumentScores, config, tokens, 1)
    # of what find_ngrams gives
    groups = ((0, 1, 2),) if _is_mostly_han(scores, examples) else ((0,), (2,))

    def find(words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        found = scores.find_ngrams(words)
        keys = [found[n][0] + place * _KEYS for place, group in enumerate(groups) for n in group]
        return torch.cat(keys), torch.cat([found[n][1] for group in groups for n in group])

    owners, keys, counts, _ = _occurrences(scores, examples, find)
    kept = _commonest(keys, config.num_labels)
    if not len(kept):
        return scores
    hashes, first = np.unique(kept % _KEYS, return_index=True)
    kept = kept[first]
    found = _matrix(kept, owners, keys, len(answers), 1 + np.log(counts))
    rarity = 1 + np.log((1 + len(answers)) / (1 + found.getnnz(axis=0)))
    found = found @ diags(rarity)
    squares, group_of = found.multiply(found).sum(axis=0).A1, kept // _KEYS
    influence = np.sqrt(np.bincount(group_of, squares) / len(answers))[group_of]
    weights, bias = _linear_model(
        normalize(found @ diags(1 / influence)), answers, config.problem_type, importance
    )
    scores = _empty_scores(RoFormerLiteDocumentScores, config, tokens, len(hashes))
    _fill(scores, hashes=hashes, rarity=rarity / influence, weight=weights, bias=bias)
    return scores


def _is_mostly_han(scores: RoFormerLiteTextScores, examples: Examples) -> bool:
    """Whether the texts, or some hundred of them, are written without spaces."""
    words, _, _ = next(read(scores, examples))
    first = words.text[(words.text < 0x80) | (words.text >= 0xC0)]  # of each character
    return bool(((first >= _HAN[0]) & (first <= _HAN[1])).float().mean() > _MOSTLY)


def fit_word_scores(
    tokens: torch.Tensor,
    examples: Examples,
    answers: Sequence[np.ndarray],
    config: RoFormerLiteConfig,
) -> RoFormerLiteWordScores:
    """A conditional random field on the words of the training sentences (Lafferty et al. 2001,
    ICML; the library is CRFsuite). Of its features the commonest are taken, as many as fit into 16
    MB of scores.

    Args:
        tokens, examples, config: As for `fit_document_scores`.
        answers: The class of each token of each sentence, -100 where there is none.
    """
    scores = _empty_scores(RoFormerLiteWordScores, config, tokens, 1)
    owners, keys, _, is_first = _occurrences(scores, examples, scores.find_features)
    tags = _tags_of_words(is_first, answers, config.id2label)  # (sentences) of (words,)
    row_of_token = np.cumsum(is_first) - 1
    owners, keys = row_of_token[owners[is_first[owners]]], keys[is_first[owners]]
    hashes = _commonest(keys, config.num_labels)
    if not len(hashes):
        return scores
    found = _matrix(hashes, owners, keys, sum(map(len, tags)))
    weights, transitions = _conditional_random_field(found, tags, config.num_labels)
    used = np.flatnonzero(np.abs(weights).sum(axis=1))
    scores = _empty_scores(RoFormerLiteWordScores, config, tokens, max(1, len(used)))
    if len(used):
        _fill(scores, hashes=hashes[used], weight=weights[used], transitions=transitions)
    return scores


def _empty_scores(
    kind: type[RoFormerLiteTextScores], config: RoFormerLiteConfig, tokens: torch.Tensor, rows: int
) -> RoFormerLiteTextScores:
    sized = copy(config)
    sized.classifier_text_features = rows
    scores = kind(sized, config.num_labels)
    scores.token_bytes[: len(tokens)] = tokens
    return scores


@torch.no_grad()
def _fill(scores: RoFormerLiteTextScores, **values: np.ndarray) -> None:
    for name, value in values.items():
        getattr(scores, name).copy_(torch.from_numpy(value))


def read(
    scores: RoFormerLiteTextScores, examples: Examples
) -> Iterator[tuple[Words, torch.Tensor, int]]:
    """Some hundred examples at a time: their words, the number of the example of each token, from 0
    on, and how many documents or tokens can have scores."""
    for start in range(0, len(examples), _AT_ONCE):
        part = examples[start : start + _AT_ONCE]
        documents = torch.repeat_interleave(torch.tensor([len(ids) for ids in part]))
        words = scores.words_of(torch.tensor([token for ids in part for token in ids]), documents)
        yield (
            words,
            documents,
            len(documents) if isinstance(scores, RoFormerLiteWordScores) else len(part),
        )


def _occurrences(
    scores: RoFormerLiteTextScores,
    examples: Examples,
    find: Callable[[Words], tuple[torch.Tensor, torch.Tensor]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The number of a document or token, the key of a feature of it, each pair once, and how often
    it occurs there; and which of all tokens words begin with. `find` gives the keys, below 2 to the
    power of 32, and their owners."""
    parts, first = [], 0
    for words, _, amount in read(scores, examples):
        keys, owners = find(words)
        pairs, counts = torch.unique(owners * (2 * _KEYS) + keys, return_counts=True)
        own, keys = pairs // (2 * _KEYS) + first, pairs % (2 * _KEYS)
        parts.append(
            (own.int().numpy(), keys.numpy(), counts.int().numpy(), words.is_first.numpy())
        )
        first += amount
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def _commonest(keys: np.ndarray, labels: int) -> np.ndarray:
    """The commonest features, rising."""
    hashes, counts = np.unique(keys, return_counts=True)
    return np.sort(hashes[np.argsort(-counts, kind="stable")[: _MOST_SCORES // labels]])


def _matrix(
    hashes: np.ndarray,
    owners: np.ndarray,
    keys: np.ndarray,
    rows: int,
    values: np.ndarray | None = None,
) -> csr_matrix:
    """The values, 1 by default, where an owner has a feature. `hashes` are the keys of the columns,
    in any order."""
    from scipy.sparse import csr_matrix

    order = np.argsort(hashes)
    places = np.searchsorted(hashes, keys, sorter=order).clip(max=len(hashes) - 1)
    columns = order[places].astype(np.int32)
    known = hashes[columns] == keys
    values = np.ones(len(keys), dtype=bool) if values is None else values
    return csr_matrix((values[known], (owners[known], columns[known])), (rows, len(hashes)))


def _tags_of_words(
    is_first: np.ndarray, answers: Sequence[np.ndarray], names: dict[int, str]
) -> list[np.ndarray]:
    """The tag of each word of each sentence.

    What a user labels may have several words, such as `U.S.`. All of them have its tag, but those
    after the first of B-X have I-X if there is this tag. Words before the first label have the
    commonest tag.
    """
    numbers = {name: number for number, name in names.items()}
    inside = {
        number: numbers.get("I-" + name[2:], number) if name[:2] == "B-" else number
        for number, name in names.items()
    }
    labelled = np.concatenate(answers)
    commonest = int(np.bincount(labelled[labelled >= 0]).argmax())
    tags, start = [], 0
    for sentence in answers:
        found, last = [], commonest
        for answer, is_word in zip(
            sentence.tolist(), is_first[start : start + len(sentence)], strict=True
        ):
            last = answer if answer >= 0 else inside[last]
            if is_word:
                found.append(last)
        tags.append(np.array(found, dtype=int))
        start += len(sentence)
    return tags


def _conditional_random_field(
    features: csr_matrix, tags: Sequence[np.ndarray], labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights `(features, labels)` and transitions `(labels, labels)`, from a tag to the next
    one."""
    names = [str(number) for number in range(max(features.shape[1], labels))]

    def sentences() -> Iterator[tuple[list[list[str]], list[str]]]:
        start = 0
        for sentence in tags:
            borders = pairwise(features.indptr[start : start + len(sentence) + 1])
            words = [
                [names[place] for place in features.indices[first:end]] for first, end in borders
            ]
            yield words, [names[tag] for tag in sentence]
            start += len(sentence)

    found = train_crf(sentences()).info()
    weights, transitions = np.zeros((features.shape[1], labels)), np.zeros((labels, labels))
    for table, entries in ((weights, found.state_features), (transitions, found.transitions)):
        for (row, label), weight in entries.items():
            table[int(row), int(label)] = weight
    return weights, transitions


def _linear_model(
    features: csr_matrix, answers: np.ndarray, problem_type: str, importance: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights `(n-grams, labels)` and bias `(labels,)`."""
    from sklearn.linear_model import Ridge

    if problem_type == "regression":
        ridge = Ridge().fit(features, answers)
        return ridge.coef_[:, None], np.array([ridge.intercept_])
    is_multi = problem_type == "multi_label_classification"
    # (examples, labels)
    labels = answers if is_multi else np.eye(answers.max() + 1, dtype=int)[answers]
    if labels.shape[1] == 2 and not is_multi:
        labels = labels[:, 1:]  # one machine tells two classes apart
    exclusive = labels.shape[1] > 1 and not is_multi
    share = _SHARES[0]
    if len(labels) >= _FEWEST_TRIED:
        some = np.random.default_rng(0).permutation(len(labels))[: _MOST_TRIED // labels.shape[1]]
        share = _best_share(
            features=features[some],
            labels=labels[some],
            importance=None if importance is None else importance[some],
            exclusive=exclusive,
        )
    machines = NaiveBayesMachines(share=share, exclusive=exclusive)
    machines.fit(features, labels, importance)
    if is_multi or labels.shape[1] > 1:
        return machines.weights, machines.bias
    return np.hstack((-machines.weights, machines.weights)), np.concatenate(
        (-machines.bias, machines.bias)
    )


def _best_share(
    features: csr_matrix, labels: np.ndarray, importance: np.ndarray | None, exclusive: bool
) -> float:
    """The share of naive Bayes with which most answers are right, in a cross-validation with three
    folds. Of equal ones it is the first."""
    from sklearn.model_selection import KFold

    means = []
    for share in _SHARES:
        fractions = []
        for known, asked in KFold(3).split(labels):
            machines = NaiveBayesMachines(share=share, exclusive=exclusive)
            known_importance = None if importance is None else importance[known]
            machines.fit(features[known], labels[known], known_importance)
            fractions.append(machines.score(features[asked], labels[asked]))
        means.append(np.mean(fractions))
    return _SHARES[int(np.argmax(means))]


class NaiveBayesMachines:
    """A linear support vector machine for each label, on features that are weighted by how much
    they tell about it: a share of each weight is the logarithm of the ratio of naive Bayes, as in
    Wang & Manning (2012), the rest is the same for all.

    Args:
        share: From 0 to 1.
        exclusive: Whether an example has one label, that of the highest score, and not all with a
            positive one.
    """

    def __init__(self, share: float = 0.0, exclusive: bool = True):
        self.share, self.exclusive = share, exclusive

    def fit(
        self, features: csr_matrix, labels: np.ndarray, importance: np.ndarray | None = None
    ) -> None:
        """Find `weights` `(features, labels)` and `bias` `(labels,)` from examples `(examples,
        features)` and their `labels` `(examples, labels)` of 0 and 1."""
        machines = [self._one_against_rest(features, is_label, importance) for is_label in labels.T]
        self.weights = np.stack([weights for weights, _ in machines], axis=1)
        self.bias = np.array([bias for _, bias in machines])

    def score(self, features: csr_matrix, labels: np.ndarray) -> float:
        """The fraction of answers that are right."""
        found = features @ self.weights + self.bias
        answers = np.eye(found.shape[1])[found.argmax(axis=1)] if self.exclusive else found > 0
        return float((answers == labels).mean())

    def _one_against_rest(
        self, features: csr_matrix, is_label: np.ndarray, importance: np.ndarray | None
    ) -> tuple[np.ndarray, float]:
        from scipy.sparse import diags
        from sklearn.svm import LinearSVC

        if is_label.min() == is_label.max():  # there is nothing to tell apart
            return np.zeros(features.shape[1]), 1.0 if is_label.max() else -1.0
        machine = LinearSVC(C=_COST)
        if not self.share:
            machine.fit(features, is_label, importance)
            return machine.coef_[0], float(machine.intercept_[0])
        with_label, without = (
            _ADDED + features[is_label == truth].sum(axis=0).A1 for truth in (1, 0)
        )
        ratios = np.abs(np.log(with_label / with_label.sum()) - np.log(without / without.sum()))
        mean_square = (features.multiply(features) @ np.square(ratios)).mean()
        share = self.share if mean_square else 0.0  # no feature tells anything
        weights = 1 - share + share * ratios / np.sqrt(mean_square or 1)
        machine.fit(features @ diags(weights), is_label, importance)
        return machine.coef_[0] * weights, float(machine.intercept_[0])
