"""Models that accelerate spreads over devices, or whose weights are elsewhere until they are
used."""

import copy

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from comparisons import (
    CountedTokens,
    assert_close,
    batch_for,
    build,
)

from hf_roformer_lite import padding_free


def test_forward_that_accelerate_has_replaced():
    """It does so in each module of a model that is spread over several devices."""
    stock = build("bert tokens")
    free = copy.deepcopy(stock)
    for module in (free, free.bert, free.bert.encoder.layer[0]):
        add_hook_to_module(module, AlignDevicesHook(execution_device=torch.device("cpu")))
    batch = batch_for("bert tokens")
    expected = stock(**batch).logits
    batch["labels"] = torch.zeros_like(batch["input_ids"])
    for enabled in (True, False):
        padding_free(free, enabled=enabled)
        # Labels at padding need the states of padding.
        assert_close(free(**batch).loss, stock(**batch).loss)
        with CountedTokens(free) as counted:
            free(**{**batch, "labels": None})
        assert counted.numbers == [24 if enabled else 48]
    assert_close(free(**batch).logits, expected)


@pytest.mark.parametrize("class_name", ["BertForMaskedLM", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_weights_that_are_elsewhere_until_they_are_used(class_name, is_first, is_on_disk, tmp_path):
    """They are elsewhere before `padding_free`, or only after it.

    The trial loads them by the hooks of accelerate, and shares them. The position bias of T5 is
    computed before the layer that has its weights."""
    stock = build(class_name)
    free = copy.deepcopy(stock)
    if is_first:
        padding_free(free)
    device = torch.device("cpu")
    if is_on_disk:
        disk_offload(free, tmp_path, execution_device=device)
    else:
        cpu_offload(free, execution_device=device)
    if not is_first:
        padding_free(free)
    batch = batch_for("bert mlm")
    assert_close(free(**batch).loss, stock(**batch).loss)
    assert {weight.device.type for weight in free.parameters()} == {"meta"}
