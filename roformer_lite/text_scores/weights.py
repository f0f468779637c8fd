"""Weighs the scores of the text against the logits of the trained encoder, on validation data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from hf_roformer_lite.model.heads_roformer_lite import RoFormerLiteClassificationModel
from hf_roformer_lite.model.losses import IGNORE_INDEX, sequence_loss
from hf_roformer_lite.model.ngram_scores import RoFormerLiteTextScores
from hf_roformer_lite.model.tag_chain import Join, messages_of_neighbours
from hf_roformer_lite.model.tag_scores import RoFormerLiteWordScores

from ..evaluate.baselines import Baselines, sample_rows
from ..evaluate.metrics import Metrics, is_within_chance
from .fit import Examples, read

# This many documents or tokens are enough to fit two or three weights.
MAX_ROWS = 30_000
# The limit is on tokens times tags, because the time grows with the square of the number of tags.
MAX_TAGS = 500_000
# The messages of about this many tokens are in memory at the same time.
NUM_TOKENS_TOGETHER = 1024
MAX_STEPS = 50
NUM_FOLDS = 5
# With this many validation rows the weight of the encoder is halved.
NUM_PRIOR_ROWS = 100
# Sentences that are read together get numbers below this one, plus a multiple of it.
MAX_READ_TOGETHER = 2**20


@dataclass
class Split:
    """The logits of the encoder and the scores of the text for one split, and its metrics.

    Args:
        logits: The logits of documents or tokens, `(N, labels)`.
        text_scores: `(N, labels)`.
        answers: The true class of each document or token; -100 is ignored.
        measure: Returns the metrics of joint logits `(N, labels)`.
        chain: The indices of the tokens in which words begin, the documents of these tokens, and
            the transitions. None for documents.
    """

    logits: torch.Tensor
    text_scores: torch.Tensor
    answers: torch.Tensor
    measure: Callable[[np.ndarray], Metrics]
    chain: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    @property
    def number_of_documents(self) -> int:
        """The number of documents or of sentences, where a long sentence counts as several."""
        if self.chain is None:
            return len(self.answers)
        return len(self.chain[1].unique())

    def join(
        self, weights: Sequence[float] | torch.Tensor, join: Join = torch.amax
    ) -> torch.Tensor:
        """The joint logits for given weights of the encoder, the scores and the transitions.

        The memory of gradients grows with the number of rows; see `parts`.
        """
        joint = weights[0] * self.logits + weights[1] * self.text_scores
        if self.chain is None:
            return joint
        first, documents, transitions = self.chain
        messages = messages_of_neighbours(joint[first], weights[2] * transitions, documents, join)
        return joint.index_add(0, first, messages)

    def rows(self, taken: slice | np.ndarray) -> "Split":
        """Some of the documents, or a slice of tokens."""
        chain = self.chain
        if chain is not None:
            first, documents, transitions = chain
            borders = torch.searchsorted(first, torch.tensor([taken.start, taken.stop]))
            words = slice(*borders.tolist())
            chain = (first[words] - taken.start, documents[words], transitions)
        return replace(
            self,
            logits=self.logits[taken],
            text_scores=self.text_scores[taken],
            answers=self.answers[taken],
            chain=chain,
        )

    def parts(self) -> Iterator["Split"]:
        """Yield all documents as one part, or whole sentences in parts of about 1,024 tokens."""
        begins = torch.empty(0, dtype=torch.long)
        if self.chain is not None:
            first, documents, _ = self.chain
            is_new_sentence = documents[1:] != documents[:-1]
            begins = first[1:][is_new_sentence]
        start = 0
        while start < len(self.logits):
            later = begins[begins >= start + NUM_TOKENS_TOGETHER]
            end = int(later[0]) if len(later) else len(self.logits)
            yield self.rows(slice(start, end))
            start = end

    def metrics(self, weights: Sequence[float]) -> Metrics:
        return self.measure(self.join(weights).numpy())


def make_split(
    scores: RoFormerLiteTextScores,
    examples: Examples,
    logits: np.ndarray,
    answers: np.ndarray,
    measure: Callable[[np.ndarray], Metrics],
) -> Split:
    """Make a `Split`. `logits` and `answers` have an entry for each document or token."""
    text_scores = []
    is_first = []
    documents = []
    with torch.no_grad():
        for number, (words, own_documents, num_owners) in enumerate(read(scores, examples)):
            text_scores.append(scores.score(words, num_owners))
            is_first.append(words.is_first)
            documents.append(own_documents + MAX_READ_TOGETHER * number)
    # The search for weights depends on small differences, which need double precision.
    split = Split(
        logits=torch.from_numpy(logits).double(),
        text_scores=torch.cat(text_scores).double(),
        answers=torch.from_numpy(answers),
        measure=measure,
    )
    if not isinstance(scores, RoFormerLiteWordScores):
        return split
    first = torch.cat(is_first).nonzero()[:, 0]
    transitions = scores.transitions.detach().double()
    return replace(split, chain=(first, torch.cat(documents)[first], transitions))


def best_weights(split: Split, problem_type: str | None) -> tuple[float, ...]:
    """The non-negative weights of the encoder's logits, the scores of the text and the transitions
    with the lowest loss on the split. About 30,000 documents or tokens are used, and fewer with
    more than 16 tags.

    With few rows the weights are noisy. They also overestimate the encoder, whose epoch was chosen
    on the same rows and which is weaker when data are scarce. The weights of documents are
    therefore shrunk towards the best weights without the encoder: by a half with 100 rows, by a
    tenth with 900.
    """
    parts: Sequence[Split]
    if split.chain is None:
        parts = [split.rows(sample_rows(np.arange(len(split.answers)), MAX_ROWS))]
    else:
        # The parts are chosen at random, because sentences may be sorted by length.
        num_tokens = min(MAX_ROWS, MAX_TAGS // split.logits.shape[1])
        parts = sample_rows(list(split.parts()), max(1, num_tokens // NUM_TOKENS_TOGETHER))
    found = search_weights(parts, problem_type, max_encoder=None)
    if split.chain is None and split.text_scores.any():
        num_rows = len(parts[0].answers)
        without_encoder = search_weights(parts, problem_type, max_encoder=0.0)
        found = num_rows * found + NUM_PRIOR_ROWS * without_encoder
        found = found / (num_rows + NUM_PRIOR_ROWS)
    return tuple(found.tolist())


def search_weights(
    parts: Sequence[Split], problem_type: str | None, max_encoder: float | None
) -> np.ndarray:
    """The weights with the lowest loss on all parts. The first one is at most `max_encoder`."""
    from scipy.optimize import minimize

    problem_type = problem_type or "single_label_classification"
    num_answers = max(1, sum(int((part.answers != IGNORE_INDEX).sum()) for part in parts))

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        total = 0.0
        for part in parts:
            logits = part.join(weights, torch.logsumexp)
            value = sequence_loss(logits, part.answers, problem_type, num_answers)
            value.backward()
            total += value.item()
        return total, weights.grad.numpy()

    num_weights = 3
    if parts[0].chain is None:
        # There are no transitions.
        num_weights = 2
    start = np.ones(num_weights)
    bounds = [(0.0, max_encoder)] + [(0.0, None)] * (len(start) - 1)
    options = {"maxiter": MAX_STEPS}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return found.x


def add_fitted_scores(
    model: RoFormerLiteClassificationModel,
    scores: RoFormerLiteTextScores,
    splits: dict[str, Split],
    main_metric: str,
) -> tuple[Baselines, tuple[float, ...]]:
    """Join a trained model and fitted scores of the text.

    The result is their sum with the `best_weights`, or just one of the two if it is significantly
    better. This is decided by `main_metric` on the validation data, where the sum is measured with
    weights fitted on other rows. Without validation data, only the scores are used.

    Returns:
        The metrics of the encoder and of the scores on their own, and the weights. Both are empty
        if only the encoder is used; its logits are then multiplied by the factor with the lowest
        validation loss.
    """
    name = "CRF" if isinstance(scores, RoFormerLiteWordScores) else "linear model"
    alone: dict[str, tuple[float, ...]] = {
        "its encoder alone": (1.0, 0.0, 0.0),
        f"its {name} alone": (0.0, 1.0, 1.0),
    }
    parts: Baselines = {}
    for part, weights in alone.items():
        parts[part] = {name: split.metrics(weights) for name, split in splits.items()}
    weights = alone[f"its {name} alone"]
    if "validation" in splits:
        problem_type = model.config.problem_type
        weights = choose_weights(splits["validation"], problem_type, parts, main_metric)
    with torch.no_grad():
        for tensor in model.classifier.out_proj.parameters():
            tensor.mul_(weights[0])
    if weights[1] == 0:
        return {}, ()
    model.add_text_scores(weighted(scores, weights))
    return parts, weights


def choose_weights(
    validation: Split, problem_type: str | None, parts: Baselines, main_metric: str
) -> tuple[float, ...]:
    """The weights of the sum. The weight of the encoder or of the scores is 0 if the other one on
    its own is significantly better than the sum. A small lead means little on a few hundred rows,
    on which the encoder's epoch was chosen as well."""
    joint = cross_fitted_metrics(validation, problem_type)[main_metric]
    encoder, text = (by_split["validation"][main_metric] for by_split in parts.values())
    best = max(encoder, text)
    num_documents = validation.number_of_documents
    is_chance = is_within_chance(main_metric, best, joint, num_documents)
    if best > joint and not is_chance:
        if encoder > text:
            no_scores = torch.zeros_like(validation.text_scores)
            validation = replace(validation, text_scores=no_scores, chain=None)
        else:
            no_logits = torch.zeros_like(validation.logits)
            validation = replace(validation, logits=no_logits)
    encoder_weight, text_weight, *others = best_weights(validation, problem_type)
    # The weight of a term that is always zero is arbitrary.
    if not validation.logits.any():
        encoder_weight = 0.0
    if not validation.text_scores.any():
        text_weight = 0.0
    return encoder_weight, text_weight, *others


def weighted(scores: RoFormerLiteTextScores, weights: Sequence[float]) -> RoFormerLiteTextScores:
    """Multiply the scores by their weights."""
    with torch.no_grad():
        scores.weight.mul_(weights[1])
        scores.bias.mul_(weights[1])
        if isinstance(scores, RoFormerLiteWordScores):
            scores.transitions.mul_(weights[2])
    return scores


def cross_fitted_metrics(split: Split, problem_type: str | None) -> Metrics:
    """Metrics of the joint logits, where the weights of each fifth of the documents are fitted on
    the others. Tokens are so numerous that their few weights are fitted on all of them."""
    from sklearn.model_selection import KFold

    rows = np.arange(len(split.answers))
    if split.chain is not None or len(rows) < NUM_FOLDS:
        return split.metrics(best_weights(split, problem_type))
    joint = torch.empty_like(split.logits)
    for others, fold in KFold(NUM_FOLDS, shuffle=True, random_state=0).split(rows):
        weights = best_weights(split.rows(others), problem_type)
        joint[fold] = split.rows(fold).join(weights)
    return split.measure(joint.numpy())
