"""Metrics, computed by the libraries that define them: sacrebleu, scikit-learn, scipy and seqeval.

Values are fractions from 0 to 1, except BLEU and chrF, which sacrebleu computes from 0 to 100, and
losses, perplexity, correlations and the mean squared error.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from hf_roformer_lite.model.losses import IGNORE_INDEX

from ..errors import InputError
from .tag_schemes import STRICT_SCHEMES

Metrics = dict[str, float]
CORRELATIONS = ("spearman", "pearson")
# Lower values of these metrics and of losses are better.
LOWER_IS_BETTER = frozenset({"perplexity", "bits_per_byte", "mse"})


def best_of(metric: str, values: Mapping[Any, float]) -> Any:
    """The key of the best value of a metric. The first one of equally good ones is chosen."""
    choose = min if metric in LOWER_IS_BETTER else max
    return choose(values, key=values.__getitem__)


def translation_metrics(
    hypotheses: Sequence[str], references: Sequence[str], bleu_tokenizer: str
) -> Metrics:
    """Corpus BLEU and chrF (Post 2018, arXiv:1804.08771; Popović 2015), and the fraction of exact
    matches."""
    from sacrebleu.metrics import BLEU, CHRF

    bleu = BLEU(tokenize=bleu_tokenizer).corpus_score(hypotheses, [references])
    chrf = CHRF().corpus_score(hypotheses, [references])
    exact = np.mean([found == right for found, right in zip(hypotheses, references, strict=True)])
    return {"bleu": bleu.score, "chrf": chrf.score, "exact_match": float(exact)}


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF of a single line."""
    from sacrebleu.metrics import CHRF

    return CHRF().sentence_score(hypothesis, [reference]).score


def token_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The numbers of each row that are needed for the perplexity, so that logits need not be kept.

    Args:
        logits: `(B, L, vocab)`.
        labels: `(B, L)`, -100 at positions without a label.

    Returns:
        `(B, 3)`: the summed negative log-likelihood in nats, the number of labels, and the number
        of labels with the highest logit.
    """
    labelled = labels != IGNORE_INDEX
    # The losses are (B, L), with 0 at positions without a label.
    losses = F.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
    right = (logits.argmax(-1) == labels) & labelled
    return torch.stack([losses.sum(1), labelled.sum(1).float(), right.sum(1).float()], dim=1)


def perplexity_metrics(scores: np.ndarray) -> Metrics:
    """Loss and perplexity over all labelled tokens, and the fraction of them predicted correctly.

    Args:
        scores: The `token_scores` of all rows.
    """
    loss, labels, right = scores.astype(np.float64).sum(0)
    mean = float(loss / labels)
    return {
        "loss": mean,
        "perplexity": math.exp(min(mean, 700.0)),
        "accuracy": float(right / labels),
    }


def classification_metrics(predicted: np.ndarray, true: np.ndarray) -> Metrics:
    """Accuracy and macro F1, and for rows with several labels also micro F1.

    Macro F1 is the mean over the classes that occur among the true or the predicted ones. For rows
    with several labels, it is the mean over all labels, and the F1 of one that does not occur is 0.

    Args:
        predicted, true: The class of each row, `(rows,)`, or zeros and ones for all labels, `(rows,
            labels)`, where accuracy is the fraction of exactly right rows. `predicted` may lack the
            last columns of `true`, which belong to labels that the model cannot predict.
    """
    from sklearn.metrics import accuracy_score, f1_score

    averages = ["macro"]
    if true.ndim == 2:
        predicted = np.pad(predicted, ((0, 0), (0, true.shape[1] - predicted.shape[1])))
        averages = ["macro", "micro"]
    metrics = {"accuracy": float(accuracy_score(true, predicted))}
    for average in averages:
        f1 = f1_score(true, predicted, average=average, zero_division=0)
        metrics[f"{average}_f1"] = float(f1)
    return metrics


def entity_report(predicted: list[list[str]], true: list[list[str]], scheme: str) -> Any:
    """The `classification_report` of seqeval, which counts whole entities, as a dictionary.

    IOB1 and IOB2 are read as conlleval reads them. Schemes that also mark the end of an entity are
    read strictly: tags that break their rules are not an entity.

    Args:
        predicted, true: The tags of each sentence.
        scheme: The scheme of the tags, as returned by `scheme_of`.

    Raises:
        InputError: for a tag that a strict scheme does not have.
    """
    from seqeval import scheme as schemes
    from seqeval.metrics import classification_report

    options: dict[str, Any] = {"output_dict": True, "zero_division": 0}
    if scheme in STRICT_SCHEMES:
        options |= {"mode": "strict", "scheme": getattr(schemes, scheme)}
    try:
        return classification_report(true, predicted, **options)
    except ValueError as error:
        raise InputError(f"the tags of the training data follow {scheme}: {error}") from error


def entities_of(sentences: Iterable[list[str]], scheme: str) -> list[set[Any]]:
    """The entities of each sentence, read as in `entity_report`."""
    from seqeval import scheme as schemes
    from seqeval.metrics.sequence_labeling import get_entities

    if scheme not in STRICT_SCHEMES:
        return [set(get_entities(tags)) for tags in sentences]
    kind = getattr(schemes, scheme)
    return [set(schemes.Tokens(tags, scheme=kind).entities) for tags in sentences]


def regression_metrics(predicted: np.ndarray, true: np.ndarray) -> Metrics:
    """Pearson and Spearman correlation (0 when either side is constant) and mean squared error."""
    from scipy.stats import pearsonr, spearmanr

    pearson = 0.0
    spearman = 0.0
    if np.ptp(predicted) > 0 and np.ptp(true) > 0:
        pearson = float(pearsonr(predicted, true).statistic)
        spearman = float(spearmanr(predicted, true).statistic)
    mse = float(np.mean((predicted - true) ** 2))
    return {"pearson": pearson, "spearman": spearman, "mse": mse}


def tagging_metrics(
    predicted: list[list[str]], true: list[list[str]], scheme: str | None
) -> Metrics:
    """Accuracy over tokens, and F1.

    Args:
        predicted, true: The tags of each sentence.
        scheme: As returned by `scheme_of`. With a scheme, F1, precision and recall count whole
            entities; without one, F1 is the macro F1 of the tags.
    """
    scores = classification_metrics(np.concatenate(predicted), np.concatenate(true))
    if scheme is None:
        return scores
    entities = entity_report(predicted, true, scheme)["micro avg"]
    return {
        "f1": float(entities["f1-score"]),
        "precision": float(entities["precision"]),
        "recall": float(entities["recall"]),
        "accuracy": scores["accuracy"],
    }
