"""Fits the scores of the text that a trained classifier or tagger adds to its logits."""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.text_features import (
    RoFormerLiteDocumentScores,
    RoFormerLiteTextScores,
    RoFormerLiteWordScores,
    Words,
)

from ..evaluate.baselines import train_field

_MOST_SCORES = 4_000_000  # rows times labels: 16 MB
_AT_ONCE = 512  # examples
_KEYS = 2**31  # hashes are below
_ADDED = 0.1  # to the sum of a feature over the examples with a label, and over those without
_SHARES = (0.5, 0.0)  # of naive Bayes in the weight of an n-gram: it helps with few labels and harms with many

Examples = Sequence[Sequence[int]]  # token ids of each


def fit_document_scores(
    tokens: torch.Tensor, examples: Examples, answers: np.ndarray, config: RoFormerLiteConfig
) -> RoFormerLiteDocumentScores:
    """A linear support vector machine (ridge regression for numbers) on the n-grams of the training texts, with their
    inverse document frequency as weight. The commonest are taken, as many as fit into 16 MB of scores.

    Args:
        tokens: `token_bytes` of the tokenizer.
        examples: The training texts.
        answers: Classes `(examples,)`, `(examples, labels)` of 0 and 1, or numbers `(examples,)`.
        config: That of the classifier.
    """
    scores = _empty_scores(RoFormerLiteDocumentScores, config, tokens, 1)
    owners, keys, _ = _occurrences(scores, examples)
    hashes = _commonest(keys, config.num_labels)
    if not len(hashes):
        return scores
    found = _matrix(hashes, owners, keys, len(answers))
    rarity = 1 + np.log((1 + len(answers)) / (1 + found.sum(axis=0).A1))
    weights, bias = _linear_model(normalize(found @ diags(rarity)), answers, config.problem_type)
    scores = _empty_scores(RoFormerLiteDocumentScores, config, tokens, len(hashes))
    _fill(scores, hashes=hashes, rarity=rarity, weight=weights, bias=bias)
    return scores


def fit_word_scores(
    tokens: torch.Tensor, examples: Examples, answers: Sequence[np.ndarray], config: RoFormerLiteConfig
) -> RoFormerLiteWordScores:
    """A conditional random field on the words of the training sentences (Lafferty et al. 2001, ICML; the library is
    CRFsuite). Of its features the commonest are taken, as many as fit into 16 MB of scores.

    Args:
        tokens, examples, config: As for `fit_document_scores`.
        answers: The class of each token of each sentence, -100 where there is none.
    """
    scores = _empty_scores(RoFormerLiteWordScores, config, tokens, 1)
    owners, keys, is_first = _occurrences(scores, examples)
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


def read(scores: RoFormerLiteTextScores, examples: Examples) -> Iterator[tuple[Words, torch.Tensor, int]]:
    """Some hundred examples at a time: their words, the number of the example of each token, from 0 on, and how many
    documents or tokens can have scores."""
    for start in range(0, len(examples), _AT_ONCE):
        part = examples[start : start + _AT_ONCE]
        documents = torch.repeat_interleave(torch.tensor([len(ids) for ids in part]))
        words = scores.words_of(torch.tensor([token for ids in part for token in ids]), documents)
        yield words, documents, len(documents) if isinstance(scores, RoFormerLiteWordScores) else len(part)


def _occurrences(scores: RoFormerLiteTextScores, examples: Examples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The number of a document or token and the hash of a feature of it, each pair once; and which of all tokens
    words begin with."""
    parts, first = [], 0
    for words, _, amount in read(scores, examples):
        keys, owners = scores.find_features(words)
        pairs = torch.unique(owners * _KEYS + keys)
        parts.append(((pairs // _KEYS + first).numpy(), (pairs % _KEYS).numpy(), words.is_first.numpy()))
        first += amount
    owners, keys, is_first = zip(*parts, strict=True)
    return np.concatenate(owners), np.concatenate(keys), np.concatenate(is_first)


def _commonest(keys: np.ndarray, labels: int) -> np.ndarray:
    """The commonest features, rising."""
    hashes, counts = np.unique(keys, return_counts=True)
    return np.sort(hashes[np.argsort(-counts, kind="stable")[: _MOST_SCORES // labels]])


def _matrix(hashes: np.ndarray, owners: np.ndarray, keys: np.ndarray, rows: int) -> csr_matrix:
    """1 where an owner has a feature."""
    places = np.searchsorted(hashes, keys).clip(max=len(hashes) - 1)
    known = hashes[places] == keys
    return csr_matrix((np.ones(known.sum()), (owners[known], places[known])), (rows, len(hashes)))


def _tags_of_words(is_first: np.ndarray, answers: Sequence[np.ndarray], names: dict[int, str]) -> list[np.ndarray]:
    """The tag of each word of each sentence.

    What a user labels may have several words, such as `U.S.`. All of them have its tag, but those after the first of
    B-X have I-X if there is this tag. Words before the first label have the commonest tag.
    """
    numbers = {name: number for number, name in names.items()}
    inside = {
        number: numbers.get("I-" + name[2:], number) if name[:2] == "B-" else number for number, name in names.items()
    }
    labelled = np.concatenate(answers)
    commonest = int(np.bincount(labelled[labelled >= 0]).argmax())
    tags, start = [], 0
    for sentence in answers:
        found, last = [], commonest
        for answer, is_word in zip(sentence.tolist(), is_first[start : start + len(sentence)], strict=True):
            last = answer if answer >= 0 else inside[last]
            if is_word:
                found.append(last)
        tags.append(np.array(found, dtype=int))
        start += len(sentence)
    return tags


def _conditional_random_field(
    features: csr_matrix, tags: Sequence[np.ndarray], labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights `(features, labels)` and transitions `(labels, labels)`, from a tag to the next one."""
    names = [str(number) for number in range(max(features.shape[1], labels))]

    def sentences() -> Iterator[tuple[list[list[str]], list[str]]]:
        start = 0
        for sentence in tags:
            borders = pairwise(features.indptr[start : start + len(sentence) + 1])
            words = [[names[place] for place in features.indices[first:end]] for first, end in borders]
            yield words, [names[tag] for tag in sentence]
            start += len(sentence)

    found = train_field(sentences()).info()
    weights, transitions = np.zeros((features.shape[1], labels)), np.zeros((labels, labels))
    for table, entries in ((weights, found.state_features), (transitions, found.transitions)):
        for (row, label), weight in entries.items():
            table[int(row), int(label)] = weight
    return weights, transitions


def _linear_model(features: csr_matrix, answers: np.ndarray, problem_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights `(n-grams, labels)` and bias `(labels,)`."""
    if problem_type == "regression":
        ridge = Ridge().fit(features, answers)
        return ridge.coef_[:, None], np.array([ridge.intercept_])
    if problem_type == "multi_label_classification":
        return _machines(features, answers, _best_share(features, answers, exclusive=False))
    labels = np.eye(answers.max() + 1, dtype=int)[answers]  # (examples, labels)
    if labels.shape[1] != 2:
        return _machines(features, labels, _best_share(features, labels, exclusive=True))
    second = labels[:, 1:]  # one machine tells two classes apart
    weights, bias = _machines(features, second, _best_share(features, second, exclusive=False))
    return np.hstack((-weights, weights)), np.concatenate((-bias, bias))


def _best_share(features: csr_matrix, labels: np.ndarray, exclusive: bool) -> float:
    """The share of naive Bayes with which more answers are right on a fifth of the examples that was held out."""
    order = np.random.default_rng(0).permutation(len(labels))
    held_out, kept = np.split(order, [len(order) // 5])

    def accuracy(share: float) -> float:
        weights, bias = _machines(features[kept], labels[kept], share)
        found = features[held_out] @ weights + bias
        answers = np.eye(found.shape[1])[found.argmax(axis=1)] if exclusive else found > 0
        return float((answers == labels[held_out]).mean())

    return max(_SHARES, key=accuracy) if len(held_out) else _SHARES[0]


def _machines(features: csr_matrix, labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    machines = [_one_against_rest(features, is_label, share) for is_label in labels.T]
    return np.stack([weights for weights, _ in machines], axis=1), np.array([bias for _, bias in machines])


def _one_against_rest(features: csr_matrix, is_label: np.ndarray, share: float) -> tuple[np.ndarray, float]:
    """A support vector machine on features that are weighted by how much they tell about the label: a share of each
    weight is the logarithm of the ratio of naive Bayes, as in Wang & Manning (2012), the rest is the same for all."""
    if is_label.min() == is_label.max():  # there is nothing to tell apart
        return np.zeros(features.shape[1]), 1.0 if is_label.max() else -1.0
    with_label, without = (_ADDED + features[is_label == truth].sum(axis=0).A1 for truth in (1, 0))
    ratios = np.abs(np.log(with_label / with_label.sum()) - np.log(without / without.sum()))
    mean_square = (features.multiply(features) @ np.square(ratios)).mean()
    if mean_square == 0:  # no feature tells anything
        share = 0.0
    importance = 1 - share + share * ratios / np.sqrt(mean_square or 1)
    machine = LinearSVC().fit(features @ diags(importance), is_label)
    return machine.coef_[0] * importance, float(machine.intercept_[0])
