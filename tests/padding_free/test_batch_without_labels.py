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
    with_gradient = []
    for model in pair(name):
        _, gradient = gradients(model, batch)
        assert not gradient.any()
        with_gradient.append({n for n, w in model.named_parameters() if w.grad is not None})
    assert with_gradient[0] == with_gradient[1] != set()
