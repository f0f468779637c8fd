"""Fits the scores of n-grams that a trained classifier adds to its logits, and weighs the two against each other."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from datasets import DatasetDict
from scipy.optimize import minimize
from scipy.sparse import csr_matrix
from sklearn.linear_model import Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..model.configuration_roformer_lite import RoFormerLiteConfig
from ..model.ngram_scores import LONGEST_TOKEN, RoFormerLiteNgramScores
from .baselines import Baselines
from .metrics import Metrics

_MOST_SCORES = 4_000_000  # rows times labels: 16 MB
_MOST_ROWS = 60_000  # of the training data
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


def fit_ngram_scores(
    tokens: torch.Tensor,
    train: Sequence[Sequence[int]],
    answers: np.ndarray,
    config: RoFormerLiteConfig,
) -> RoFormerLiteNgramScores:
    """A linear support vector machine (ridge regression for numbers) on the n-grams of the training texts.

    Those in two texts at least are candidates, and the commonest are taken, as many as fit into 16 MB of scores. The
    weight of an n-gram is its inverse document frequency.

    Args:
        tokens: `token_bytes` of the tokenizer.
        train: Token ids of the training texts.
        answers: `(rows,)` classes, `(rows, labels)` of 0 and 1, or `(rows,)` numbers.
        config: That of the classifier.
    """
    step = max(1, -(-len(train) // _MOST_ROWS))
    train, answers = train[::step], answers[::step]
    scores = _empty_scores(config, tokens, 1)
    owners, keys = _occurrences(scores, train)
    hashes, counts = np.unique(keys, return_counts=True)
    hashes = _commonest(hashes, counts, _MOST_SCORES // config.num_labels)
    scores = _empty_scores(config, tokens, max(1, len(hashes)))
    if not len(hashes):
        return scores
    places = np.searchsorted(hashes, keys).clip(max=len(hashes) - 1)
    known = hashes[places] == keys
    frequency = np.bincount(places[known], minlength=len(hashes))
    rarity = np.log((1 + len(train)) / (1 + frequency)) + 1
    features = csr_matrix((rarity[places[known]], (owners[known], places[known])), (len(train), len(hashes)))
    scores.hashes.copy_(torch.from_numpy(hashes))
    scores.rarity.copy_(torch.from_numpy(rarity))
    with torch.no_grad():
        scores.weight.copy_(torch.from_numpy(_linear_weights(normalize(features), answers, config.problem_type)))
    return scores


def _empty_scores(config: RoFormerLiteConfig, tokens: torch.Tensor, rows: int) -> RoFormerLiteNgramScores:
    sized = copy(config)
    sized.classifier_ngrams = rows
    scores = RoFormerLiteNgramScores(sized, config.num_labels)
    scores.token_bytes[: len(tokens)] = tokens
    return scores


def _occurrences(scores: RoFormerLiteNgramScores, examples: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The number of an example and the hash of an n-gram in it, each pair once."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for start, ids, documents, _ in _joined(examples):
        keys, owners = scores.find_ngrams(ids, documents)
        pairs = torch.unique(owners * _KEYS + keys)
        parts.append(((pairs // _KEYS + start).numpy(), (pairs % _KEYS).numpy()))
    owners, keys = zip(*parts, strict=True)
    return np.concatenate(owners), np.concatenate(keys)


def _joined(examples: Sequence[Sequence[int]]) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, int]]:
    """Some hundred examples at a time: the first one's number, all their ids, the example of each, how many."""
    for start in range(0, len(examples), _AT_ONCE):
        part = examples[start : start + _AT_ONCE]
        lengths = torch.tensor([len(ids) for ids in part])
        joined = torch.tensor([token for ids in part for token in ids])
        yield start, joined, torch.repeat_interleave(lengths), len(part)


def _commonest(hashes: np.ndarray, counts: np.ndarray, amount: int) -> np.ndarray:
    """The hashes that occur most often, twice at least, in rising order."""
    hashes, counts = hashes[counts > 1], counts[counts > 1]
    return np.sort(hashes[np.argsort(-counts, kind="stable")[:amount]])


def _linear_weights(features: csr_matrix, answers: np.ndarray, problem_type: str) -> np.ndarray:
    """`(n-grams, labels)`."""
    if problem_type == "regression":
        return Ridge(fit_intercept=False).fit(features, answers - answers.mean()).coef_[:, None]
    if problem_type == "multi_label_classification":
        machine = OneVsRestClassifier(LinearSVC()).fit(features, answers)
        rows = [getattr(each, "coef_", np.zeros((1, features.shape[1])))[0] for each in machine.estimators_]
        return np.stack(rows, axis=1)
    machine = LinearSVC().fit(features, answers)
    weights = machine.coef_.T
    return np.concatenate((-weights, weights), axis=1) if weights.shape[1] == 1 else weights


@torch.no_grad()
def scores_of(scores: RoFormerLiteNgramScores, examples: Sequence[Sequence[int]]) -> np.ndarray:
    """`(examples, labels)`."""
    return np.concatenate([scores(ids, documents, amount).numpy() for _, ids, documents, amount in _joined(examples)])


def best_weights(
    logits: np.ndarray, ngrams: np.ndarray, answers: np.ndarray, problem_type: str
) -> tuple[float, float]:
    """The weights of the encoder's logits and of the n-grams' scores, neither negative, for which the loss on the
    validation data is least."""
    logits, ngrams, answers = (torch.from_numpy(np.asarray(part)).double() for part in (logits, ngrams, answers))

    def loss(weights: np.ndarray) -> float:
        mixed = float(weights[0]) * logits + float(weights[1]) * ngrams
        if problem_type == "regression":
            return torch.nn.functional.mse_loss(mixed.squeeze(-1), answers).item()
        if problem_type == "multi_label_classification":
            return torch.nn.functional.binary_cross_entropy_with_logits(mixed, answers).item()
        return torch.nn.functional.cross_entropy(mixed, answers.long()).item()

    found = minimize(loss, x0=(1.0, 0.5), method="L-BFGS-B", bounds=((0, None), (0, None)))
    return float(found.x[0]), float(found.x[1])


def add_fitted_ngrams(
    trainer: Trainer,
    encoded: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    measure: Callable[[np.ndarray, np.ndarray], Metrics],
    main_metric: str,
) -> Baselines:
    """Add the scores of n-grams to the model of `trainer`, unless they lower `main_metric` on the validation data.

    Args:
        encoded: Token ids and labels of the splits `train`, `validation` and perhaps `test`.
        measure: Figures for logits and labels.

    Returns:
        The figures of the encoder and of the n-grams, each alone; nothing when the model stays as it is.
    """
    model, tokens = trainer.model, token_bytes(tokenizer)
    if tokens is None or trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return {}
    kind = model.config.problem_type
    labels = {split: np.array(encoded[split]["labels"]) for split in encoded}
    scores = fit_ngram_scores(tokens, encoded["train"]["input_ids"][:], labels["train"], model.config)
    parts: Baselines = {"the encoder alone": {}, "the n-grams alone": {}}
    for split in (split for split in ("validation", "test") if split in encoded):
        encoder = trainer.predict(encoded[split]).predictions[: len(labels[split])]
        ngrams = scores_of(scores, encoded[split]["input_ids"][:])
        parts["the encoder alone"][split] = measure(encoder, labels[split])
        parts["the n-grams alone"][split] = measure(ngrams, labels[split])
        if split == "validation":
            weights = best_weights(encoder, ngrams, labels[split], kind)
            mixed = measure(weights[0] * encoder + weights[1] * ngrams, labels[split])
            if weights[1] == 0 or mixed[main_metric] < parts["the encoder alone"][split][main_metric]:
                return {}
    with torch.no_grad():
        model.classifier.out_proj.weight.mul_(weights[0])
        model.classifier.out_proj.bias.mul_(weights[0])
        scores.weight.mul_(weights[1])
    model.add_ngram_scores(scores)
    return parts
