"""Tests that a GPU gives the numbers of a CPU."""

import copy

import pytest
import torch
from conftest import assert_close, gradients
from tiny_models import batch_of, tiny_model
from toy_training import HEADS, make_batch, make_model

from hf_roformer_lite import padding_free

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA"),
]
DEVICE = "cuda"


@pytest.mark.parametrize("kind", HEADS)
def test_losses_and_gradients_are_those_of_a_cpu(kind):
    found = []
    for device in ("cpu", DEVICE):
        model = make_model(kind).to(device)
        batch = {name: tensor.to(device) for name, tensor in make_batch(kind).items()}
        found.append([tensor.cpu() for tensor in gradients(model, batch)])
    assert_close(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", "bert modernbert llama gemma2".split())
def test_padding_free_is_stock(kind, dtype):
    """`padding_free` does not change the losses and gradients of a model.

    Half precision uses torch's attention for rows of various lengths, except where scores are
    capped.
    """
    stock = tiny_model(kind).to(DEVICE, dtype)
    free = padding_free(copy.deepcopy(stock))
    batch = {name: tensor.to(DEVICE) for name, tensor in batch_of(stock).items()}
    limit = 1e-4 if dtype == torch.float32 else 5e-2
    assert_close(gradients(free, batch), gradients(stock, batch), rtol=limit, atol=limit)
