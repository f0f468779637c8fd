"""Tests of batches without rows, and of what is computed in chunks."""

import pytest
import torch
from conftest import stack_config
from toy_training import HEADS, make_batch, make_model

from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteMLP


@pytest.mark.parametrize("kind", HEADS)
def test_no_rows(kind):
    for training in (False, True):
        model = make_model(kind).train(training)
        no_rows = {name: tensor[:0] for name, tensor in make_batch(kind).items()}
        model(**no_rows).loss.backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert gradients and all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_in_chunks(gated):
    def make_mlp(chunk_size: int) -> RoFormerLiteMLP:
        config = stack_config(gated_mlp=gated, chunk_size_feed_forward=chunk_size)
        return RoFormerLiteMLP(config).double()

    whole = make_mlp(chunk_size=0)
    states = torch.randn(3, 15, 32, dtype=torch.double)
    for chunk_size in (1, 7, 100):
        mlp = make_mlp(chunk_size)
        mlp.load_state_dict(whole.state_dict())
        torch.testing.assert_close(mlp(states), whole(states))
