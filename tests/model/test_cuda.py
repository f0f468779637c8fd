"""On a GPU: the numbers of a CPU."""

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from toy_training import HEADS, make_model, make_rows

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")]
DEVICE = "cuda"


def batch_of(kind: str, device: str) -> dict[str, torch.Tensor]:
    rows = make_rows(kind)
    return {key: torch.stack([row[key] for row in rows]).to(device) for key in rows[0]}


@pytest.mark.parametrize("kind", HEADS)
def test_losses_and_gradients_are_those_of_a_cpu(kind):
    found = []
    for device in ("cpu", DEVICE):
        model = make_model(kind).to(device)
        output = model(**batch_of(kind, device))
        output.loss.backward()
        found.append([output.loss, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    torch.testing.assert_close(*([tensor.detach().cpu() for tensor in one] for one in found), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
def test_generated_tokens_are_those_of_a_cpu(kind, cache):
    inputs = {name: batch_of(kind, "cpu")[name] for name in ("input_ids", "attention_mask")}
    made = seq2seq_config() if kind == "seq2seq" else stack_config()
    model = build(RoFormerLiteForConditionalGeneration if kind == "seq2seq" else RoFormerLiteForCausalLM, made)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "cache_implementation": cache}
    expected = model.generate(**inputs, **options)
    found = model.to(DEVICE).generate(**{name: tensor.to(DEVICE) for name, tensor in inputs.items()}, **options)
    assert found.tolist() == expected.tolist()
