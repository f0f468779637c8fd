"""Metrics are checked on data for which the right value is known."""

import math

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import torch
from datasets import Dataset, DatasetDict
from sklearn.metrics import classification_report
from transformers import TrainingArguments

from hf_roformer_lite import RoFormerLiteTokenizer
from roformer_lite.errors import InputError
from roformer_lite.measuring.metrics import (
    classification_metrics,
    perplexity_metrics,
    regression_metrics,
    scheme_of,
    tagging_metrics,
    token_scores,
)
from roformer_lite.measuring.report import report_of_entities, report_of_labels
from roformer_lite.options.tasks import LanguageModelDataArguments
from roformer_lite.recipes import RECIPES
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
    uniform = perplexity_metrics(
        token_scores(torch.zeros(1, 4, 11), torch.zeros(1, 4, dtype=torch.long)).numpy()
    )
    assert uniform["perplexity"] == pytest.approx(11)


def test_classification():
    scores = classification_metrics(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
    assert scores == {"accuracy": 0.75, "macro_f1": pytest.approx((0.8 + 2 / 3) / 2)}
    several = classification_metrics(np.array([[1, 0], [1, 1]]), np.array([[1, 0], [0, 1]]))
    assert several == {
        "accuracy": 0.5,
        "macro_f1": pytest.approx((2 / 3 + 1) / 2),
        "micro_f1": pytest.approx(0.8),
    }


def test_metrics_by_label_are_those_of_the_reports():
    generator = np.random.default_rng(0)
    labels = ["a", "b|c", "never"]
    true = generator.integers(0, 2, 50)
    predicted = generator.integers(0, 3, 50)
    report = classification_report(
        true, predicted, target_names=labels, output_dict=True, zero_division=0
    )
    expected = {label: {**report[label], "f1": report[label]["f1-score"]} for label in labels}
    names = np.array(labels)
    measured = report_of_labels(names[true], names[predicted], labels).scores
    assert measured == {
        label: {name: expected[label][name] for name in measured[label]} for label in labels
    }
    assert list(measured) == labels and measured["never"]["support"] == 0


@pytest.mark.parametrize("block_size", [8, 64])
def test_bits_per_byte_of_a_model_that_knows_nothing(tmp_path, block_size):
    """A uniform model needs the logarithm of the vocabulary for each token and each end of a text.

    It does not matter whether the text is cut into blocks.
    """
    (tmp_path / "a.txt").write_text("a short text, with ä\n" * 9, "utf-8")
    (tmp_path / "b.txt").write_text("另一个\n", "utf-8")
    files = [str(tmp_path / name) for name in ("a.txt", "b.txt")]
    recipe = CausalLM(LanguageModelDataArguments(train_file=files, block_size=block_size))
    rows = Dataset.from_list(list(recipe.reader.read_rows(files)))
    rows.save_to_disk(tmp_path / "rows")
    rows = Dataset.load_from_disk(tmp_path / "rows")
    tokenizer = RoFormerLiteTokenizer.train(recipe.texts(rows), vocab_size=300)
    vocabulary = len(tokenizer)
    encoded = recipe.encode(rows, tokenizer, training=False)
    ids = [torch.tensor([block["input_ids"]]) for block in encoded]
    scores = [
        recipe.reduce_logits(torch.zeros(1, block.shape[1], vocabulary), block) for block in ids
    ]
    measured = recipe.measured(torch.cat(scores).numpy(), rows).metrics
    tokens = len(files)
    for text in rows["text"]:
        tokens += len(tokenizer(text, add_special_tokens=False)["input_ids"])
    size = sum((tmp_path / name).stat().st_size for name in ("a.txt", "b.txt"))
    assert measured["bits_per_byte"] == pytest.approx(tokens * math.log2(vocabulary) / size)


VARIANTS = {
    "labels": (
        "classify",
        {"text": "a", "labels": ["x", "y"]},
        {"labels": []},
        "accuracy, macro_f1, micro_f1",
    ),
    "a number": (
        "classify",
        {"text": "a", "number": 1.0},
        {"number": 2.0},
        "loss, pearson, spearman, mse",
    ),
    "entities": (
        "tag",
        {"tokens": ["a"], "tags": ["B-X"]},
        {"tags": ["O"]},
        "loss, f1, precision, recall, accuracy",
    ),
    "tags": ("tag", {"tokens": ["a"], "tags": ["X"]}, {"tags": ["Y"]}, "loss, accuracy, macro_f1"),
    "scores": (
        "rerank",
        {"sentence1": "a", "sentence2": "b", "score": 1.0},
        {"score": 0.0},
        "spearman, pearson, loss",
    ),
    "pairs": ("rerank", {"anchor": "a", "positive": "b"}, {}, "mrr@10, ndcg@10, map, loss"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_best_model_is_chosen_by_a_metric_that_is_measured(name):
    kind, first, second, offered = VARIANTS[name]
    given = {}
    if kind == "classify":
        given["problem_type"] = "multi_label_classification" if name == "labels" else "regression"
    options = RECIPES[kind].options_class(dataset_name="any", **given)
    rows = Dataset.from_list([{**first, "origin": "a:1"}, {**first, **second, "origin": "a:2"}])
    recipe = RECIPES[kind].inspect(options, DatasetDict(train=rows, validation=rows))
    for metric in recipe.metric_names:
        recipe.check_metric(TrainingArguments(), f"eval_{metric}")
    with pytest.raises(
        InputError, match=f"is not a metric of {kind} on these data; choose one of .*{offered}$"
    ):
        recipe.check_metric(TrainingArguments(), "bleu")


def test_regression():
    scores = regression_metrics(np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0]))
    assert scores == {
        "pearson": pytest.approx(1),
        "spearman": pytest.approx(1),
        "mse": pytest.approx(7),
    }
    assert regression_metrics(np.ones(3), np.array([1.0, 2.0, 3.0]))["pearson"] == 0.0


def tagged_sentences(scheme: str, generator: np.random.Generator) -> list[list[str]]:
    """Return sentences with random entities in the tags of a scheme.

    Some entities are next to others of the same type.
    """
    first_and_single = {"IOB1": "II", "IOB2": "BB", "IOBES": "BS", "BILOU": "BU"}
    begin, single = first_and_single[scheme]
    end = {"IOBES": "E", "BILOU": "L"}.get(scheme, "I")
    sentences = []
    for _ in range(40):
        tags: list[str] = []
        for kind in generator.choice(["X", "Y", "O"], 6):
            length = int(generator.integers(1, 4))
            if kind == "O":
                tags.append("O")
                continue
            kinds = [begin, *"I" * (length - 2), end] if length > 1 else [single]
            if scheme == "IOB1" and tags and tags[-1][1:] == f"-{kind}":
                kinds[0] = "B"
            tags += [f"{letter}-{kind}" for letter in kinds]
        sentences.append(tags)
    return sentences


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "IOBES", "BILOU"])
def test_entities_are_counted_by_the_scheme_of_the_tags(scheme):
    """The counts are the same as in seqeval, which counts IOB1 and IOB2 as conlleval does."""
    generator = np.random.default_rng(0)
    true = tagged_sentences(scheme, generator)
    assert scheme_of(true) == scheme
    names = sorted({tag for tags in true for tag in tags})
    changed = []
    for tags in true:
        changed.append([])
        for tag in tags:
            is_kept = generator.random() < 0.8
            changed[-1].append(tag if is_kept else str(generator.choice(names)))
    options = {"zero_division": 0}
    if scheme in ("IOBES", "BILOU"):
        options |= {"mode": "strict", "scheme": getattr(seqeval.scheme, scheme)}
    for predicted in (true, changed):
        metrics = tagging_metrics(predicted, true, scheme)
        assert metrics["f1"] == seqeval.metrics.f1_score(true, predicted, **options)
        report = report_of_entities(true, predicted, scheme)
        found = {kind: scores["f1"] for kind, scores in report.scores.items()}
        expected = seqeval.metrics.f1_score(true, predicted, average=None, **options)
        assert list(found.values()) == pytest.approx(list(expected))
        assert set(found) == {"X", "Y"}
    assert tagging_metrics(true, true, scheme)["f1"] == 1 and metrics["f1"] < 1


def test_tags_without_a_scheme():
    for tags in (
        ["NOUN", "VERB"],
        ["PER", "O", "LOC"],
        ["O", "O"],
        ["B-X", "NOUN"],
        ["L-X", "S-X"],
    ):
        assert scheme_of([tags]) is None
    with pytest.raises(InputError, match="follow BILOU.*S-X"):
        tagging_metrics([["O"]], [["S-X"]], "BILOU")
    parts_of_speech = tagging_metrics([["DET", "NOUN"]], [["DET", "VERB"]], scheme=None)
    assert set(parts_of_speech) == {"accuracy", "macro_f1"} and parts_of_speech["accuracy"] == 0.5
