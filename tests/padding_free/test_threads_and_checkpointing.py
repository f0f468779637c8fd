"""Calls in other threads and layers that are computed again do not disturb each other."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from comparisons import (
    assert_same_gradients,
    batch_for,
    build,
    pair,
)
from conftest import assert_close
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)

from hf_roformer_lite import padding_free


@pytest.mark.parametrize("kind", CheckpointImpl)
@pytest.mark.parametrize(
    "class_name", ["BertForMaskedLM", "DebertaV2ForMaskedLM", "LayoutLMForMaskedLM"]
)
@pytest.mark.parametrize("labels", ["of tokens", "of padding"])
def test_checkpoint_wrappers_of_torch(class_name, kind, labels):
    """The wrappers enclose layers with their hooks, as activation checkpointing of FSDP does.

    A layer that is computed again in the backward pass gets what it got in the forward pass."""
    stock, free = pair(class_name)
    for model in (stock, free):
        model.enable_input_require_grads()
        layers = model.base_model.encoder.layer
        layers[1] = checkpoint_wrapper(layers[1], checkpoint_impl=kind)
    batch = batch_for("bert mlm")
    if labels == "of padding":
        batch["labels"][1:3] = 7
    assert_same_gradients(free, stock, batch)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_an_implementation_that_is_switched_before_the_backward_pass(implementation):
    stock = build("bert mlm")
    stock.set_attn_implementation(implementation)
    free = padding_free(stock).train()
    free.gradient_checkpointing_enable()
    loss = free(**batch_for("bert mlm")).loss
    padding_free(free, enabled=False)
    with pytest.raises(RuntimeError, match="switched off.*after the backward"):
        loss.backward()


@pytest.mark.parametrize("name, output", [("bert classes", "logits"), ("bert mlm", "loss")])
def test_threads_do_not_meet(name, output):
    """In training, each thread keeps the labelled places of its own batch."""
    models = pair(name)
    for model in models:
        model.train(output == "loss")
    stock, free = models
    sizes = ((12, 3), (5, 9, 2), (1, 1, 8))
    batches = [batch_for(name, lengths=lengths) for lengths in sizes]
    expected = [stock(**batch)[output] for batch in batches]

    def compute(number: int) -> list[torch.Tensor]:
        return [free(**batches[number])[output] for _ in range(20)]

    with ThreadPoolExecutor(max_workers=len(batches)) as threads:
        found = list(threads.map(compute, range(len(batches))))
    assert_close(found, [[output] * 20 for output in expected])
