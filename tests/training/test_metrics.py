"""Metrics are checked on data for which the right value is known."""

import math

import numpy as np
import pytest
import torch

from hf_roformer_lite import RoFormerLiteTokenizer
from roformer_lite.data.splits import load_splits
from roformer_lite.errors import InputError
from roformer_lite.measuring.metrics import (
    perplexity_metrics,
    regression_metrics,
    tagging_metrics,
    token_scores,
)
from roformer_lite.measuring.report import report_of_entities, report_of_labels
from roformer_lite.measuring.tag_schemes import scheme_of
from roformer_lite.options.tasks import LanguageModelDataArguments
from roformer_lite.recipes.language_model import CausalLM


def test_perplexity_is_over_tokens_not_over_batches():
    torch.manual_seed(0)
    logits = torch.randn(3, 5, 11)
    labels = torch.randint(0, 11, (3, 5))
    labels[0, 1:] = -100
    labels[1] = -100
    scores = token_scores(logits, labels)
    keep = labels != -100
    loss = torch.nn.functional.cross_entropy(logits[keep], labels[keep]).item()
    measured = perplexity_metrics(scores.numpy())
    assert measured["loss"] == pytest.approx(loss, rel=1e-6)
    assert measured["perplexity"] == pytest.approx(math.exp(loss), rel=1e-6)
    assert measured["accuracy"] == pytest.approx(
        (logits[keep].argmax(-1) == labels[keep]).float().mean().item()
    )


@pytest.mark.parametrize("block_size", [8, 64])
def test_bits_per_byte_of_a_model_that_knows_nothing(tmp_path, block_size):
    """A uniform model needs the logarithm of the vocabulary for each token and each end of a text.

    It does not matter whether the text is cut into blocks.
    """
    (tmp_path / "a.txt").write_text("a short text, with ä\n" * 9, "utf-8")
    (tmp_path / "b.txt").write_text("另一个\n", "utf-8")
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    recipe = CausalLM(LanguageModelDataArguments(train_file=files, block_size=block_size))
    rows = load_splits(recipe.reader, recipe.options, tmp_path / "rows")["train"]
    tokenizer = RoFormerLiteTokenizer.train(recipe.texts(rows), vocab_size=300)
    vocabulary = len(tokenizer)
    encoded = recipe.encode(rows, tokenizer, training=False)
    ids = [torch.tensor([block["input_ids"]]) for block in encoded]
    scores = [recipe.reduce_logits(torch.zeros(*block.shape, vocabulary), block) for block in ids]
    measured = recipe.measured(torch.cat(scores).numpy(), rows).metrics
    tokens = len(files)
    for text in rows["text"]:
        tokens += len(tokenizer(text, add_special_tokens=False)["input_ids"])
    size = sum((tmp_path / name).stat().st_size for name in ("a.txt", "b.txt"))
    assert measured["bits_per_byte"] == pytest.approx(tokens * math.log2(vocabulary) / size)


def test_regression():
    scores = regression_metrics(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0]))
    assert scores == {
        "pearson": pytest.approx(1),
        "spearman": pytest.approx(1),
        "mse": pytest.approx(7),
    }
    assert regression_metrics(np.ones(3), np.array([1.0, 2.0, 3.0]))["pearson"] == 0.0


# Two entities in the tags of each scheme. The answer breaks off the first one, and its F1 is given.
ENTITIES = {
    "IOB1": ("I-X I-X B-X O", "I-X O I-X O", 0.5),
    "IOB2": ("B-X I-X B-X O", "B-X O B-X O", 0.5),
    "IOBES": ("B-X E-X S-X O", "B-X O S-X O", 2 / 3),
    "BILOU": ("B-X L-X U-X O", "B-X O U-X O", 2 / 3),
}


@pytest.mark.parametrize("scheme", ENTITIES)
def test_entities_are_counted_by_the_scheme_of_the_tags(scheme):
    """In strict schemes, tags that break their rules are no entity."""
    true, predicted, f1 = ENTITIES[scheme]
    tags = [true.split()]
    assert scheme_of(tags) == scheme
    # Labels alone do not say whether B-X must begin each entity.
    assert scheme_of(zip(["B-X", "I-X"])) == "IOB1"
    assert tagging_metrics(tags, tags, scheme)["f1"] == 1
    assert tagging_metrics([predicted.split()], tags, scheme)["f1"] == pytest.approx(f1)
    report = report_of_entities(tags, [predicted.split()], scheme)
    assert report["X"]["f1"] == pytest.approx(f1)


def test_tags_without_a_scheme():
    for tags in (
        ["NOUN", "VERB"],
        ["PER", "O", "LOC"],
        ["O", "O"],
        ["B-X", "NOUN"],
        ["L-X", "S-X"],
        ["I-X", "E-X"],
    ):
        assert scheme_of([tags]) is None
    with pytest.raises(InputError, match="follow BILOU.*S-X"):
        tagging_metrics([["O"]], [["S-X"]], "BILOU")
    parts_of_speech = tagging_metrics([["DET", "NOUN"]], [["DET", "VERB"]], scheme=None)
    assert set(parts_of_speech) == {"accuracy", "macro_f1"} and parts_of_speech["accuracy"] == 0.5


def test_supports_are_whole_numbers_even_if_no_answer_is_right():
    found = report_of_labels(["a", "b", "b"], ["b", "a", "a"], ["a", "b"])
    assert [str(found[label]["support"]) for label in "ab"] == ["1", "2"]
