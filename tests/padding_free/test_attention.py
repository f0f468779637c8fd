"""Each way to compute the attention of a flat row agrees with sdpa and the ordinary mask."""

import copy
from typing import Any

import pytest
import torch
from comparisons import (
    CLOSE,
    batch_for,
    build,
    gradients,
    inputs_for,
    pair,
)
from transformers import masking_utils

from hf_roformer_lite import padding_free
from hf_roformer_lite.model.packing import same_document
from hf_roformer_lite.padding_free import attention
from hf_roformer_lite.padding_free.masks import DocumentMask
from hf_roformer_lite.padding_free.plan import Plan


@pytest.mark.parametrize("share_att_key", [False, True])
def test_dropout_of_a_table_is_drawn_once_for_the_batch(share_att_key):
    stock = build("DebertaV2ForMaskedLM", share_att_key=share_att_key)
    without_dropout = copy.deepcopy(stock)
    for part in stock.modules():
        if hasattr(part, "pos_dropout"):
            part.pos_dropout.p = 0.5
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("deberta mlm")
    torch.manual_seed(0)
    expected = gradients(stock, batch)
    torch.manual_seed(0)
    torch.testing.assert_close(gradients(free, batch), expected, **CLOSE)
    assert not torch.allclose(gradients(without_dropout, batch)[0], expected[0], atol=1e-3)


@torch.no_grad()
def test_apple_gpus(monkeypatch):
    """On an Apple GPU, where sdpa is wrong in half precision, models do not use it.

    This test runs on a CPU, and has not run on an Apple GPU."""
    _, free = pair("llama")
    inputs = inputs_for("llama")
    inputs["attention_mask"][1] = 0
    expected = free.bfloat16()(**inputs).logits
    monkeypatch.setattr(attention, "APPLE", "cpu")
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", None)
    found = free(**inputs).logits
    assert found.isfinite().all()
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], rtol=5e-2, atol=5e-2)


def own_image(row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query // 3 == 1) & (key // 3 == 1)


def same_third(
    row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    return query // 5 == key // 5


def first_keys(
    row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    return key < 2


def last_keys(row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key > 11


def holes(row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Causal, but a few queries do not see a few keys."""
    is_hidden = (query >= 6) & (query < 12) & (key >= 2) & (key < 5)
    return (key <= query) & ~is_hidden


WINDOW = masking_utils.sliding_window_causal_mask_function(4)
TWO_SIDED_WINDOW = masking_utils.sliding_window_bidirectional_mask_function(3)
ONE_SIDED = masking_utils.sliding_window_overlay(4)
CAUSAL = masking_utils.causal_mask_function
BIDIRECTIONAL = masking_utils.bidirectional_mask_function
PACKED = masking_utils.packed_sequence_mask_function(torch.arange(14).expand(3, -1) // 5)
OWN_PACKED = same_document(torch.arange(14).expand(3, -1) // 5)
# Each entry says whether the documents of the mask and their pattern are known.
MASK_FUNCTIONS = {
    "causal": (CAUSAL, True),
    "bidirectional": (BIDIRECTIONAL, True),
    "window": (WINDOW, True),
    "window to both sides": (TWO_SIDED_WINDOW, True),
    "window to one side": (ONE_SIDED, False),
    "packed": (masking_utils.and_masks(CAUSAL, PACKED), True),
    "packed, own": (masking_utils.and_masks(CAUSAL, OWN_PACKED), True),
    "packed, window": (masking_utils.and_masks(TWO_SIDED_WINDOW, PACKED), True),
    "packed, of a user": (masking_utils.and_masks(CAUSAL, same_third), False),
    "image": (masking_utils.or_masks(CAUSAL, own_image), False),
    "sinks": (masking_utils.or_masks(WINDOW, masking_utils.and_masks(CAUSAL, first_keys)), False),
    "prefix": (masking_utils.or_masks(CAUSAL, first_keys), False),
    "last keys": (masking_utils.or_masks(WINDOW, last_keys), False),
    "holes": (holes, False),
}
# The ways in which attention of a flat row is computed.
FORMS = ("by document", "rows")


@pytest.mark.parametrize("name", MASK_FUNCTIONS)
@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("form", FORMS)
def test_flat_rows_see_what_the_mask_says(name, padding, form, monkeypatch):
    """Each form of attention, and its gradients, equal sdpa with the ordinary mask."""
    mask_function, is_known = MASK_FUNCTIONS[name]
    batch_size = 3
    length = 14
    is_real = torch.arange(length) < torch.tensor([14, 9, 1])[:, None]
    if padding == "none":
        is_real = torch.ones(batch_size, length, dtype=torch.bool)
    elif padding == "left":
        is_real = is_real.flip(1)
    elif padding == "holes":
        is_real[:2, 2] = is_real[:2, 6:8] = False
    mask = DocumentMask(
        Plan(),
        batch_size=batch_size,
        q_length=length,
        kv_length=length,
        mask_function=mask_function,
        attention_mask=is_real,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        dtype=torch.float32,
        device="cpu",
        config=None,
    )
    flat = mask.make_flat()
    assert (flat.pattern is not None) == (is_known and padding != "holes")
    is_by_document = form == "by document"
    monkeypatch.setattr(attention, "is_faster_by_document", lambda *_: is_by_document)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, batch_size, length, 2, 8, generator=generator)
    states.requires_grad_()
    module = torch.nn.Module()
    query, key, value = (tokens.transpose(1, 2) for tokens in states)
    dense = mask.dense()
    # A query without any key has no meaning.
    sees = dense.any(-1)[:, 0] & is_real
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, dense)
    expected = expected.transpose(1, 2)[sees]
    rows = [mask.tokens().flatten(tokens).transpose(1, 2) for tokens in states]
    found = attention.padding_free_attention(module, *rows, flat)[0]
    found = mask.tokens().restore(found)[sees]
    torch.testing.assert_close(found, expected, **CLOSE)
    weights = torch.randn(expected.shape, generator=generator)
    gradients = [
        torch.autograd.grad((output * weights).sum(), states, retain_graph=True)[0]
        for output in (found, expected)
    ]
    torch.testing.assert_close(*gradients, **CLOSE)
