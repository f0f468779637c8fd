"""The numbers stay the same: of a batch without rows, and of a feed-forward network in pieces."""

import pytest
import torch
from conftest import stack_config
from toy_training import HEADS, make_batch, make_model

from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteMLP


@pytest.mark.parametrize("kind", HEADS)
def test_no_rows(kind):
    for training in (False, True):
        model = make_model(kind).train(training)
        model(**{name: tensor[:0] for name, tensor in make_batch(kind).items()}).loss.backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert gradients and all((gradient == 0).all() for gradient in gradients)


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_in_chunks(gated):
    whole, *chunked = (
        RoFormerLiteMLP(stack_config(gated_mlp=gated, chunk_size_feed_forward=size)).double()
        for size in (0, 1, 7, 100)
    )
    states = torch.randn(3, 15, 32, dtype=torch.double)
    for mlp in chunked:
        mlp.load_state_dict(whole.state_dict())
        torch.testing.assert_close(mlp(states), whole(states))
