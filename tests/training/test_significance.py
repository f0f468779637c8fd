"""The paired test agrees with independent implementations, and each metric by row with its
library."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import seqeval.scheme
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from roformer_lite.measuring.significance import (
    Measured,
    RowMetric,
    corpus_score,
    correlation,
    entity_f1,
    mean,
    p_value,
    perplexity,
)
from roformer_lite.training.results import p_values, verdict

# With 10,000 shuffles, a p-value has a standard deviation of at most 0.005.
NEAR = 0.02


def by_brute_force(metric, ours, theirs, shuffles: int) -> float:
    """The p-value by swapping the answers themselves, row by row, and measuring them again."""
    generator = np.random.default_rng(7)
    observed = abs(metric(ours) - metric(theirs))
    as_large = 0
    for _ in range(shuffles):
        first, second = list(ours), list(theirs)
        for row in range(len(first)):
            if generator.random() < 0.5:
                first[row], second[row] = second[row], first[row]
        as_large += abs(metric(first) - metric(second)) >= observed - 1e-12
    return (1 + as_large) / (1 + shuffles)


@pytest.mark.parametrize("only_ours", [10, 14, 20])
def test_accuracy_has_the_p_value_of_mcnemars_exact_test(only_ours):
    ours = np.array([True] * 50 + [True] * only_ours + [False] * 9)
    theirs = np.array([True] * 50 + [False] * only_ours + [True] * 9)
    exact = scipy.stats.binomtest(9, only_ours + 9).pvalue
    assert p_value(mean(ours), mean(theirs)) == pytest.approx(exact, abs=NEAR)
    assert p_value(mean(theirs), mean(ours)) == p_value(mean(ours), mean(theirs))
    assert p_value(mean(ours), mean(ours)) == 1


DRAW = np.random.default_rng(5)
NUMBERS = DRAW.normal(size=80)


TAGS = [["B-X", "E-X", "O", "S-Y"] * (1 + number % 2) for number in range(30)]
LABELS = DRAW.integers(5, 20, 40)
LOSSES = LABELS * DRAW.uniform(1, 3, 40)


def wrong_here_and_there(true: list, share: float, seed: int) -> list:
    draw = np.random.default_rng(seed)
    names = sorted({name for own in true for name in own})
    return [
        [str(draw.choice(names)) if draw.random() < share else name for name in own] for own in true
    ]


def strict_f1(lines: list) -> float:
    options = {"mode": "strict", "scheme": seqeval.scheme.IOBES, "zero_division": 0}
    return seqeval.metrics.f1_score(TAGS, lines, **options)


# Each case has the answers of two systems, our metric, and an independent one.
CASES: dict[str, tuple] = {
    "pearson": (
        scipy.stats.zscore(NUMBERS + DRAW.normal(size=80)),
        scipy.stats.zscore(NUMBERS + 1.6 * DRAW.normal(size=80)),
        lambda scores: correlation(scores, NUMBERS, of_ranks=False),
        lambda scores: scipy.stats.pearsonr(scores, NUMBERS).statistic,
    ),
    "spearman": (
        scipy.stats.rankdata(NUMBERS + DRAW.normal(size=80)),
        scipy.stats.rankdata(NUMBERS + 1.6 * DRAW.normal(size=80)),
        lambda scores: correlation(scores, NUMBERS, of_ranks=True),
        lambda scores: scipy.stats.pearsonr(scores, scipy.stats.rankdata(NUMBERS)).statistic,
    ),
    "entities": (
        wrong_here_and_there(TAGS, 0.2, seed=3),
        wrong_here_and_there(TAGS, 0.27, seed=4),
        lambda tags: entity_f1(tags, TAGS, "IOBES"),
        strict_f1,
    ),
    "perplexity": (
        LOSSES,
        LOSSES + DRAW.normal(1, 4, 40),
        lambda losses: perplexity(losses, LABELS),
        lambda losses: math.exp(sum(losses) / LABELS.sum()),
    ),
}
# An independent metric that takes long is measured less often, which makes p-values less exact.
SLOW = {"entities": (400, 0.08)}


@pytest.mark.parametrize("case", CASES)
def test_p_values_are_those_of_brute_force(case):
    ours, theirs, metric, independent = CASES[case]
    first = metric(ours)
    second = metric(theirs)
    assert first.value == pytest.approx(independent(ours))
    assert second.value == pytest.approx(independent(theirs))
    shuffles, bound = SLOW.get(case, (2000, NEAR))
    expected = by_brute_force(independent, ours, theirs, shuffles)
    assert p_value(first, second) == pytest.approx(expected, abs=bound)


@pytest.mark.parametrize("metric", [BLEU(), CHRF()])
def test_texts_have_the_p_value_of_sacrebleu(metric):
    words = "a fine film from end to end with the best of all casts".split()
    split = [DRAW.choice(words, 9).tolist() for _ in range(40)]
    systems = [split, wrong_here_and_there(split, 0.15, 1), wrong_here_and_there(split, 0.25, 2)]
    references, ours, theirs = ([" ".join(own) for own in lines] for lines in systems)
    found = [corpus_score(metric, lines, references) for lines in (ours, theirs)]
    assert found[0].value == pytest.approx(metric.corpus_score(ours, [references]).score)
    named = [("theirs", theirs), ("ours", ours)]
    test = PairedTest(named, {"m": metric}, [references], test_type="ar", n_samples=10_000)
    _, results = test()
    (name,) = results.keys() - {"System"}
    assert p_value(*found) == pytest.approx(results[name][1].p_value, abs=NEAR)


def test_the_scale_of_predictions_does_not_matter():
    ours, theirs, metric, _ = CASES["pearson"]
    assert p_value(metric(ours), metric(1000 * theirs - 5)) == p_value(metric(ours), metric(theirs))
    constant = metric(np.full(80, 3.0))
    assert constant.value == 0 and p_value(metric(ours), constant) < 0.01


def compared(metric: str, ours: RowMetric, theirs: RowMetric) -> tuple[str, dict[str, float]]:
    """The verdict and the p-values for a model and its only baseline."""
    evaluations = [SimpleNamespace(split="test", by_row=ours)]
    baselines = {"CRF": {"test": Measured({}, theirs)}}
    chances = p_values(metric, evaluations, baselines)
    return verdict(metric, evaluations, baselines), chances["test"]


@pytest.mark.parametrize(
    ("best", "other", "same_rows", "message"),
    [
        ("this model", "CRF", True, "significantly better than the best baseline, CRF"),
        ("this model", "CRF", False, "does not differ significantly"),
        ("CRF", "this model", True, "significantly worse than the best baseline, CRF"),
    ],
)
def test_the_same_difference_is_significant_only_if_the_rows_agree(best, other, same_rows, message):
    """Of 893 rows, 849 and 832 are right: the same values, but once with few disagreements."""
    numbers = np.arange(893)
    right = {
        best: mean(numbers < 849),
        other: mean((numbers if same_rows else numbers[::-1]) < 832),
    }
    said, chances = compared("accuracy", right["this model"], right["CRF"])
    assert message in said
    assert chances[best] == 1 and (chances[other] < 0.05) == same_rows


def test_a_lower_perplexity_is_better():
    labels = np.full(50, 10)
    ours, theirs = (perplexity(labels * loss, labels) for loss in (2.0, 2.1))
    said, _ = compared("perplexity", ours, theirs)
    assert "significantly better than the best" in said
