"""Tests of `torch.compile` of a whole model."""

import pytest
import torch
from conftest import (
    assert_close,
    build,
    data_beside,
    gradients,
    mask_of,
    random_ids,
    seq2seq_config,
    stack_config,
)

import hf_roformer_lite as rl


class CountedGraphs:
    """A backend of torch.compile that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, graph, inputs):
        self.number += 1
        return graph


def batch(lengths: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
    mask = mask_of(lengths)
    ids = random_ids(*mask.shape, seed=seed)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()


@pytest.mark.slow
def test_as_a_whole():
    """A compiled model gives the losses and gradients of the plain one, in few unbroken graphs."""
    model = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config("sliding"))
    backend = CountedGraphs()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for seed, lengths in enumerate(data_beside(__file__)):
        inputs = batch(lengths, seed) | {"skip_logits": False}
        assert_close(gradients(compiled, inputs), gradients(model, inputs))
    assert backend.number <= 3


@pytest.mark.parametrize(
    "is_decoder",
    [
        pytest.param(False, id="encoder"),
        pytest.param(True, id="decoder", marks=pytest.mark.slow),
    ],
)
@torch.no_grad()
def test_packed_documents_stay_apart(is_decoder):
    config = stack_config(is_decoder=is_decoder, num_hidden_layers=1)
    model = build(rl.RoFormerLiteModel, config)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    ids = random_ids(1, 9)
    mask = torch.tensor([[1] * 7 + [0] * 2])
    padded = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 0]])
    for inputs in (
        {"position_ids": padded, "attention_mask": mask},
        {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])},
    ):
        expected = model(ids, use_cache=False, **inputs)[0]
        assert_close(compiled(ids, use_cache=False, **inputs)[0], expected)
