"""Paired tests: whether a difference between two systems, measured on the same rows, may be chance.

A metric is a function of sums over rows, so that each row contributes some numbers: its hits, its
n-grams, its loss. The test is paired approximate randomization (Noreen 1989; Yeh 2000,
arXiv:cs/0008005). If two systems are equally good, the answers to any row may be swapped between
them. The p-value is the fraction of swaps after which the metrics differ by at least as much as
before: of all swaps of at most 13 rows, and otherwise of 10,000 random ones. For accuracy, this is
McNemar's exact test, up to the random choice of swaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .metrics import Metrics, entities_of
from .report import Outcome

# A difference with a smaller p-value is significant.
SIGNIFICANCE_LEVEL = 0.05
NUM_SHUFFLES = 10_000
# This many swaps are made at once, which limits the memory.
MAX_SWAPS_AT_ONCE = 5_000_000
# Differences that are equal except for rounding count as equal.
ROUNDING = 1e-9


# Metrics are compared by identity, as arrays are neither equal nor hashable as a whole.
@dataclass(frozen=True, eq=False)
class RowMetric:
    """A metric of one system, and the numbers that each row contributes to it.

    Args:
        rows: The numbers of each row, `(rows, numbers)`. A row is what may be swapped between
            systems: a row of the data, a sentence, a query or a block of text.
        of_sums: The metrics for several sums of statistics, `(sums, statistics)` to `(sums,)`.
        statistics_of: The statistics of all rows, `(rows, statistics)`, from their numbers. By
            default, these are the same.
    """

    rows: np.ndarray
    of_sums: Callable[[np.ndarray], np.ndarray]
    statistics_of: Callable[[np.ndarray], np.ndarray] = np.asarray

    @property
    def statistics(self) -> np.ndarray:
        return self.statistics_of(self.rows.astype(np.float64))

    @property
    def value(self) -> float:
        """The metric of all rows."""
        return float(self.of_sums(self.statistics.sum(axis=0, keepdims=True))[0])

    def of_rows(self, is_chosen: np.ndarray) -> RowMetric:
        """The metric of some of the rows."""
        return replace(self, rows=self.rows[is_chosen])


@dataclass(frozen=True)
class Measured:
    """How well a system does on a split.

    Args:
        metrics: The metrics by name.
        by_row: The main metric by row.
        outcomes: The prediction for each row, if there are single predictions.
    """

    metrics: Metrics
    by_row: RowMetric
    outcomes: Sequence[Outcome] = ()


# The metrics by baseline and split.
Baselines = dict[str, dict[str, Measured]]


# The table and the verdict of a card need the same tests.
@lru_cache(maxsize=32)
def p_value(first: RowMetric, second: RowMetric) -> float:
    """The p-value of the difference between two systems on the same rows, two-sided."""
    from scipy.stats import permutation_test

    ours = first.statistics
    theirs = second.statistics
    is_different = (ours != theirs).any(axis=1)
    changes = (theirs - ours)[is_different]
    number = len(changes)
    if number < 2:
        # A single row that is swapped only changes the sign of the difference.
        return 1.0
    our_sums = ours.sum(axis=0, keepdims=True)
    their_sums = theirs.sum(axis=0, keepdims=True)

    def difference(is_swapped: np.ndarray, _: np.ndarray, axis: int) -> np.ndarray:
        moved = np.atleast_2d(is_swapped) @ changes
        return abs(first.of_sums(our_sums + moved) - first.of_sums(their_sums - moved))

    found = permutation_test(
        (np.zeros(number), np.ones(number)),
        difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=NUM_SHUFFLES,
        batch=max(1, MAX_SWAPS_AT_ONCE // number),
        alternative="greater",
        rng=0,
    )
    return float(found.pvalue)


def ratio_of(sums: np.ndarray) -> np.ndarray:
    """The first statistic divided by the second; 0 instead of a division by zero. The statistics
    are in the last dimension."""
    numerators = sums[..., 0]
    denominators = sums[..., 1]
    has_value = denominators != 0
    return np.divide(numerators, denominators, out=np.zeros_like(numerators), where=has_value)


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> RowMetric:
    """The sum of the numerators of all rows, divided by that of the denominators."""
    return RowMetric(np.stack([numerators, denominators], axis=1), ratio_of)


def mean(values: np.ndarray) -> RowMetric:
    return ratio(values, np.ones(len(values)))


def perplexity(losses: np.ndarray, labels: np.ndarray) -> RowMetric:
    """The exponential of the mean loss.

    Args:
        losses: The summed losses of each row, in nats.
        labels: The number of labels of each row.
    """
    return replace(ratio(losses, labels), of_sums=lambda sums: np.exp(ratio_of(sums).clip(max=700)))


def micro_f1(hits: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> RowMetric:
    """F1 over all rows, from the numbers of right, predicted and true labels of each row."""
    return ratio(2 * hits, predicted + true)


def entity_f1(predicted: Sequence[list[str]], true: Sequence[list[str]], scheme: str) -> RowMetric:
    """F1 of whole entities, by sentence; see `entity_report`."""
    found = entities_of(predicted, scheme)
    wanted = entities_of(true, scheme)
    counts = [
        (len(ours & theirs), len(ours), len(theirs))
        for ours, theirs in zip(found, wanted, strict=True)
    ]
    return micro_f1(*np.array(counts).T)


def correlation(predicted: np.ndarray, true: np.ndarray, of_ranks: bool) -> RowMetric:
    """Pearson's correlation, or Spearman's, which is that of the ranks. It is 0 when either side is
    constant.

    Predictions of two systems may have different scales. They are therefore brought to mean 0 and
    variance 1, which does not change their correlation, before they are swapped.
    """

    def statistics_of(rows: np.ndarray) -> np.ndarray:
        from scipy.stats import rankdata

        values = rankdata(rows, axis=0) if of_ranks else rows
        centred = values - values.mean(axis=0)
        deviations = centred.std(axis=0)
        scaled = centred / np.where(deviations > 0, deviations, 1)
        ours, right = scaled.T
        return np.stack([np.ones(len(ours)), ours, ours**2, ours * right], axis=1)

    return RowMetric(np.stack([predicted, true], axis=1), pearson_of, statistics_of)


def pearson_of(sums: np.ndarray) -> np.ndarray:
    """Pearson's correlation of x and standard scores y from the number of rows and the sums of x,
    x² and xy."""
    number, x, xx, xy = sums.T
    variances = xx / number - (x / number) ** 2
    deviations = np.sqrt(np.where(variances > ROUNDING, variances, 0))
    return ratio_of(np.stack([xy / number, deviations], axis=1))


def corpus_score(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> RowMetric:
    """A metric of sacrebleu.

    Args:
        metric: `BLEU` or `CHRF`.
        hypotheses, references: The lines of the system and of the reference.
    """
    # These are the functions of sacrebleu's own paired tests. No public ones return the counts of
    # each line.
    statistics = metric._extract_corpus_statistics(hypotheses, [references])

    def of_sums(sums: np.ndarray) -> np.ndarray:
        counts = sums.round().astype(int).tolist()
        return np.array([metric._compute_score_from_stats(own).score for own in counts])

    return RowMetric(np.array(statistics), of_sums)
