"""On a GPU: the numbers of a CPU, torch's kernel for ragged tokens, compiled generation, and one wait in a step."""

import warnings

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from toy_training import HEADS, make_model, make_rows

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration, RoFormerLiteForMaskedLM
from hf_roformer_lite.model import attention_documents

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


@pytest.mark.parametrize("name", ["default", "grouped-gated-rms", "sliding"])
@pytest.mark.parametrize("head", [RoFormerLiteForMaskedLM, RoFormerLiteForCausalLM])
def test_half_precision_takes_the_kernel_for_ragged_tokens(head, name, monkeypatch):
    calls, kernel = [], attention_documents.varlen_attention
    monkeypatch.setattr(
        attention_documents, "varlen_attention", lambda *args, **kwargs: calls.append(1) or kernel(*args, **kwargs)
    )
    model = build(head, stack_config(name, hidden_size=64, use_cache=False)).to(DEVICE)
    inputs = batch_of("causal", DEVICE)
    with torch.no_grad():
        expected = model(**inputs)
        assert not calls
        found = model.bfloat16()(**inputs)
    assert calls
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found.logits[real].float(), expected.logits[real], rtol=0.05, atol=0.05)
    torch.testing.assert_close(found.loss.float(), expected.loss, rtol=0.02, atol=0.02)


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


@pytest.mark.parametrize("kind", ["mlm", "causal", "seq2seq"])
def test_a_training_step_waits_once_for_the_device(kind):
    """For the masks and labels; everything else is sent without waiting."""
    model, inputs = make_model(kind).to(DEVICE).train(), batch_of(kind, DEVICE)
    model(**inputs).loss.backward()  # what is set up once may wait
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(**inputs).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([warning for warning in caught if "synchroniz" in str(warning.message)]) == 1
