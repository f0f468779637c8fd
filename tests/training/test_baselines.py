"""Each baseline is compared with metrics that are computed in another way."""

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from roformer_lite.baseline.crf import WordTagger
from roformer_lite.data.sampling import sample_rows
from roformer_lite.measuring.baselines import (
    TfidfCosine,
    regression_baselines,
    text_to_text_baselines,
)
from roformer_lite.options.tasks import ClassifyDataArguments
from roformer_lite.recipes.classify import Classify

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
    assert set(sample_rows(classes % 2, 55)) == {0, 1}
    assert sample_rows(texts, 200) is texts


@pytest.mark.parametrize("right", ["a", "b"])
def test_the_test_split_is_answered_with_the_validation_rows_learned(right):
    """A label that the training rows lack is not learned."""
    train = [("one apple", "a"), ("two pears", "b")] * 5
    validation = [("three plums", right)] * 8 + [("four nuts", "c")]
    splits = {"train": train, "validation": validation, "test": validation[-2:]}
    rows = DatasetDict()
    for split, pairs in splits.items():
        dicts = [{"text": text, "labels": [label]} for text, label in pairs]
        rows[split] = Dataset.from_list(dicts)
    options = ClassifyDataArguments(dataset_name="-", problem_type="single_label_classification")
    recipe = Classify.inspect(options, rows)
    predicted = recipe.baselines(rows, recipe.fit_baseline(rows))["linear SVM on n-grams"]["test"]
    measured = recipe.measured(predicted, rows["test"])
    assert measured.by_row.rows[:, 0].tolist() == [True, False]
    assert measured.metrics["accuracy"] == measured.by_row.value == 0.5


def test_numbers():
    texts = [ANIMALS, STARS, f"{ANIMALS} {STARS}", "nothing at all"] * 4
    numbers = np.array([3.0, -1.0, 1.0, 0.5] * 4)
    predicted = regression_baselines((texts, numbers), {"test": texts})
    assert np.corrcoef(predicted["ridge regression on n-grams"]["test"], numbers)[0, 1] > 0.95


def test_tags():
    words = [["Anna", "likes", "Paris"], ["Paris", "is", "big"], ["Bert", "sings"]] * 6
    tags = [["B-PER", "O", "B-LOC"], ["B-LOC", "O", "O"], ["B-PER", "O"]] * 6
    names = ["O", "B-PER", "I-PER", "B-LOC"]
    field = WordTagger.fit(words, tags, names)
    # Carl does not occur in the training rows, but is recognised by the place and shape of the
    # word.
    assert [names[number] for number in field.tag(["Carl", "likes", "Paris"])] == [
        "B-PER",
        "O",
        "B-LOC",
    ]


def test_text_to_text():
    train = (["a red house", "a green tree"], ["ein rotes Haus", "ein grüner Baum"])
    sources = ["the red house", "ein grüner Baum"]
    predicted = text_to_text_baselines(train=train, measured={"test": sources})
    assert predicted["copying the source"]["test"] == sources
    assert predicted["nearest neighbour (TF-IDF)"]["test"] == ["ein rotes Haus", "ein grüner Baum"]


def test_similarity_of_texts_without_words():
    texts = ["😀 😀", "🎉"]
    scored = (texts, ["😀", "😀"], [1.0, 0.0])
    near, far = TfidfCosine(texts).cosines(scored)
    assert near > 0 and far == 0
