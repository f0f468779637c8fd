"""Fits the scores of the text that a trained classifier or tagger adds to its logits, and weighs the two."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..model.configuration_roformer_lite import RoFormerLiteConfig
from ..model.task_heads import RoFormerLiteClassificationModel
from ..model.text_of_tokens import LONGEST_TOKEN
from ..model.text_scores import RoFormerLiteDocumentScores, RoFormerLiteTextScores, RoFormerLiteWordScores
from .baselines import Baselines
from .metrics import Metrics

_MOST_SCORES = 4_000_000  # rows times labels: 16 MB
_AT_ONCE = 512  # examples
_KEYS = 2**31  # hashes are below
_BYTE = re.compile("<0x[0-9A-F]{2}>")


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor | None:
    """The first bytes of each token, `(vocab, LONGEST_TOKEN)` uint8, 0 after its end; None for a tokenizer whose
    tokens are not known to be text.

    A special token is a blank, as no word spans it; the padding token is nothing.
    """
    spell = _speller(json.loads(tokenizer.backend_tokenizer.to_str())["model"])
    if spell is None:
        return None
    table = torch.zeros(len(tokenizer), LONGEST_TOKEN, dtype=torch.uint8)
    special = set(tokenizer.all_special_ids)
    for token, number in tokenizer.get_vocab().items():
        text = b" " if number in special else spell(token)
        kept = torch.tensor(list(text[:LONGEST_TOKEN]), dtype=torch.uint8)
        table[number, : len(kept)] = kept
    table[tokenizer.pad_token_id] = 0
    return table


def _speller(model: dict[str, Any]) -> Callable[[str], bytes] | None:
    """How a token of a tokenizer's model is written in UTF-8."""
    if model["type"] == "BPE":
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        return lambda token: bytes(byte_of.get(character, 32) for character in token)
    if model["type"] == "Unigram":
        return lambda token: bytes.fromhex(token[3:5]) if _BYTE.fullmatch(token) else token.replace("▁", " ").encode()
    if model["type"] == "WordPiece":
        return lambda token: token.removeprefix("##").encode() if token.startswith("##") else f" {token}".encode()
    return None


def fit_text_scores(
    kind: type[RoFormerLiteTextScores],
    tokens: torch.Tensor,
    examples: Sequence[Sequence[int]],
    answers: np.ndarray,
    config: RoFormerLiteConfig,
) -> RoFormerLiteTextScores:
    """A linear support vector machine (ridge regression for numbers) on features of the training texts.

    The commonest features are taken, as many as fit into 16 MB of scores. Those of documents have their inverse
    document frequency as weight, those of words all the same.

    Args:
        kind: Which features.
        tokens: `token_bytes` of the tokenizer.
        examples: Token ids of the training texts.
        answers: For documents classes `(examples,)`, `(examples, labels)` of 0 and 1, or numbers `(examples,)`; for
            words the class of each token of all examples, -100 where there is none.
        config: That of the classifier.
    """
    owners, keys = _occurrences(_empty_scores(kind, config, tokens, 1), examples)
    if kind is RoFormerLiteWordScores:
        has_answer = answers >= 0
        numbers = np.cumsum(has_answer) - 1  # of those with an answer
        owners, keys = numbers[owners[has_answer[owners]]], keys[has_answer[owners]]
        answers = answers[has_answer]
    hashes, counts = np.unique(keys, return_counts=True)
    hashes = np.sort(hashes[np.argsort(-counts, kind="stable")[: _MOST_SCORES // config.num_labels]])
    scores = _empty_scores(kind, config, tokens, max(1, len(hashes)))
    if not len(hashes):
        return scores
    places = np.searchsorted(hashes, keys).clip(max=len(hashes) - 1)
    known = hashes[places] == keys
    places, owners = places[known], owners[known]
    rarity = np.ones(len(hashes))
    if kind is RoFormerLiteDocumentScores:
        rarity += np.log((1 + len(answers)) / (1 + np.bincount(places, minlength=len(hashes))))
    features = csr_matrix((rarity[places], (owners, places)), (len(answers), len(hashes)))
    weights, bias = _linear_model(normalize(features), answers, config.problem_type)
    with torch.no_grad():
        for tensor, values in (
            (scores.hashes, hashes),
            (scores.rarity, rarity),
            (scores.weight, weights),
            (scores.bias, bias),
        ):
            tensor.copy_(torch.from_numpy(values))
    return scores


def _empty_scores(
    kind: type[RoFormerLiteTextScores], config: RoFormerLiteConfig, tokens: torch.Tensor, rows: int
) -> RoFormerLiteTextScores:
    sized = copy(config)
    sized.classifier_text_features = rows
    scores = kind(sized, config.num_labels)
    scores.token_bytes[: len(tokens)] = tokens
    return scores


def _occurrences(scores: RoFormerLiteTextScores, examples: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The number of a document or token and the hash of a feature of it, each pair once."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for start, ids, documents, _ in _joined(scores, examples):
        keys, owners = scores.find_features(ids, documents)
        pairs = torch.unique(owners * _KEYS + keys)
        parts.append(((pairs // _KEYS + start).numpy(), (pairs % _KEYS).numpy()))
    owners, keys = zip(*parts, strict=True)
    return np.concatenate(owners), np.concatenate(keys)


def _joined(
    scores: RoFormerLiteTextScores, examples: Sequence[Sequence[int]]
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, int]]:
    """Some hundred examples at a time: the number of the first document or token, all ids, the example of each, and
    how many documents or tokens there are."""
    by_token, first = isinstance(scores, RoFormerLiteWordScores), 0
    for start in range(0, len(examples), _AT_ONCE):
        part = examples[start : start + _AT_ONCE]
        lengths = torch.tensor([len(ids) for ids in part])
        amount = int(lengths.sum()) if by_token else len(part)
        ids = torch.tensor([token for ids in part for token in ids])
        yield first, ids, torch.repeat_interleave(lengths), amount
        first += amount


def _linear_model(features: csr_matrix, answers: np.ndarray, problem_type: str) -> tuple[np.ndarray, np.ndarray]:
    """Weights `(n-grams, labels)` and bias `(labels,)`."""
    if problem_type == "regression":
        ridge = Ridge().fit(features, answers)
        return ridge.coef_[:, None], np.array([ridge.intercept_])
    if problem_type == "multi_label_classification":
        machines = [_one_against_rest(features, column) for column in answers.T]
        return np.stack([weights for weights, _ in machines], axis=1), np.array([bias for _, bias in machines])
    machine = LinearSVC().fit(features, answers)
    weights, bias = machine.coef_.T, machine.intercept_
    if len(bias) == 1:  # of two classes the machine scores the second
        return np.concatenate((-weights, weights), axis=1), np.concatenate((-bias, bias))
    return weights, bias


def _one_against_rest(features: csr_matrix, is_label: np.ndarray) -> tuple[np.ndarray, float]:
    if is_label.min() == is_label.max():  # there is nothing to tell apart
        return np.zeros(features.shape[1]), 1.0 if is_label.max() else -1.0
    machine = LinearSVC().fit(features, is_label)
    return machine.coef_[0], float(machine.intercept_[0])


@torch.no_grad()
def scores_of(scores: RoFormerLiteTextScores, examples: Sequence[Sequence[int]]) -> np.ndarray:
    """Scores of all documents, or of all tokens, `(..., labels)`."""
    parts = [scores(ids, documents, amount).numpy() for _, ids, documents, amount in _joined(scores, examples)]
    return np.concatenate(parts)


def best_weights(
    logits: np.ndarray, text_scores: np.ndarray, answers: np.ndarray, problem_type: str | None
) -> tuple[float, float]:
    """The weights of the encoder's logits and of the scores of the text, neither negative, for which the loss on the
    validation data is least."""
    # In double precision, as the minimiser takes small differences.
    logits, text_scores, answers = (
        torch.from_numpy(np.asarray(part)).double() for part in (logits, text_scores, answers)
    )

    def loss(weights: np.ndarray) -> float:
        mixed = float(weights[0]) * logits + float(weights[1]) * text_scores
        if problem_type == "regression":
            return torch.nn.functional.mse_loss(mixed.squeeze(-1), answers).item()
        if problem_type == "multi_label_classification":
            return torch.nn.functional.binary_cross_entropy_with_logits(mixed, answers).item()
        return torch.nn.functional.cross_entropy(mixed, answers.long()).item()

    found = minimize(loss, x0=(1.0, 1.0), method="L-BFGS-B", bounds=((0, None), (0, None)))
    return float(found.x[0]), float(found.x[1])


@dataclass
class Measured:
    """One split: the encoder's logits, the scores of the text, the answers, and how the two are measured."""

    logits: np.ndarray  # (documents or labelled tokens, labels)
    text_scores: np.ndarray
    answers: np.ndarray
    measure: Callable[[np.ndarray], Metrics]


def add_fitted_scores(
    model: RoFormerLiteClassificationModel,
    scores: RoFormerLiteTextScores,
    splits: dict[str, Measured],
    main_metric: str,
) -> Baselines:
    """Add fitted scores of the text to a trained model, unless they lower `main_metric` on the validation data.

    Returns:
        The figures of the encoder and of the text's scores, each alone; nothing when the model stays as it is.
    """
    parts: Baselines = {
        "its encoder alone": {split: part.measure(part.logits) for split, part in splits.items()},
        "its linear model alone": {split: part.measure(part.text_scores) for split, part in splits.items()},
    }
    validation = splits["validation"]
    weights = best_weights(validation.logits, validation.text_scores, validation.answers, model.config.problem_type)
    mixed = validation.measure(weights[0] * validation.logits + weights[1] * validation.text_scores)
    if weights[1] == 0 or mixed[main_metric] < parts["its encoder alone"]["validation"][main_metric]:
        return {}
    with torch.no_grad():
        model.classifier.out_proj.weight.mul_(weights[0])
        model.classifier.out_proj.bias.mul_(weights[0])
        scores.weight.mul_(weights[1])
        scores.bias.mul_(weights[1])
    model.add_text_scores(scores)
    return parts
