"""Pipelines of transformers return the same for batches of texts of different lengths."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from comparisons import CountedTokens, build
from toy_texts import TEXTS, word_tokenizer

from hf_roformer_lite import padding_free

MASKED = [f"{text} [MASK]" for text in TEXTS[:12]]
# A text of several windows is a batch of its own.
LONG = [" ".join(TEXTS[:20]), *TEXTS[:6]]
ENTAILMENT = {"id2label": {0: "contradiction", 1: "entailment"}}
ENTAILMENT["label2id"] = {name: number for number, name in ENTAILMENT["id2label"].items()}
# The task, the class of the model with its configuration, the texts, and the options of the call.
CALLS: dict[str, tuple[str, str, dict[str, Any], list[str], dict[str, Any]]] = {
    "classes": ("text-classification", "bert classes", {}, TEXTS[:12], {"top_k": None}),
    "last token": ("text-classification", "llama classes", {}, TEXTS[:12], {"top_k": None}),
    "tags": ("token-classification", "bert tokens", {}, TEXTS[:12], {}),
    "windows": ("token-classification", "bert tokens", {}, LONG, {"stride": 4}),
    "masks": ("fill-mask", "bert mlm", {}, MASKED, {"top_k": 100}),
    "targets": ("fill-mask", "modernbert mlm", {}, MASKED, {"targets": ["boat", "sky"]}),
    "labels": (
        "zero-shot-classification",
        "bert classes",
        ENTAILMENT,
        TEXTS[:6],
        {"candidate_labels": ["oven", "star moon comet"]},
    ),
}


def pipelines_of(task: str, name: str, **fields: Any) -> list[transformers.Pipeline]:
    """The pipelines of a stock model and of a padding-free one."""
    stock = build(name, **fields)
    return [
        transformers.pipeline(
            task, model=model, tokenizer=word_tokenizer(), batch_size=4, device="cpu"
        )
        for model in (stock, padding_free(copy.deepcopy(stock)))
    ]


def run(pipe: transformers.Pipeline, texts: list[str], **options: Any) -> tuple[Any, int]:
    """What a pipeline returns, and how many tokens the first linear map computes for it."""
    with CountedTokens(pipe.model) as counted:
        found = pipe(texts, **options)
    return found, sum(counted.numbers)


def leaves_of(found: Any) -> list[Any]:
    """The values within nested lists and dictionaries, with the keys of the latter."""
    if isinstance(found, dict):
        return [leaf for key, value in found.items() for leaf in (key, *leaves_of(value))]
    if isinstance(found, list):
        return [leaf for value in found for leaf in leaves_of(value)]
    return [found]


@pytest.mark.parametrize("kind", CALLS)
def test_pipelines(kind):
    task, name, fields, texts, options = CALLS[kind]
    stock, free = pipelines_of(task, name, **fields)
    expected, num_padded = run(stock, texts, **options)
    found, num_computed = run(free, texts, **options)
    assert num_computed < num_padded
    leaves = zip(leaves_of(found), leaves_of(expected), strict=True)
    for leaf, other in leaves:
        is_number = isinstance(other, float | np.floating)
        assert leaf == (pytest.approx(other, abs=1e-5) if is_number else other)


@pytest.mark.parametrize("name", ["BertModel", "LlamaModel"])
def test_features(name):
    """This pipeline returns the states of padding as well, which have no meaning."""
    stock, free = pipelines_of("feature-extraction", name)
    expected, num_padded = run(stock, TEXTS[:12])
    found, num_computed = run(free, TEXTS[:12])
    assert num_computed < num_padded
    for text, states, others in zip(TEXTS[:12], found, expected, strict=True):
        length = len(text.split())
        assert np.shape(states) == np.shape(others)
        real, other_real = (torch.tensor(each)[:, :length] for each in (states, others))
        torch.testing.assert_close(real, other_real, rtol=1e-5, atol=1e-5)
