"""What is computed again in the backward pass: outputs and gradients are those of torch, and less is kept."""

import pytest
import torch
from conftest import build, stack_config
from torch.nn import functional as F
from transformers import modeling_utils

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
from hf_roformer_lite.model import feed_forward
from hf_roformer_lite.model.dropout import RoFormerLiteDropout
from hf_roformer_lite.model.feed_forward import RoFormerLiteMLP

IDS = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def recomputed(monkeypatch) -> None:
    """Small models do as large ones."""
    monkeypatch.setattr(feed_forward, "MIN_RECOMPUTED", 0)


def written_out(mlp: RoFormerLiteMLP, states: torch.Tensor) -> torch.Tensor:
    up = F.linear(states, mlp.up_proj.weight, mlp.up_proj.bias)
    if mlp.gate_proj is None:
        inner = F.gelu(up)
    else:
        inner = F.gelu(F.linear(states, mlp.gate_proj.weight, mlp.gate_proj.bias)) * up
    return F.linear(inner, mlp.down_proj.weight, mlp.down_proj.bias)


def gradients(output: torch.Tensor, mlp: RoFormerLiteMLP, states: torch.Tensor) -> list[torch.Tensor]:
    return torch.autograd.grad(output.sin().sum(), [states, *mlp.parameters()])


@pytest.mark.parametrize("piece", [1, 3 * 64, 2**21])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("chunk_size", [0, 1, 7, 100])
def test_gradients_are_those_of_torch(gated, chunk_size, piece, monkeypatch):
    monkeypatch.setattr(feed_forward, "PIECE", piece)
    config = stack_config(gated_mlp=gated, chunk_size_feed_forward=chunk_size, intermediate_size=64)
    mlp = RoFormerLiteMLP(config).double()
    states = torch.randn(3, 5, 32, dtype=torch.double, requires_grad=True)
    output, expected = mlp(states), written_out(mlp, states)
    torch.testing.assert_close(output, expected)
    for found, right in zip(gradients(output, mlp, states), gradients(expected, mlp, states), strict=True):
        torch.testing.assert_close(found, right)
    with torch.no_grad():
        torch.testing.assert_close(mlp(states), expected)


def test_gradients_of_gradients():
    mlp = RoFormerLiteMLP(stack_config(gated_mlp=True)).double()
    states = torch.randn(4, 32, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(mlp, states)


def test_frozen_weights_get_no_gradient():
    mlp = RoFormerLiteMLP(stack_config())
    mlp.requires_grad_(False)
    mlp.down_proj.bias.requires_grad_(True)
    mlp(torch.randn(4, 32)).sum().backward()
    assert [name for name, weight in mlp.named_parameters() if weight.grad is not None] == ["down_proj.bias"]
    torch.testing.assert_close(mlp.down_proj.bias.grad, torch.full((32,), 4.0))


def kept_bytes(module: torch.nn.Module, *inputs: torch.Tensor, function=None, **options) -> int:
    """What a call keeps for its gradients beside the weights, each storage once."""
    weights = {weight.untyped_storage().data_ptr() for weight in module.parameters()}
    kept = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = (
            tensor.untyped_storage().nbytes(),
            tensor,
        )  # alive: no pointer twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        (function or module)(*inputs, **options)
    return sum(size for pointer, (size, _) in kept.items() if pointer not in weights)


def test_inner_states_are_kept_once(monkeypatch):
    mlp, states = RoFormerLiteMLP(stack_config(intermediate_size=64)), torch.randn(10, 32, requires_grad=True)
    row = 4 * 10
    assert kept_bytes(mlp, states) == row * (32 + 64)
    assert kept_bytes(mlp, mlp, states, function=written_out) == row * (32 + 2 * 64)
    monkeypatch.setattr(feed_forward, "MOST_KEPT", 10 * 64 - 1)
    monkeypatch.setattr(feed_forward, "PIECE", 5 * 64)
    assert kept_bytes(mlp, states) <= row * 32  # the input alone
    monkeypatch.undo()
    monkeypatch.setattr(feed_forward, "MIN_RECOMPUTED", 10 * 64 + 1)
    assert kept_bytes(mlp, states) == row * (32 + 2 * 64)  # too few to be computed again


def test_dropout_keeps_a_byte_for_each_number():
    dropout, states = RoFormerLiteDropout(0.25).train(), torch.ones(40, 50, requires_grad=True)
    assert kept_bytes(dropout, states) == states.numel()
    output = dropout(states)
    (gradient,) = torch.autograd.grad(output.sum(), states)
    assert torch.equal(gradient, output) and set(output.unique().tolist()) == {0.0, torch.tensor(4 / 3).item()}


@pytest.mark.parametrize("model_class", [RoFormerLiteForMaskedLM, RoFormerLiteForCausalLM])
def test_windows_keep_each_key_once(model_class):
    """What a windowed model keeps grows with the length alone, as in one without windows, and its gradients are those
    of a mask over all pairs."""
    kept = {}
    for name, fields in {"windows": {"sliding_window": 4}, "full": {}}.items():
        model = build(model_class, stack_config(is_decoder=model_class is RoFormerLiteForCausalLM, **fields)).train()
        kept[name] = kept_bytes(model.model, IDS, use_cache=False)
    assert kept["windows"] < 1.1 * kept["full"]


def test_offloaded_checkpoints_give_the_same_gradients(monkeypatch):
    """transformers keeps on the host what checkpointing keeps; pieces and windows are checkpoints inside its own."""
    if not hasattr(modeling_utils.PreTrainedModel, "activation_checkpointing_enable"):
        pytest.skip("this version of transformers cannot be asked to offload what checkpointing keeps")
    moved = []

    class Unpinned(torch.autograd.graph.save_on_cpu):  # pinned memory needs an accelerator
        def __init__(self, pin_memory: bool, device_type: str):
            super().__init__(pin_memory=False, device_type=device_type)
            moved.append(device_type)

    monkeypatch.setattr(modeling_utils, "save_on_cpu", Unpinned)
    found = []
    for enable in (False, True):
        config = stack_config(sliding_window=4, chunk_size_feed_forward=16)
        model = build(RoFormerLiteForMaskedLM, config).train()
        if enable:
            model.activation_checkpointing_enable(offload=True)
        model(IDS, labels=IDS).loss.backward()
        found.append({name: weight.grad for name, weight in model.named_parameters()})
    assert len(moved) == len(model.model.layers)
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    "fields", [{"chunk_size_feed_forward": -1}, {"layer_style": "walkthrough", "chunk_size_feed_forward": 8}]
)
def test_impossible_chunks_are_refused(fields):
    with pytest.raises(Exception, match="chunk_size_feed_forward"):
        stack_config(**fields, norm_placement="post" if "layer_style" in fields else "pre")
