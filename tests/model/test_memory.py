"""What is computed in pieces or again gives the numbers of the whole."""

import pytest
import torch
from conftest import build, stack_config

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteMLP

IDS = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 7, 100])
def test_feed_forward_in_chunks(gated, chunk_size):
    whole = RoFormerLiteMLP(stack_config(gated_mlp=gated)).double()
    chunked = RoFormerLiteMLP(stack_config(gated_mlp=gated, chunk_size_feed_forward=chunk_size)).double()
    chunked.load_state_dict(whole.state_dict())
    states = torch.randn(3, 15, 32, dtype=torch.double, requires_grad=True)
    found = []
    for mlp in (whole, chunked):
        output = mlp(states)
        found.append([output, *torch.autograd.grad(output.sin().sum(), [states, *mlp.parameters()])])
        with torch.no_grad():
            torch.testing.assert_close(mlp(states), output)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("model_class", [RoFormerLiteForMaskedLM, RoFormerLiteForCausalLM])
def test_gradient_checkpointing(model_class, reentrant):
    """Both kinds, with windows and padding, give the gradients of a model that keeps everything."""
    found = []
    for checkpoints in (False, True):
        model = build(model_class, stack_config("sliding")).train()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(IDS, attention_mask=(IDS % 7 > 0).long(), labels=IDS).loss.backward()
        found.append({name: weight.grad for name, weight in model.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-6, msg=name)
