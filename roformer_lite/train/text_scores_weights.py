"""Weighs the scores of the text against the logits of the trained encoder, on validation data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.model_selection import KFold

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteClassificationModel, cross_entropy
from hf_roformer_lite.model.text_features import RoFormerLiteTextScores, RoFormerLiteWordScores, messages_of_neighbours

from ..evaluate.baselines import Baselines
from ..evaluate.metrics import Metrics
from .text_scores_fit import Examples, read

_MOST_ROWS = 30_000  # documents or tokens; enough for two or three weights
_LONGEST_SEARCH = 50  # steps of L-BFGS
_FOLDS = 5


@dataclass
class Split:
    """One split: what the encoder and the text say, the answers, and how the two are measured.

    Args:
        logits: Of documents or tokens, `(N, labels)`.
        text_scores: The same shape.
        answers: Of each document, or the class of each token, -100 where there is none.
        measure: Metrics of joint logits `(N, labels)`.
        chain: For tokens, the numbers of those that words begin with, their documents, and the transitions.
    """

    logits: torch.Tensor
    text_scores: torch.Tensor
    answers: torch.Tensor
    measure: Callable[[np.ndarray], Metrics]
    chain: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def number_of_weights(self) -> int:
        return 2 if self.chain is None else 3

    def join(self, weights: Sequence[float] | torch.Tensor, how: Callable = torch.amax) -> torch.Tensor:
        """Logits with these weights of the encoder, of the scores and of the transitions."""
        joint = weights[0] * self.logits + weights[1] * self.text_scores
        if self.chain is None:
            return joint
        first, documents, transitions = self.chain
        messages = messages_of_neighbours(joint[first], weights[2] * transitions, documents, how)
        return joint.index_add(0, first, messages)

    def head(self, rows: int) -> "Split":
        """The first documents or tokens."""
        chain = self.chain
        if chain is not None:
            words = int((chain[0] < rows).sum())
            chain = (chain[0][:words], chain[1][:words], chain[2])
        return replace(
            self,
            logits=self.logits[:rows],
            text_scores=self.text_scores[:rows],
            answers=self.answers[:rows],
            chain=chain,
        )

    def rows(self, places: np.ndarray) -> "Split":
        """Some of the documents."""
        return replace(
            self, logits=self.logits[places], text_scores=self.text_scores[places], answers=self.answers[places]
        )

    def metrics(self, weights: Sequence[float]) -> Metrics:
        return self.measure(self.join(weights).numpy())


def make_split(
    scores: RoFormerLiteTextScores,
    examples: Examples,
    logits: np.ndarray,
    answers: np.ndarray,
    measure: Callable[[np.ndarray], Metrics],
) -> Split:
    """`logits` and `answers` are those of all documents or of all tokens; see `Split`."""
    with torch.no_grad():
        parts = [(scores.score(words, n), words.is_first, of) for words, of, n in read(scores, examples)]
    text_scores, is_first = (torch.cat(part) for part in list(zip(*parts, strict=True))[:2])
    # In double precision, as the search for weights takes small differences.
    split = Split(torch.from_numpy(logits).double(), text_scores.double(), torch.from_numpy(answers), measure)
    if not isinstance(scores, RoFormerLiteWordScores):
        return split
    documents = torch.cat([of + 2**20 * number for number, (*_, of) in enumerate(parts)])
    transitions = scores.transitions.detach().double()
    return replace(split, chain=(is_first.nonzero()[:, 0], documents[is_first], transitions))


def best_weights(split: Split, problem_type: str | None) -> tuple[float, ...]:
    """The weights of the encoder's logits, of the scores of the text and of the transitions, none negative, for which
    the loss on the split, or on its first 30,000 documents or tokens, is least."""
    split = split.head(_MOST_ROWS)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        value = _loss(split.join(weights, torch.logsumexp), split.answers, problem_type)
        value.backward()
        return value.item(), weights.grad.numpy()

    start, limits = np.ones(split.number_of_weights), [(0, None)] * split.number_of_weights
    options = {"maxiter": _LONGEST_SEARCH}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=options)
    return tuple(float(weight) for weight in found.x)


def _loss(logits: torch.Tensor, answers: torch.Tensor, problem_type: str | None) -> torch.Tensor:
    if problem_type == "regression":
        return torch.nn.functional.mse_loss(logits.squeeze(-1), answers.to(logits.dtype))
    if problem_type == "multi_label_classification":
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, answers.to(logits.dtype))
    return cross_entropy(logits, answers)  # 0 where no answer is one of the model's labels


def add_fitted_scores(
    model: RoFormerLiteClassificationModel,
    scores: RoFormerLiteTextScores,
    splits: dict[str, Split],
    main_metric: str,
) -> tuple[Baselines, tuple[float, ...]]:
    """Make the best of a trained model and of fitted scores of the text: the sum of both with the `best_weights`, or
    one of the two alone. That is decided by `main_metric` on the validation data; the sum is measured there with
    weights of other rows.

    Returns:
        The metrics of the encoder and of the scores, each alone, and the weights; nothing when the encoder alone is
        best. Its logits are then multiplied by a number with which the validation loss is least.
    """
    validation, problem_type = splits["validation"], model.config.problem_type
    name = "linear model" if validation.chain is None else "CRF"
    alone = {"its encoder alone": (1.0, 0.0, 0.0), f"its {name} alone": (0.0, 1.0, 1.0)}
    parts: Baselines = {
        name: {split: part.metrics(weights) for split, part in splits.items()} for name, weights in alone.items()
    }
    joint = cross_fitted_metrics(validation, problem_type)[main_metric]
    encoder, text = (parts[name]["validation"][main_metric] for name in alone)
    if encoder > max(joint, text):
        validation = replace(validation, text_scores=torch.zeros_like(validation.text_scores), chain=None)
    elif text > joint:
        validation = replace(validation, logits=torch.zeros_like(validation.logits))
    found = best_weights(validation, problem_type)
    is_heard = [validation.logits.any(), validation.text_scores.any(), True]
    weights = tuple(weight if heard else 0.0 for weight, heard in zip(found, is_heard, strict=False))
    with torch.no_grad():
        for tensor in model.classifier.out_proj.parameters():
            tensor.mul_(weights[0])
    if weights[1] == 0:
        return {}, ()
    model.add_text_scores(weighted(scores, weights))
    return parts, weights


def weighted(scores: RoFormerLiteTextScores, weights: Sequence[float]) -> RoFormerLiteTextScores:
    """The scores, multiplied by their weights of the `best_weights`."""
    with torch.no_grad():
        scores.weight.mul_(weights[1])
        scores.bias.mul_(weights[1])
        if isinstance(scores, RoFormerLiteWordScores):
            scores.transitions.mul_(weights[2])
    return scores


def cross_fitted_metrics(split: Split, problem_type: str | None) -> Metrics:
    """Metrics of the joint logits, where a fifth of the documents is joined with the weights that are best on the
    others. Tokens are so many, and their weights so few, that all are joined with the weights that are best on all."""
    rows = np.arange(len(split.answers))
    if split.chain is not None or len(rows) < _FOLDS:
        return split.metrics(best_weights(split, problem_type))
    joint = torch.empty_like(split.logits)
    for others, fold in KFold(_FOLDS, shuffle=True, random_state=0).split(rows):
        joint[fold] = split.rows(fold).join(best_weights(split.rows(others), problem_type))
    return split.measure(joint.numpy())
