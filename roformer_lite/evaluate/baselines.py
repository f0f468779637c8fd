"""Baselines on the same data: what simpler methods make of it, for comparison with a trained model.

Each learns from the training data and is measured by the functions that measure the model; all take
seconds. The libraries that only one of them needs are imported where it is used.
"""

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import FeatureUnion, make_union

from .metrics import (
    Metrics,
    classification_metrics,
    perplexity_metrics,
    regression_metrics,
    tagging_metrics,
    translation_metrics,
)

Baselines = dict[str, dict[str, Metrics]]  # metrics by the name of the baseline and by split
# texts, and classes (rows,), sets (rows, labels) of 0 and 1, or numbers
Examples = tuple[Sequence[str], np.ndarray]
Sentences = tuple[Sequence[list[str]], Sequence[list[str]]]  # words and tags of each
Pairs = tuple[Sequence[str], Sequence[str]]  # sources and targets
ScoredPairs = tuple[Sequence[str], Sequence[str], Sequence[float]]
# queries, documents, which of them are right
Search = tuple[Sequence[str], Sequence[str], Sequence[set[int]]]

_MOST = 100_000  # rows to learn from
# Han, kana, Thai, Lao, Burmese and Khmer are written without spaces.
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")

T = TypeVar("T")


def at_most(rows: Sequence[T], amount: int) -> Sequence[T]:
    """All rows, or `amount` random ones in their order, of sequences of the same length the same
    ones."""
    if len(rows) <= amount:
        return rows
    places = np.sort(np.random.default_rng(0).permutation(len(rows))[:amount])
    return (
        rows[places] if isinstance(rows, np.ndarray) else [rows[place] for place in places.tolist()]
    )


# classify


def classification_baselines(
    problem_type: str, train: Examples, measured: Mapping[str, Examples]
) -> tuple[Baselines, dict[str, dict[str, np.ndarray]]]:
    """The most frequent class, or the mean of numbers, and a linear model on n-grams: metrics and
    answers, both by baseline and split.

    The linear model is a support vector machine (ridge regression for numbers) on TF-IDF of words,
    word pairs and character n-grams, which is hard to beat on short texts (Wang & Manning 2012,
    ACL).

    Args:
        problem_type: As in the configuration of a model.
        train: Texts and answers to learn from; 100,000 of them at most are used.
        measured: Texts and answers of each split to measure. Before the second one, the first is
            learned too, as the linear part of the trained model does.
    """
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    measure = regression_metrics if problem_type == "regression" else classification_metrics
    if problem_type == "regression":
        models = {"mean": DummyRegressor(), "ridge regression on n-grams": Ridge()}
    else:
        is_multi = problem_type == "multi_label_classification"
        linear = OneVsRestClassifier(LinearSVC()) if is_multi else LinearSVC()
        models = {"most frequent class": DummyClassifier(), "linear SVM on n-grams": linear}
    predicted: dict[str, dict[str, np.ndarray]] = {name: {} for name in models}
    known = train
    for split, examples in measured.items():
        texts, answers = (at_most(part, _MOST) for part in known)
        features = _text_features(texts)
        inputs = features.fit_transform(texts), features.transform(examples[0])
        for name, model in models.items():
            predicted[name][split] = model.fit(inputs[0], answers).predict(inputs[1])
        known = _with_rows(train, examples, problem_type)
    metrics = {
        name: {split: measure(own, measured[split][1]) for split, own in by_split.items()}
        for name, by_split in predicted.items()
    }
    return metrics, predicted


def _with_rows(train: Examples, more: Examples, problem_type: str) -> Examples:
    """The training rows and further ones, without labels that the training rows lack."""
    (texts, answers), (new, own) = train, more
    keep = np.full(len(new), True)
    if problem_type == "multi_label_classification":
        own = own[:, : answers.shape[1]]
    elif problem_type == "single_label_classification":
        keep = own <= answers.max()
    return [*texts, *(new[row] for row in np.flatnonzero(keep))], np.concatenate(
        (answers, own[keep])
    )


def _text_features(texts: Sequence[str]) -> FeatureUnion:
    sample = "".join(at_most(texts, 1000))
    if len(_WITHOUT_SPACES.findall(sample)) > len(sample) / 4:
        return make_union(TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True))
    return make_union(
        TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )


# tag


def tagging_baselines(
    entities: bool, train: Sentences, measured: Mapping[str, Sentences]
) -> Baselines:
    """Metrics of the tag that each word has most often, and of a conditional random field (Lafferty
    et al. 2001, ICML; the library is CRFsuite) on the word, its shape and its affixes, and the
    words beside it.

    Args:
        entities: Whether the tags mark entities; see `tagging_metrics`.
        train: Sentences and tags to learn from; 100,000 of them at most are used by the field.
        measured: Sentences and tags of each split to measure.
    """
    commonest = _commonest_tags(train)
    words, tags = (at_most(part, _MOST) for part in train)
    field = train_field(zip(map(word_features, words), tags, strict=True))
    taggers = {
        "most frequent tag of each word": lambda words: [commonest[word] for word in words],
        "CRF": lambda words: field.tag(word_features(words)),
    }
    return {
        name: {
            split: tagging_metrics([tag(words) for words in sentences], list(tags), entities)
            for split, (sentences, tags) in measured.items()
        }
        for name, tag in taggers.items()
    }


def _commonest_tags(train: Sentences) -> defaultdict[str, str]:
    """The commonest tag of each word, and of all words for an unknown one."""
    counts: defaultdict[str, Counter] = defaultdict(Counter)
    for words, tags in zip(*train, strict=True):
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    overall = sum(counts.values(), Counter()).most_common(1)[0][0]
    return defaultdict(
        lambda: overall, {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    )


def train_field(sentences: Iterable[tuple[list[list[str]], list[str]]]) -> Any:
    """A tagger, a conditional random field of sentences: the features and the tag of each of their
    words."""
    import pycrfsuite

    trainer = pycrfsuite.Trainer(verbose=False)
    # More iterations of L-BFGS change little and take long.
    trainer.set_params(
        {"c1": 0.1, "c2": 0.01, "max_iterations": 60, "feature.possible_transitions": True}
    )
    for features, tags in sentences:
        trainer.append(features, tags)
    tagger = pycrfsuite.Tagger()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "field"
        trainer.train(str(path))
        tagger.open(str(path))  # which reads all of it
    return tagger


def word_features(words: Sequence[str]) -> list[list[str]]:
    """Features of each word of a sentence: itself, its shape, its affixes, its neighbours and pairs
    with them."""
    lower, shapes = [word.lower() for word in words], [word_shape(word) for word in words]
    features = []
    for i, word in enumerate(words):
        own = ["bias", f"word={word}", f"lower={lower[i]}", f"shape={shapes[i]}"]
        for length in range(1, min(5, len(word))):
            own += [f"prefix={lower[i][:length]}", f"suffix={lower[i][-length:]}"]
        for distance in (-2, -1, 1, 2):
            inside = 0 <= i + distance < len(words)
            own.append(f"{distance}={lower[i + distance] if inside else None}")
            own.append(f"shape{distance}={shapes[i + distance] if inside else None}")
        if i:
            own.append(f"pair-1={lower[i - 1]} {lower[i]}")
        if i + 1 < len(words):
            own.append(f"pair1={lower[i]} {lower[i + 1]}")
        features.append(own)
    return features


def word_shape(word: str) -> str:
    """`Xx` for a capitalised word, `d.d` for 20.5: each run of one kind of character is one
    letter."""

    def kind(character: str) -> str:
        if character.isdigit():
            return "d"
        if not character.isalpha():
            return character
        return "X" if character.isupper() else "x" if character.islower() else "c"

    return "".join(letter for letter, _ in groupby(map(kind, word)))


# seq2seq


def text_to_text_baselines(
    bleu_tokenizer: str, train: Pairs, measured: Mapping[str, Pairs]
) -> Baselines:
    """Metrics of an output equal to the input, and of the target of the most similar known source,
    by the cosine of TF-IDF of character n-grams.

    Args:
        bleu_tokenizer: As for `translation_metrics`.
        train: Sources and targets to remember; 100,000 pairs at most are used.
        measured: Sources and targets of each split to measure.
    """
    from sklearn.neighbors import NearestNeighbors

    known, answers = (at_most(side, _MOST) for side in train)
    features = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    memory = NearestNeighbors(n_neighbors=1, metric="cosine").fit(features.fit_transform(known))

    def nearest(sources: Sequence[str]) -> list[str]:
        places = memory.kneighbors(features.transform(sources), return_distance=False)
        return [answers[place] for place in places[:, 0].tolist()]

    return {
        name: {
            split: translation_metrics(answer(sources), targets, bleu_tokenizer)
            for split, (sources, targets) in measured.items()
        }
        for name, answer in {
            "copying the source": list,
            "nearest neighbour (TF-IDF)": nearest,
        }.items()
    }


# causal and mlm


def byte_baselines(train: Iterable[str], measured: Mapping[str, Iterable[str]]) -> Baselines:
    """Bits per byte of an n-gram model of bytes, by partial matching (Cleary & Witten 1984; variant
    H of PPMd).

    The value is what a text costs after the training text, of which the last 50 MB are used. The
    model goes on learning from what it has read, as compressors do, which helps it a little.
    """
    known = "".join(train).encode()[-50_000_000:]
    alone, values = _compressed_size(known), {}
    for split, texts in measured.items():
        text = "".join(texts).encode()
        values[split] = {"bits_per_byte": 8 * (_compressed_size(known + text) - alone) / len(text)}
    return {"PPMd of order 6": values}


def _compressed_size(data: bytes) -> int:
    import pyppmd

    # bytes of context, and of memory before it starts again
    encoder = pyppmd.Ppmd7Encoder(6, 2**28)
    return len(encoder.encode(data)) + len(encoder.flush())


def neighbour_baselines(
    train: Sequence[list[int]], measured: Mapping[str, Sequence[list[int]]]
) -> Baselines:
    """Perplexity and accuracy of a token given the two beside it, the metrics of a masked language
    model.

    Counts of the token between both neighbours, after the left one, and alone are interpolated
    (Witten & Bell 1991). Unlike the model, this baseline sees the right neighbours where those are
    masked too, and predicts every token.

    Args:
        train: Token ids of blocks to learn from, with their special tokens at both ends; 20,000 at
            most are used.
        measured: The blocks of each split; 500 at most are used.
    """
    between: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    after: defaultdict[int, Counter[int]] = defaultdict(Counter)
    alone: Counter[int] = Counter()
    for block in at_most(train, 20_000):
        for left, token, right in zip(block, block[1:], block[2:], strict=False):
            between[left, right][token] += 1
            after[left][token] += 1
            alone[token] += 1
    commonest, known, vocabulary = max(alone, key=alone.get), alone.total(), len(alone) + 1

    def score(left: int, token: int, right: int) -> tuple[float, bool]:
        """Negative log-likelihood of the token, and whether it is the likeliest. What a shorter
        context says counts as much as two occurrences."""
        probability, guess = (alone[token] + 1) / (known + vocabulary), commonest
        for counts in (after.get(left), between.get((left, right))):
            if counts:
                probability = (counts[token] + 2.0 * probability) / (counts.total() + 2.0)
                guess = max(counts, key=counts.get)
        return -np.log(probability), guess == token

    values = {}
    for split, blocks in measured.items():
        scores = [
            (loss, 1, right)
            for block in at_most(blocks, 500)
            for loss, right in (
                score(*three) for three in zip(block, block[1:], block[2:], strict=False)
            )
        ]
        values[split] = perplexity_metrics(np.array(scores))
    return {"counts of neighbouring tokens": values}


# embed and rerank


class TfidfCosine:
    """The cosine of texts by words and character n-grams together, weighted by TF-IDF.

    Args:
        texts: Of the training data, which the weights are counted in; 100,000 at most are used.
    """

    def __init__(self, texts: Sequence[str]):
        words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
        self.features = make_union(words, characters).fit(at_most(texts, _MOST))

    def correlations(self, pairs: ScoredPairs) -> Metrics:
        """Correlations of the cosine of each pair with its score."""
        first, second = (self.features.transform(side) for side in pairs[:2])
        # up to a factor: each half has length 1
        cosines = np.asarray(first.multiply(second).sum(1)).ravel()
        metrics = regression_metrics(cosines, np.array(pairs[2], dtype=float))
        return {name: metrics[name] for name in ("spearman", "pearson")}

    def retrieval(self, search: Search) -> Metrics:
        """How well the documents are found for each query."""
        queries, documents = (self.features.transform(side) for side in search[:2])
        scores = (
            (queries[number] @ documents.T).toarray().ravel() for number in range(len(search[0]))
        )
        return ranking_metrics(
            [_rank(row, right) for row, right in zip(scores, search[2], strict=True)]
        )

    def reranking(self, samples: Sequence[Mapping[str, Any]]) -> Metrics:
        """How well the positives of each sample, `query`, `positive` and `negative`, rank above its
        negatives."""
        ranks = []
        for sample in samples:
            query = self.features.transform([sample["query"]])
            documents = self.features.transform([*sample["positive"], *sample["negative"]])
            ranks.append(
                _rank((query @ documents.T).toarray().ravel(), set(range(len(sample["positive"]))))
            )
        return ranking_metrics(ranks)


def _rank(scores: np.ndarray, right: set[int]) -> float:
    """The rank of the best right document; among wrong ones of the same score, the middle one."""
    best, wrong = scores[list(right)].max(), np.delete(scores, list(right))
    return 1 + (wrong > best).sum() + (wrong == best).sum() / 2


def ranking_metrics(ranks: Sequence[float]) -> Metrics:
    """MRR of the first ten, and how often the first right document is the first, or one of the
    first ten.

    Args:
        ranks: From 1, of the first right document of each query.
    """
    ranks = np.array(ranks)
    return {
        "mrr@10": float(np.where(ranks <= 10, 1 / ranks, 0).mean()),
        "accuracy@1": float((ranks <= 1).mean()),
        "accuracy@10": float((ranks <= 10).mean()),
    }
