"""Calls in other threads and layers that are computed again do not disturb each other."""

import copy
import threading

import pytest
import torch
from comparisons import (
    assert_same_gradients,
    batch_for,
    build,
    make,
    pair,
)

from hf_roformer_lite import padding_free


@pytest.mark.parametrize("name", ["REENTRANT", "NO_REENTRANT"])
@pytest.mark.parametrize(
    "class_name", ["BertForMaskedLM", "DebertaV2ForMaskedLM", "LayoutLMForMaskedLM"]
)
@pytest.mark.parametrize("labels", ["of tokens", "of padding"])
def test_checkpoint_wrappers_of_torch(class_name, name, labels):
    """The wrappers enclose layers with their hooks, as activation checkpointing of FSDP does.

    A layer that is computed again in the backward pass gets what it got in the forward pass."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

    kind = getattr(wrappers.CheckpointImpl, name)
    stock = build(class_name)
    free = padding_free(copy.deepcopy(stock))
    for model in (stock, free):
        model.enable_input_require_grads()
        layers = model.base_model.encoder.layer
        layers[1] = wrappers.checkpoint_wrapper(layers[1], checkpoint_impl=kind)
    batch = batch_for("bert mlm")
    if labels == "of padding":
        batch["labels"][1:3] = 7
    assert_same_gradients(free, stock, batch)


def test_an_implementation_that_is_switched_before_the_backward_pass():
    free = padding_free(make("bert mlm")).train()
    free.gradient_checkpointing_enable()
    loss = free(**batch_for("bert mlm")).loss
    padding_free(free, enabled=False)
    with pytest.raises((TypeError, AttributeError), match="after the backward pass"):
        loss.backward()


def test_threads_do_not_meet():
    stock, free = pair("bert classes")
    sizes = ((12, 3), (5, 9, 2), (1, 1, 8))
    batches = [batch_for("bert classes", lengths=lengths) for lengths in sizes]
    expected = [stock(**batch).logits for batch in batches]
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            found = free(**batches[number]).logits
            if not torch.allclose(found, expected[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_train_do_not_meet():
    """Each thread keeps the labelled places of its own batch."""
    stock, free = pair("bert mlm")
    sizes = ((12, 3), (5, 9, 2), (1, 1, 8))
    batches = [batch_for("bert mlm", lengths=lengths) for lengths in sizes]
    stock.train()
    free.train()
    expected = [stock(**batch).loss.item() for batch in batches]
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            loss = free(**batches[number]).loss.item()
            if abs(loss - expected[number]) > 1e-5:
                wrong.append(number)

    errors = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    hook = threading.excepthook
    threading.excepthook = errors.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = hook
    assert not wrong and not errors
