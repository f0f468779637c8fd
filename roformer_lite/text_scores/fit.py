"""Fits the scores of the text that a trained classifier or tagger adds to its logits.

Only training needs scipy and scikit-learn, so they are imported in functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.ngram_scores import RoFormerLiteDocumentScores, RoFormerLiteTextScores
from hf_roformer_lite.model.tag_scores import RoFormerLiteWordScores
from hf_roformer_lite.model.words_of_tokens import Words

from ..evaluate.baselines import train_crf
from .linear_model import fit_linear_model

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# The largest number of features times labels, at which the scores take 16 MB.
MAX_SCORES = 4_000_000
# The words of this many examples are read at once.
NUM_READ_TOGETHER = 512
# All hashes are below this number. Multiples of it are added to keep groups of n-grams apart.
NUM_HASHES = 2**31
MAX_GROUPS = 2
# The UTF-8 codes of kana and Han begin with a byte in this range. Texts are read character by
# character if more than this share of their characters does.
HAN_BYTES = (0xE3, 0xE9)
MIN_HAN_SHARE = 0.25

# The token ids of each example.
Examples = Sequence[Sequence[int]]
FindFeatures = Callable[[Words], tuple[torch.Tensor, torch.Tensor]]
Scores = TypeVar("Scores", bound=RoFormerLiteTextScores)


def fit_document_scores(
    tokens: torch.Tensor,
    examples: Examples,
    answers: np.ndarray,
    config: RoFormerLiteConfig,
    importance: np.ndarray | None = None,
    calibrates: bool = False,
) -> RoFormerLiteDocumentScores:
    """Fit a linear support vector machine (ridge regression for numbers) to the most frequent
    n-grams of the training texts, weighted by TF-IDF.

    The n-grams are the same as in the baseline: one or two words and parts of words, two groups
    with the same influence, or one to three characters in Chinese and Japanese.

    Args:
        tokens: `token_bytes` of the tokenizer.
        examples: The training texts.
        answers: Classes `(examples,)`, `(examples, labels)` of 0 and 1, or numbers `(examples,)`.
        config: The configuration of the classifier.
        importance: The weight of each example, `(examples,)`. Default: equal weights.
        calibrates: Whether the softmax of the scores should be a calibrated probability by itself;
            see `fit_linear_model`.
    """
    from scipy.sparse import diags
    from sklearn.preprocessing import normalize

    config = copy(config)
    config.classifier_text_counts = True
    scores = empty_scores(RoFormerLiteDocumentScores, config, tokens, num_features=1)
    # These are indices of the lists of n-grams that `find_ngrams` returns.
    groups: list[tuple[int, ...]] = [(0,), (2,)]
    if is_mostly_han(scores, examples):
        groups = [(0, 1, 2)]

    def find_features(words: Words) -> tuple[torch.Tensor, torch.Tensor]:
        ngrams = scores.find_ngrams(words)
        keys = []
        owners = []
        for number, group in enumerate(groups):
            for place in group:
                keys.append(ngrams[place][0] + number * NUM_HASHES)
                owners.append(ngrams[place][1])
        return torch.cat(keys), torch.cat(owners)

    found = find_occurrences(scores, examples, find_features)
    kept = most_frequent(found.keys, config.num_labels)
    if not len(kept):
        return scores
    # If n-grams of different groups have the same hash, one of them is kept.
    hashes, first = np.unique(kept % NUM_HASHES, return_index=True)
    kept = kept[first]
    features = make_matrix(kept, found, len(answers), values=1 + np.log(found.counts))
    rarity = 1 + np.log((1 + len(answers)) / (1 + features.getnnz(axis=0)))
    features = features @ diags(rarity)
    square_sums = features.multiply(features).sum(axis=0).A1
    group_of_feature = kept // NUM_HASHES
    mean_squares = np.bincount(group_of_feature, square_sums) / len(answers)
    influence = np.sqrt(mean_squares)[group_of_feature]
    weights, bias = fit_linear_model(
        features=normalize(features @ diags(1 / influence)),
        answers=answers,
        num_labels=config.num_labels,
        problem_type=config.problem_type,
        importance=importance,
        calibrates=calibrates,
    )
    scores = empty_scores(RoFormerLiteDocumentScores, config, tokens, num_features=len(hashes))
    fill(scores, hashes=hashes, rarity=rarity / influence, weight=weights, bias=bias)
    return scores


def is_mostly_han(scores: RoFormerLiteTextScores, examples: Examples) -> bool:
    """Whether many characters of the first few hundred texts are kana or Han."""
    words, _, _ = next(read(scores, examples))
    is_lead = (words.text < 0x80) | (words.text >= 0xC0)
    lead_bytes = words.text[is_lead]
    is_han = (lead_bytes >= HAN_BYTES[0]) & (lead_bytes <= HAN_BYTES[1])
    return bool(is_han.float().mean() > MIN_HAN_SHARE)


def fit_word_scores(
    tokens: torch.Tensor,
    examples: Examples,
    answers: Sequence[np.ndarray],
    config: RoFormerLiteConfig,
) -> RoFormerLiteWordScores:
    """Fit a conditional random field with the most frequent features to the words of the training
    sentences (Lafferty et al. 2001, ICML; with the library CRFsuite).

    Args:
        tokens: `token_bytes` of the tokenizer.
        examples: The training sentences.
        answers: The class of each token of each sentence, or -100.
        config: The configuration of the tagger.
    """
    scores = empty_scores(RoFormerLiteWordScores, config, tokens, num_features=1)
    found = find_occurrences(scores, examples, scores.find_features)
    # All tokens have features, but only those of the first token of each word are used.
    is_kept = found.is_first[found.owners]
    word_of_token = np.cumsum(found.is_first) - 1
    found.owners = word_of_token[found.owners[is_kept]]
    found.keys = found.keys[is_kept]
    hashes = most_frequent(found.keys, config.num_labels)
    if not len(hashes):
        return scores
    features = make_matrix(hashes, found, int(found.is_first.sum()))
    tags = tags_of_words(tokens, examples, answers, config)
    weights, transitions = fit_random_field(features, tags, config.num_labels)
    used = np.flatnonzero(np.abs(weights).sum(axis=1))
    if not len(used):
        return scores
    scores = empty_scores(RoFormerLiteWordScores, config, tokens, num_features=len(used))
    fill(scores, hashes=hashes[used], weight=weights[used], transitions=transitions)
    return scores


def empty_scores(
    kind: type[Scores],
    config: RoFormerLiteConfig,
    tokens: torch.Tensor,
    num_features: int,
) -> Scores:
    sized = copy(config)
    sized.classifier_text_features = num_features
    scores = kind(sized, config.num_labels)
    scores.set_token_bytes(tokens)
    return scores


@torch.no_grad()
def fill(scores: RoFormerLiteTextScores, **values: np.ndarray) -> None:
    """Copy values into the weights and buffers of the scores."""
    for name, value in values.items():
        getattr(scores, name).copy_(torch.from_numpy(value))


def read(
    scores: RoFormerLiteTextScores, examples: Examples
) -> Iterator[tuple[Words, torch.Tensor, int]]:
    """Read a few hundred examples at a time.

    Returns:
        The words, the index of the example of each token, which restarts from 0, and the number of
        documents or tokens that can have scores.
    """
    for start in range(0, len(examples), NUM_READ_TOGETHER):
        part = examples[start : start + NUM_READ_TOGETHER]
        ids = torch.tensor([token for example in part for token in example])
        documents = torch.repeat_interleave(torch.tensor([len(example) for example in part]))
        words = scores.words_of(ids, documents)
        num_owners = len(part)
        if isinstance(scores, RoFormerLiteWordScores):
            num_owners = len(documents)
        yield words, documents, num_owners


@dataclass
class Occurrences:
    """The features of documents or tokens.

    Attributes:
        keys: The features, `(occurrences,)`, without repetitions within an owner.
        owners: The documents or tokens that have the features, `(occurrences,)`.
        counts: How often the owner has the feature, `(occurrences,)`.
        is_first: Whether a word begins in the token, for the tokens of all examples, `(N,)`.
    """

    keys: np.ndarray
    owners: np.ndarray
    counts: np.ndarray
    is_first: np.ndarray


def find_occurrences(
    scores: RoFormerLiteTextScores,
    examples: Examples,
    find_features: FindFeatures,
) -> Occurrences:
    """Find the features of all examples with `find_features`, which returns their keys and
    owners."""
    num_keys = MAX_GROUPS * NUM_HASHES
    parts = []
    num_before = 0
    for words, _, num_owners in read(scores, examples):
        keys, owners = find_features(words)
        pairs, counts = torch.unique(owners * num_keys + keys, return_counts=True)
        owners = pairs // num_keys + num_before
        keys = pairs % num_keys
        parts.append((keys, owners.int(), counts.int(), words.is_first))
        num_before += num_owners
    return Occurrences(*(torch.cat(part).numpy() for part in zip(*parts, strict=True)))


def most_frequent(keys: np.ndarray, num_labels: int) -> np.ndarray:
    """The most frequent features, in ascending order, as many as `MAX_SCORES` allows."""
    hashes, counts = np.unique(keys, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return np.sort(hashes[order[: MAX_SCORES // num_labels]])


def make_matrix(
    columns: np.ndarray,
    found: Occurrences,
    num_rows: int,
    values: np.ndarray | None = None,
) -> csr_matrix:
    """Make a matrix `(num_rows, columns)` with the value of each feature of each owner.

    Args:
        columns: The features of the columns, in any order.
        found: The features of the owners.
        num_rows: The number of owners.
        values: `(occurrences,)`. Default: ones.
    """
    from scipy.sparse import csr_matrix

    order = np.argsort(columns)
    places = np.searchsorted(columns, found.keys, sorter=order)
    column_of = order[places.clip(max=len(columns) - 1)].astype(np.int32)
    is_known = columns[column_of] == found.keys
    if values is None:
        values = np.ones(len(found.keys), dtype=bool)
    coordinates = (found.owners[is_known], column_of[is_known])
    return csr_matrix((values[is_known], coordinates), (num_rows, len(columns)))


def tags_of_words(
    tokens: torch.Tensor,
    examples: Examples,
    answers: Sequence[np.ndarray],
    config: RoFormerLiteConfig,
) -> list[list[int]]:
    """The tag of each word that a model reads in each sentence.

    A unit that the user has tagged may consist of several of these words, such as `U.S.`. All of
    them get its tag, except that the words after the first of B-X get I-X if that tag exists. Words
    before the first label get the most frequent tag.

    The arguments are those of `fit_word_scores`.
    """
    labelled = np.concatenate(answers)
    most_frequent_tag = int(np.bincount(labelled[labelled >= 0]).argmax())
    scores = empty_scores(RoFormerLiteWordScores, config, tokens, num_features=1)
    is_first = torch.cat([words.is_first for words, _, _ in read(scores, examples)])
    left = iter(is_first.tolist())
    tags = []
    for sentence in answers:
        own_tags = []
        tag = most_frequent_tag
        for answer, begins in zip(sentence.tolist(), left, strict=False):
            tag = answer if answer >= 0 else scores.inside[tag]
            if begins:
                own_tags.append(tag)
        tags.append(own_tags)
    return tags


def fit_random_field(
    features: csr_matrix, tags: Sequence[list[int]], num_labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weights `(features, labels)` and transitions `(labels, labels)`, from a tag to the next
    one."""
    names = [str(number) for number in range(max(features.shape[1], num_labels))]

    def sentences() -> Iterator[tuple[list[list[str]], list[str]]]:
        start = 0
        for sentence in tags:
            borders = features.indptr[start : start + len(sentence) + 1]
            words = []
            for first, end in pairwise(borders):
                words.append([names[place] for place in features.indices[first:end]])
            yield words, [names[tag] for tag in sentence]
            start += len(sentence)

    model = train_crf(sentences()).info()
    weights = np.zeros((features.shape[1], num_labels))
    for (feature, label), weight in model.state_features.items():
        weights[int(feature), int(label)] = weight
    transitions = np.zeros((num_labels, num_labels))
    for (left, right), weight in model.transitions.items():
        transitions[int(left), int(right)] = weight
    return weights, transitions
