"""On a GPU: the numbers of a CPU."""

import copy

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from test_padding_free_models import batch_of, tiny_model
from toy_training import HEADS, make_batch, make_model

from hf_roformer_lite import (
    RoFormerLiteForCausalLM,
    RoFormerLiteForConditionalGeneration,
    padding_free,
)

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
        output = model(**{name: tensor.to(device) for name, tensor in make_batch(kind).items()})
        output.loss.backward()
        found.append(
            [
                output.loss,
                *(weight.grad for weight in model.parameters() if weight.grad is not None),
            ]
        )
    torch.testing.assert_close(
        *([tensor.detach().cpu() for tensor in one] for one in found), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
def test_generated_tokens_are_those_of_a_cpu(kind, cache):
    inputs = {name: make_batch(kind)[name] for name in ("input_ids", "attention_mask")}
    made = seq2seq_config() if kind == "seq2seq" else stack_config()
    model = build(
        RoFormerLiteForConditionalGeneration if kind == "seq2seq" else RoFormerLiteForCausalLM, made
    )
    options = {
        "max_new_tokens": 8,
        "min_new_tokens": 8,
        "do_sample": False,
        "cache_implementation": cache,
    }
    expected = model.generate(**inputs, **options)
    found = model.to(DEVICE).generate(
        **{name: tensor.to(DEVICE) for name, tensor in inputs.items()}, **options
    )
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["bert", "modernbert", "llama", "gemma2"])
def test_padding_free_is_stock(kind, dtype):
    """In half precision by torch's attention for rows of various lengths, but for capped scores."""
    stock = tiny_model(kind).to(DEVICE, dtype)
    free = padding_free(copy.deepcopy(stock))
    batch = {name: tensor.to(DEVICE) for name, tensor in batch_of(stock).items()}
    limits = (
        {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    )
    found = []
    for model in (stock, free):
        loss = model.train()(**batch).loss
        loss.backward()
        found.append(
            [loss, *(weight.grad for weight in model.parameters() if weight.grad is not None)]
        )
    torch.testing.assert_close(found[1], found[0], **limits)
