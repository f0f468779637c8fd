"""A batch without labels, as one of several data-parallel processes may have it.

Every parameter that has a gradient in the stock model must have one here too: processes that train
with `DistributedDataParallel` wait for each other's gradients."""

import pytest
import torch
from comparisons import batch_for, batch_of_pairs, gradients, pair

NAMES = (
    "bert mlm",
    "bert tokens",
    "modernbert mlm",
    "llama",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_labels(name):
    batch = batch_of_pairs() if name.endswith("Generation") else batch_for(name)
    batch["labels"] = torch.full_like(batch["labels"], -100)
    stock, free = (model.double() for model in pair(name))
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    has_gradient = [weight.grad is not None for weight in stock.parameters()]
    assert [weight.grad is not None for weight in free.parameters()] == has_gradient
    assert any(has_gradient)
