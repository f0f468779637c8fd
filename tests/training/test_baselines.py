"""Each baseline is compared with metrics that are computed in another way."""

import numpy as np
import pytest

from roformer_lite.evaluate.baselines import (
    TfidfCosine,
    classification_baselines,
    sample_rows,
    tagging_baselines,
    text_to_text_baselines,
)

ANIMALS = "the cat sat by the dog"
STARS = "a star shines on the moon"


def test_of_slightly_too_many_rows_few_are_left_out():
    texts = [str(row) for row in range(110)]
    classes = np.arange(110)
    assert sample_rows(texts, 100) == [str(row) for row in sample_rows(classes, 100)]
    assert (
        len(set(sample_rows(texts, 100))) == 100 and (np.diff(sample_rows(classes, 100)) > 0).all()
    )
    # Taking every second row would miss one of two alternating classes.
    assert set(sample_rows(classes % 2, 55).tolist()) == {0, 1}
    assert sample_rows(texts, 200) is texts


def test_classes():
    texts = [ANIMALS, STARS, ANIMALS + " again"] * 5
    classes = np.array([0, 1, 0] * 5)
    metrics, _ = classification_baselines(
        "single_label_classification",
        (texts, classes),
        {"test": (["dogs and cats", "moons, stars", "a moon"], classes[:3])},
    )
    assert metrics["most frequent class"]["test"]["accuracy"] == pytest.approx(2 / 3)
    # The third text has the wrong label on purpose.
    assert metrics["linear SVM on n-grams"]["test"]["accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("right", [0, 1])
def test_the_test_split_is_answered_with_the_validation_rows_learned(right):
    """The baseline learns the validation rows too, as the linear part of the model does.

    A label that the training rows lack is not learned.
    """
    train = (["one apple", "two pears"] * 5, np.array([0, 1] * 5))
    validation = (["three plums"] * 8 + ["four nuts"], np.array([right] * 8 + [2]))
    measured = {
        "validation": validation,
        "test": (["three plums", "four nuts"], np.array([right, 2])),
    }
    _, answers = classification_baselines("single_label_classification", train, measured)
    assert (
        answers["linear SVM on n-grams"]["test"][0] == right
        and 2 not in answers["linear SVM on n-grams"]["test"]
    )


def test_sets_and_numbers():
    texts = [ANIMALS, STARS, f"{ANIMALS} {STARS}", "nothing at all"] * 4
    sets = np.array([[1, 0], [0, 1], [1, 1], [0, 0]] * 4)
    metrics, _ = classification_baselines(
        "multi_label_classification", (texts, sets), {"test": (texts, sets)}
    )
    assert metrics["linear SVM on n-grams"]["test"]["accuracy"] == 1
    numbers = np.array([3.0, -1.0, 1.0, 0.5] * 4)
    metrics, _ = classification_baselines(
        "regression", (texts, numbers), {"test": (texts, numbers)}
    )
    assert metrics["mean"]["test"] == {
        "pearson": 0.0,
        "spearman": 0.0,
        "mse": pytest.approx(numbers.var()),
    }
    assert metrics["ridge regression on n-grams"]["test"]["pearson"] > 0.95


def test_tags():
    words = [["Anna", "likes", "Paris"], ["Paris", "is", "big"], ["Bert", "sings"]] * 6
    tags = [["B-PER", "O", "B-LOC"], ["B-LOC", "O", "O"], ["B-PER", "O"]] * 6
    measured = {"test": ([["Carl", "likes", "Paris"]], [["B-PER", "O", "B-LOC"]])}
    metrics = tagging_baselines(scheme=True, train=(words, tags), measured=measured)
    # Carl does not occur in the training rows, so only one of two names is found.
    assert metrics["most frequent tag of each word"]["test"]["recall"] == 0.5
    # A CRF recognises Carl by the place and the shape of the word.
    assert metrics["CRF"]["test"]["f1"] == 1


def test_text_to_text():
    train = (["a red house", "a green tree"], ["ein rotes Haus", "ein grüner Baum"])
    measured = {
        "test": (["the red house", "ein grüner Baum"], ["ein rotes Haus", "ein grüner Baum"])
    }
    metrics = text_to_text_baselines(bleu_tokenizer="13a", train=train, measured=measured)
    assert metrics["copying the source"]["test"]["exact_match"] == 0.5
    assert metrics["nearest neighbour (TF-IDF)"]["test"]["exact_match"] == 1


def test_similarity_of_texts_without_words():
    texts = ["😀 😀", "🎉"]
    scored = (texts, ["😀", "😀"], [1.0, 0.0])
    assert TfidfCosine(texts).correlations(scored)["pearson"] == pytest.approx(1)
