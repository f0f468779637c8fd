"""Models that accelerate spreads over devices, or whose weights are elsewhere until they are used."""

import copy

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from comparisons import (
    CLOSE,
    CountedTokens,
    batch_for,
    build,
    make,
    pair_of,
)

from hf_roformer_lite import padding_free


def test_forward_that_accelerate_has_replaced():
    """It does so in each module of a model that is spread over several devices."""
    stock = make("bert tokens")
    free = copy.deepcopy(stock)
    for module in (free, free.bert, free.bert.encoder.layer[0]):
        add_hook_to_module(module, AlignDevicesHook(execution_device=torch.device("cpu")))
    batch = batch_for("bert tokens")
    expected = stock(**batch).logits
    batch["labels"] = torch.zeros_like(batch["input_ids"])
    for enabled in (True, False):
        padding_free(free, enabled=enabled)
        # Labels at padding need the states of padding.
        torch.testing.assert_close(free(**batch).loss, stock(**batch).loss, **CLOSE)
        with CountedTokens(free) as counted:
            free(**{**batch, "labels": None})
        assert counted.numbers == [24 if enabled else 48]
    torch.testing.assert_close(free(**batch).logits, expected, **CLOSE)


def test_weights_that_are_elsewhere_until_they_are_used():
    """The position bias of T5 is computed before the layer that has its weights."""
    stock, free, batch = pair_of("T5ForConditionalGeneration")
    cpu_offload(free.eval(), execution_device=torch.device("cpu"))
    torch.testing.assert_close(free(**batch).loss, stock.eval()(**batch).loss, **CLOSE)


@pytest.mark.parametrize("class_name", ["BertForMaskedLM", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_weights_that_are_elsewhere_before(class_name, is_on_disk, tmp_path):
    """The trial loads them by the hooks of accelerate, and shares them."""
    stock = build(class_name)
    free = copy.deepcopy(stock)
    device = torch.device("cpu")
    if is_on_disk:
        disk_offload(free, tmp_path, execution_device=device)
    else:
        cpu_offload(free, execution_device=device)
    batch = batch_for("bert mlm")
    torch.testing.assert_close(padding_free(free)(**batch).loss, stock(**batch).loss, **CLOSE)
    assert {weight.device.type for weight in free.parameters()} == {"meta"}
