"""The paired test agrees with independent implementations, and each metric by row with its library."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import seqeval.scheme
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from sklearn.metrics import f1_score

from roformer_lite.evaluation import THIS_MODEL
from roformer_lite.measuring.significance import (
    Measured,
    corpus_score,
    correlation,
    entity_f1,
    macro_f1,
    mean,
    micro_f1,
    p_value,
    perplexity,
)
from roformer_lite.training.results import not_worse, p_values, verdict

# With 10,000 shuffles, a p-value has a standard deviation of at most 0.005.
NEAR = 0.02


def by_brute_force(metric, ours, theirs, shuffles: int = 2000) -> float:
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
    tail = sum(math.comb(only_ours + 9, k) for k in range(10)) / 2 ** (only_ours + 9)
    assert p_value(mean(ours), mean(theirs)) == pytest.approx(min(1, 2 * tail), abs=NEAR)
    assert p_value(mean(theirs), mean(ours)) == p_value(mean(ours), mean(theirs))
    assert p_value(mean(ours), mean(ours)) == 1


def test_means_have_the_p_value_of_scipy():
    """The values are as uneven as reciprocal ranks."""
    draw = np.random.default_rng(0)
    ours, theirs = 1 / draw.integers(1, 6, (2, 60))
    expected = scipy.stats.permutation_test(
        (ours, theirs),
        lambda first, second: abs(first.mean() - second.mean()),
        permutation_type="samples",
        alternative="greater",
        n_resamples=20_000,
        rng=np.random.default_rng(1),
    )
    assert p_value(mean(ours), mean(theirs)) == pytest.approx(expected.pvalue, abs=NEAR)


@pytest.mark.parametrize("of_ranks", [False, True])
def test_correlations_have_the_p_value_of_scipy(of_ranks):
    """The scale of a system's predictions does not matter."""
    draw = np.random.default_rng(2)
    true = draw.normal(size=80)
    ours = true + draw.normal(size=80)
    theirs = true + 1.6 * draw.normal(size=80)
    metric = scipy.stats.spearmanr if of_ranks else scipy.stats.pearsonr
    first, second = (correlation(scores, true, of_ranks) for scores in (ours, 1000 * theirs - 5))
    assert first.value == pytest.approx(metric(ours, true).statistic)
    assert second.value == pytest.approx(metric(theirs, true).statistic)
    values = [scipy.stats.rankdata(scores) if of_ranks else scores for scores in (ours, theirs)]
    target = scipy.stats.rankdata(true) if of_ranks else true
    expected = scipy.stats.permutation_test(
        [scipy.stats.zscore(own) for own in values],
        lambda own, other: abs(np.corrcoef(own, target)[0, 1] - np.corrcoef(other, target)[0, 1]),
        permutation_type="samples",
        alternative="greater",
        n_resamples=5000,
        rng=np.random.default_rng(1),
    )
    assert p_value(first, second) == pytest.approx(expected.pvalue, abs=NEAR)
    constant = correlation(np.full(80, 3.0), true, of_ranks)
    assert constant.value == 0 and p_value(first, constant) < 0.01


def wrong_here_and_there(true: list, names: list, share: float, seed: int) -> list:
    draw = np.random.default_rng(seed)
    return [
        [str(draw.choice(names)) if draw.random() < share else name for name in own] for own in true
    ]


@pytest.mark.parametrize("scheme", ["IOB2", "IOBES"])
def test_entities_have_the_p_value_of_brute_force(scheme):
    entities = {"IOB2": ["B-X", "I-X", "O", "B-Y"], "IOBES": ["B-X", "E-X", "O", "S-Y"]}[scheme]
    true = [entities * (1 + number % 2) for number in range(30)]
    ours = wrong_here_and_there(true, entities, 0.2, seed=3)
    theirs = wrong_here_and_there(true, entities, 0.27, seed=4)
    options = {"zero_division": 0}
    if scheme == "IOBES":
        options |= {"mode": "strict", "scheme": seqeval.scheme.IOBES}

    def metric(predicted: list) -> float:
        return seqeval.metrics.f1_score(true, predicted, **options)

    first, second = (entity_f1(predicted, true, scheme) for predicted in (ours, theirs))
    assert first.value == pytest.approx(metric(ours))
    assert second.value == pytest.approx(metric(theirs))
    expected = by_brute_force(metric, ours, theirs, shuffles=400)
    assert p_value(first, second) == pytest.approx(expected, abs=0.08)


def test_f1_of_labels_has_the_p_value_of_brute_force():
    draw = np.random.default_rng(5)
    true = draw.integers(0, 3, 60)
    ours, theirs = (
        np.where(draw.random(60) < share, draw.integers(0, 3, 60), true) for share in (0.2, 0.4)
    )

    def macro(predicted: list) -> float:
        return f1_score(true, predicted, average="macro")

    first, second = (macro_f1(predicted, true, num_labels=4) for predicted in (ours, theirs))
    assert first.value == pytest.approx(macro(ours))
    assert second.value == pytest.approx(macro(theirs))
    expected = by_brute_force(macro, ours, theirs, shuffles=600)
    assert p_value(first, second) == pytest.approx(expected, abs=0.06)

    sets = np.eye(3, dtype=int)[true]
    found = np.eye(3, dtype=int)[ours]
    hits = (sets * found).sum(axis=1)
    micro = micro_f1(hits, found.sum(axis=1), sets.sum(axis=1))
    assert micro.value == pytest.approx(f1_score(sets, found, average="micro"))


@pytest.mark.parametrize("metric", [BLEU(), CHRF()])
def test_texts_have_the_p_value_of_sacrebleu(metric):
    draw = np.random.default_rng(6)
    words = "a fine film from end to end with the best of all casts".split()
    references = [" ".join(draw.choice(words, 9)) for _ in range(40)]
    split = [line.split() for line in references]
    ours, theirs = (
        [" ".join(own) for own in wrong_here_and_there(split, words, share, seed)]
        for share, seed in ((0.15, 1), (0.25, 2))
    )
    found = [corpus_score(metric, lines, references) for lines in (ours, theirs)]
    assert found[0].value == pytest.approx(metric.corpus_score(ours, [references]).score)
    systems = [("theirs", theirs), ("ours", ours)]
    test = PairedTest(systems, {"m": metric}, [references], test_type="ar", n_samples=10_000)
    _, results = test()
    (name,) = results.keys() - {"System"}
    assert p_value(*found) == pytest.approx(results[name][1].p_value, abs=NEAR)


def test_perplexity_has_the_p_value_of_brute_force():
    draw = np.random.default_rng(8)
    labels = draw.integers(5, 20, 40)
    ours = labels * draw.uniform(1, 3, 40)
    theirs = ours + draw.normal(1, 4, 40)

    def metric(losses: list) -> float:
        return math.exp(sum(losses) / labels.sum())

    first, second = (perplexity(losses, labels) for losses in (ours, theirs))
    assert first.value == pytest.approx(metric(ours))
    expected = by_brute_force(metric, ours, theirs)
    assert p_value(first, second) == pytest.approx(expected, abs=NEAR)


def compared(ours: int, theirs: int, same_rows: bool) -> tuple[str, set]:
    """The verdict and the bold cells for two systems with so many right rows of 893.

    Args:
        ours, theirs: The numbers of right rows.
        same_rows: Whether all rows that one of them has right are also right in the other.
    """
    numbers = np.arange(893)
    model = mean(numbers < ours)
    baseline = mean((numbers if same_rows else numbers[::-1]) < theirs)
    evaluations = [SimpleNamespace(split="test", by_row=model, system=THIS_MODEL)]
    baselines = {"CRF": {"test": Measured({}, baseline)}}
    chances = p_values("accuracy", evaluations, baselines)
    return verdict("accuracy", evaluations, baselines), not_worse({"p_values": chances})


def test_the_same_difference_is_significant_only_if_the_rows_agree():
    """Of 893 rows, 849 and 832 are right: the same values, but once with few disagreements."""
    said, bold = compared(849, 832, same_rows=True)
    assert "significantly better than the best baseline, CRF" in said
    assert bold == {("this model", "test")}
    said, bold = compared(849, 832, same_rows=False)
    assert "do not differ significantly" in said
    assert bold == {("this model", "test"), ("CRF", "test")}
    said, bold = compared(832, 849, same_rows=True)
    assert "The best baseline, CRF, is significantly better" in said
    assert bold == {("CRF", "test")}


def test_a_lower_perplexity_is_better():
    labels = np.full(50, 10)
    ours = perplexity(labels * 2.0, labels)
    evaluations = [SimpleNamespace(split="test", by_row=ours, system=THIS_MODEL)]
    baselines = {"before": {"test": Measured({}, perplexity(labels * 2.1, labels))}}
    assert "significantly better than the best" in verdict("perplexity", evaluations, baselines)


def test_rows_can_be_left_out():
    """Spearman's correlation ranks the rows that are left anew."""
    draw = np.random.default_rng(9)
    scores, true = draw.normal(size=(2, 30))
    is_kept = draw.random(30) < 0.6
    expected = scipy.stats.spearmanr(scores[is_kept], true[is_kept]).statistic
    assert correlation(scores, true, True).of_rows(is_kept).value == pytest.approx(expected)
