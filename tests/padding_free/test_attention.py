"""Patterns of masks, and attention that is computed in another way than usual."""

import copy
from typing import Any

import pytest
import torch
from comparisons import (
    assert_close,
    batch_for,
    build,
    gradients,
    inputs_for,
    pair,
)
from transformers import masking_utils

from hf_roformer_lite import padding_free
from hf_roformer_lite.padding_free import attention
from hf_roformer_lite.padding_free.masks import pattern_of


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
    assert_close(gradients(free, batch), expected)
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
    assert_close(found[real], expected[real], rtol=5e-2, atol=5e-2)


def of_a_user(row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query // 5 == key // 5


WINDOW = masking_utils.sliding_window_causal_mask_function(4)
TWO_SIDED_WINDOW = masking_utils.sliding_window_bidirectional_mask_function(3)
ONE_SIDED = masking_utils.sliding_window_overlay(4)
CAUSAL = masking_utils.causal_mask_function
BIDIRECTIONAL = masking_utils.bidirectional_mask_function
PACKED = masking_utils.packed_sequence_mask_function(torch.arange(14).expand(3, -1) // 5)
# Each entry says whether the pattern is known.
MASK_FUNCTIONS = {
    "causal": (CAUSAL, True),
    "bidirectional": (BIDIRECTIONAL, True),
    "window": (WINDOW, True),
    "window to both sides": (TWO_SIDED_WINDOW, True),
    "window to one side": (ONE_SIDED, False),
    "packed": (masking_utils.and_masks(CAUSAL, PACKED), True),
    "packed, window": (masking_utils.and_masks(TWO_SIDED_WINDOW, PACKED), True),
    "and that of a user": (masking_utils.and_masks(CAUSAL, of_a_user), False),
    "or that of a user": (masking_utils.or_masks(CAUSAL, of_a_user), False),
}


@pytest.mark.parametrize("name", MASK_FUNCTIONS)
def test_patterns_are_known(name):
    """Documents are computed by themselves only if the mask function has a known pattern. Under any
    other one, padding costs time, but other tests show that the outputs stay the same."""
    mask_function, is_known = MASK_FUNCTIONS[name]
    assert (pattern_of(mask_function) is not None) == is_known
