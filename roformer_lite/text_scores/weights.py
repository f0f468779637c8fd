"""Weighs the scores of the text against the logits of the trained encoder, on validation data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional as F

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteClassificationModel
from hf_roformer_lite.model.text_features import (
    RoFormerLiteTextScores,
    RoFormerLiteWordScores,
    messages_of_neighbours,
)

from ..evaluate.baselines import Baselines, at_most
from ..evaluate.metrics import Metrics, is_within_chance
from .fit import Examples, read

_MOST_ROWS = 30_000  # documents or tokens; enough for two or three weights
_MOST_TAGS = 500_000  # tokens times tags; time is by the square of the tags
_TOKENS_AT_ONCE = 1024  # whose messages are in memory at a time
_LONGEST_SEARCH = 50  # steps of L-BFGS
_FOLDS = 5
_DOUBTED = 100  # rows with which the encoder's weight is halved


@dataclass
class Split:
    """One split: what the encoder and the text say, the answers, and how the two are measured.

    Args:
        logits: Of documents or tokens, `(N, labels)`.
        text_scores: The same shape.
        answers: Of each document, or the class of each token, -100 where there is none.
        measure: Metrics of joint logits `(N, labels)`.
        chain: For tokens, the numbers of those that words begin with, their documents, and the
            transitions.
    """

    logits: torch.Tensor
    text_scores: torch.Tensor
    answers: torch.Tensor
    measure: Callable[[np.ndarray], Metrics]
    chain: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def number_of_weights(self) -> int:
        return 2 if self.chain is None else 3

    @property
    def number_of_documents(self) -> int:
        """Documents, or sentences, of which long ones are several."""
        return len(self.answers) if self.chain is None else len(self.chain[1].unique())

    def join(
        self, weights: Sequence[float] | torch.Tensor, how: Callable = torch.amax
    ) -> torch.Tensor:
        """Logits with these weights of the encoder, of the scores and of the transitions. Gradients
        need memory by the number of rows; see `parts`."""
        joint = weights[0] * self.logits + weights[1] * self.text_scores
        if self.chain is None:
            return joint
        first, documents, transitions = self.chain
        messages = messages_of_neighbours(joint[first], weights[2] * transitions, documents, how)
        return joint.index_add(0, first, messages)

    def rows(self, start: int, end: int) -> "Split":
        """Some of the documents or tokens."""
        chain = self.chain
        if chain is not None:
            of_words = slice(*torch.searchsorted(chain[0], torch.tensor([start, end])).tolist())
            chain = (chain[0][of_words] - start, chain[1][of_words], chain[2])
        taken = slice(start, end)
        logits, text_scores, answers = (
            self.logits[taken],
            self.text_scores[taken],
            self.answers[taken],
        )
        return replace(self, logits=logits, text_scores=text_scores, answers=answers, chain=chain)

    def parts(self) -> Iterator["Split"]:
        """Documents in one part; tokens in parts of about 1,024, each of whole sentences."""
        begins = torch.empty(0, dtype=torch.long)
        if self.chain is not None:
            first, documents, _ = self.chain
            # the first word of each sentence but one
            begins = first[1:][documents[1:] != documents[:-1]]
        start, total = 0, len(self.logits)
        while start < total:
            later = begins[begins >= start + _TOKENS_AT_ONCE]
            end = int(later[0]) if len(later) else total
            yield self.rows(start, end)
            start = end

    def documents(self, places: np.ndarray) -> "Split":
        """Some of the documents, where there is no chain."""
        return replace(
            self,
            logits=self.logits[places],
            text_scores=self.text_scores[places],
            answers=self.answers[places],
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
        parts = [
            (scores.score(words, n), words.is_first, of) for words, of, n in read(scores, examples)
        ]
    text_scores, is_first = (torch.cat(part) for part in list(zip(*parts, strict=True))[:2])
    # In double precision, as the search for weights takes small differences.
    split = Split(
        torch.from_numpy(logits).double(), text_scores.double(), torch.from_numpy(answers), measure
    )
    if not isinstance(scores, RoFormerLiteWordScores):
        return split
    documents = torch.cat([of + 2**20 * number for number, (*_, of) in enumerate(parts)])
    transitions = scores.transitions.detach().double()
    return replace(split, chain=(is_first.nonzero()[:, 0], documents[is_first], transitions))


def best_weights(split: Split, problem_type: str | None) -> tuple[float, ...]:
    """The weights of the encoder's logits, of the scores of the text and of the transitions, none
    negative, for which the loss on the split, or on about 30,000 of its documents or tokens (fewer
    with more than 16 tags), is least.

    A few rows leave much of that to chance, they have chosen the encoder's epoch too, and it is the
    encoder that knows less where rows are few. So the weights of documents are drawn towards those
    without the encoder: by a half with 100 rows, by a tenth with 900.
    """
    labels = split.logits.shape[1]
    if split.chain is None:
        parts = [split.documents(at_most(np.arange(len(split.answers)), _MOST_ROWS))]
    else:  # parts at random, as sentences may be sorted by their lengths
        parts = at_most(
            list(split.parts()), max(1, min(_MOST_ROWS, _MOST_TAGS // labels) // _TOKENS_AT_ONCE)
        )
    count = max(1, sum(int((part.answers != -100).sum()) for part in parts))

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights, total = torch.tensor(values, dtype=torch.float64, requires_grad=True), 0.0
        for part in parts:
            value = _loss(part.join(weights, torch.logsumexp), part.answers, problem_type) / count
            value.backward()
            total += value.item()
        return total, weights.grad.numpy()

    from scipy.optimize import minimize

    def search(most_of_encoder: float | None) -> np.ndarray:
        start, limits = np.ones(split.number_of_weights), [(0, None)] * split.number_of_weights
        limits[0] = (0, most_of_encoder)
        options = {"maxiter": _LONGEST_SEARCH}
        return minimize(loss, start, jac=True, method="L-BFGS-B", bounds=limits, options=options).x

    found = search(None)
    if split.chain is None and split.text_scores.any():  # else there is nothing to be drawn to
        rows = len(parts[0].answers)
        found = (rows * found + _DOUBTED * search(0.0)) / (rows + _DOUBTED)
    return tuple(found.tolist())


def _loss(logits: torch.Tensor, answers: torch.Tensor, problem_type: str | None) -> torch.Tensor:
    """The sum over the answers."""
    if problem_type == "regression":
        return F.mse_loss(logits.squeeze(-1), answers.to(logits.dtype), reduction="sum")
    if problem_type == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits, answers.to(logits.dtype), reduction="sum")
    return F.cross_entropy(logits, answers.long(), reduction="sum")


def add_fitted_scores(
    model: RoFormerLiteClassificationModel,
    scores: RoFormerLiteTextScores,
    splits: dict[str, Split],
    main_metric: str,
) -> tuple[Baselines, tuple[float, ...]]:
    """Make the best of a trained model and of fitted scores of the text: the sum of both with the
    `best_weights`, or one of the two alone where that is clearly better. `main_metric` on the
    validation data decides; the sum is measured there with weights of other rows. Without
    validation data the scores are taken alone.

    Returns:
        The metrics of the encoder and of the scores, each alone, and the weights; nothing when the
        encoder alone is best. Its logits are then multiplied by a number with which the validation
        loss is least.
    """
    name = "CRF" if isinstance(scores, RoFormerLiteWordScores) else "linear model"
    alone = {"its encoder alone": (1.0, 0.0, 0.0), f"its {name} alone": (0.0, 1.0, 1.0)}
    parts: Baselines = {
        name: {split: part.metrics(weights) for split, part in splits.items()}
        for name, weights in alone.items()
    }
    weights = alone[f"its {name} alone"]
    if "validation" in splits:
        weights = _chosen_weights(
            splits["validation"], model.config.problem_type, parts, main_metric
        )
    with torch.no_grad():
        for tensor in model.classifier.out_proj.parameters():
            tensor.mul_(weights[0])
    if weights[1] == 0:
        return {}, ()
    model.add_text_scores(weighted(scores, weights))
    return parts, weights


def _chosen_weights(
    validation: Split, problem_type: str | None, parts: Baselines, main_metric: str
) -> tuple[float, ...]:
    """Those of the sum, or 0 for the encoder or for the scores where the other one alone is better
    than the sum by more than chance: a small lead says little on a few hundred rows, which have
    chosen the encoder's epoch too."""
    joint = cross_fitted_metrics(validation, problem_type)[main_metric]
    encoder, text = (by_split["validation"][main_metric] for by_split in parts.values())
    best = max(encoder, text)
    if best > joint and not is_within_chance(
        main_metric, best, joint, validation.number_of_documents
    ):
        if encoder > text:
            validation = replace(
                validation, text_scores=torch.zeros_like(validation.text_scores), chain=None
            )
        else:
            validation = replace(validation, logits=torch.zeros_like(validation.logits))
    found = best_weights(validation, problem_type)
    is_heard = [validation.logits.any(), validation.text_scores.any(), True]
    return tuple(weight if heard else 0.0 for weight, heard in zip(found, is_heard, strict=False))


def weighted(scores: RoFormerLiteTextScores, weights: Sequence[float]) -> RoFormerLiteTextScores:
    """The scores, multiplied by their weights of the `best_weights`."""
    with torch.no_grad():
        scores.weight.mul_(weights[1])
        scores.bias.mul_(weights[1])
        if isinstance(scores, RoFormerLiteWordScores):
            scores.transitions.mul_(weights[2])
    return scores


def cross_fitted_metrics(split: Split, problem_type: str | None) -> Metrics:
    """Metrics of the joint logits, where a fifth of the documents is joined with the weights that
    are best on the others. Tokens are so many, and their weights so few, that all are joined with
    the weights that are best on all."""
    from sklearn.model_selection import KFold

    rows = np.arange(len(split.answers))
    if split.chain is not None or len(rows) < _FOLDS:
        return split.metrics(best_weights(split, problem_type))
    joint = torch.empty_like(split.logits)
    for others, fold in KFold(_FOLDS, shuffle=True, random_state=0).split(rows):
        joint[fold] = split.documents(fold).join(
            best_weights(split.documents(others), problem_type)
        )
    return split.measure(joint.numpy())
