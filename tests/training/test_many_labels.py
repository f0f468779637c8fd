"""The beginning of a head for several labels or a number, and the threshold of several labels.

Whether all commands use the threshold is tested in test_one_way_to_answer.py.
"""

import numpy as np
import pytest
import torch
from conftest import assert_close, assert_equal, build, stack_config
from datasets import Dataset
from sklearn.metrics import f1_score

import hf_roformer_lite as rl
from roformer_lite.recipes.classify_scores import best_threshold
from roformer_lite.training.head import start_at_mean_labels

CLASSIFIER = rl.RoFormerLiteForSequenceClassification


def test_a_new_head_begins_at_the_frequencies_of_the_labels():
    """Without a contribution of the text, the scores are the smoothed fractions of rows."""
    labels = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    fields = {"num_labels": 3, "problem_type": "multi_label_classification"}
    model = build(CLASSIFIER, stack_config(**fields))
    start_at_mean_labels(model, Dataset.from_dict({"labels": labels.tolist()}))
    expected = (labels.sum(axis=0) + 0.5) / 5
    np.testing.assert_allclose(
        model.classifier.out_proj.bias.sigmoid().detach(), expected, atol=1e-6
    )
    single = build(CLASSIFIER, stack_config(num_labels=3))
    before = single.classifier.out_proj.bias.clone()
    start_at_mean_labels(single, Dataset.from_dict({"labels": [0, 0, 0, 1]}))
    assert_equal(single.classifier.out_proj.bias, before)


def test_a_new_head_for_a_number_has_the_mean_and_the_spread_of_the_numbers():
    config = stack_config(num_labels=1, problem_type="regression")
    ids = torch.arange(5, 13)[None]
    before = build(CLASSIFIER, config)(ids).logits
    for factor in (1.0, 1e6):
        model = build(CLASSIFIER, config)
        numbers = factor * np.array([50.0, 110.0, 71.0])
        start_at_mean_labels(model, Dataset.from_dict({"labels": numbers}))
        assert model.classifier.out_proj.bias.item() == 77 * factor
        standardised = (model(ids).logits - numbers.mean()) / numbers.std()
        assert_close(standardised, before, atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_threshold(seed):
    draw = np.random.default_rng(seed)
    # Coarse scores are often equal.
    scores = draw.integers(0, 20, (15, 4)) / 20
    true = draw.random((15, 5)) < 0.2 + scores.mean(axis=1, keepdims=True) / 2
    own = true[:, :4].astype(int)

    def f1_of(threshold: float) -> float:
        return f1_score(own, scores >= threshold, average="micro", zero_division=0)

    best = max(f1_of(threshold) for threshold in np.unique(scores))
    # The model lacks the last label.
    assert f1_of(best_threshold(scores, true.astype(int))) == pytest.approx(best, abs=1e-12)


def test_without_any_true_label_the_threshold_is_a_half():
    assert best_threshold(np.array([[0.9, 0.1]]), np.zeros((1, 2), dtype=int)) == 0.5
