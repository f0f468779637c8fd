"""On a GPU: the numbers of a CPU."""

import copy

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from toy_training import HEADS, make_batch, make_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    Gemma2Config,
    LlamaConfig,
    ModernBertConfig,
)

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration, padding_free

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA")]
DEVICE = "cuda"


@pytest.mark.parametrize("kind", HEADS)
def test_losses_and_gradients_are_those_of_a_cpu(kind):
    found = []
    for device in ("cpu", DEVICE):
        model = make_model(kind).to(device)
        output = model(**{name: tensor.to(device) for name, tensor in make_batch(kind).items()})
        output.loss.backward()
        found.append([output.loss, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    torch.testing.assert_close(*([tensor.detach().cpu() for tensor in one] for one in found), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["causal", "seq2seq"])
def test_generated_tokens_are_those_of_a_cpu(kind, cache):
    inputs = {name: make_batch(kind)[name] for name in ("input_ids", "attention_mask")}
    made = seq2seq_config() if kind == "seq2seq" else stack_config()
    model = build(RoFormerLiteForConditionalGeneration if kind == "seq2seq" else RoFormerLiteForCausalLM, made)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "cache_implementation": cache}
    expected = model.generate(**inputs, **options)
    found = model.to(DEVICE).generate(**{name: tensor.to(DEVICE) for name, tensor in inputs.items()}, **options)
    assert found.tolist() == expected.tolist()


SIZES = {
    "vocab_size": 90,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
SIZES |= {"max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
STOCK = {
    "bert": (AutoModelForSequenceClassification, BertConfig, {"hidden_dropout_prob": 0.0}),
    "modernbert": (AutoModelForMaskedLM, ModernBertConfig, {"local_attention": 8, "cls_token_id": 1}),
    "llama": (AutoModelForCausalLM, LlamaConfig, {"num_key_value_heads": 2}),
    "gemma2": (AutoModelForCausalLM, Gemma2Config, {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 7}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", STOCK)
def test_padding_free_is_stock(name, dtype):
    """In half precision by torch's attention for rows of various lengths, but for capped scores."""
    auto, config_class, options = STOCK[name]
    torch.manual_seed(0)
    config = config_class(**SIZES, **options)
    if name == "bert":
        config.attention_probs_dropout_prob = 0.0
    stock = auto.from_config(config).to(DEVICE, dtype)
    free = padding_free(copy.deepcopy(stock))
    mask = (torch.arange(30, device=DEVICE) < torch.tensor([[30], [12], [12], [1]], device=DEVICE)).long()
    ids = torch.randint(5, 90, (4, 30), device=DEVICE) * mask
    labels = torch.arange(4, device=DEVICE) % 2 if name == "bert" else ids.masked_fill(mask == 0, -100)
    limits = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 5e-2, "atol": 5e-2}
    losses, gradients = [], []
    for model in (stock, free):
        losses.append(model.train()(input_ids=ids, attention_mask=mask, labels=labels).loss)
        losses[-1].backward()
        gradients.append(
            torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
        )
    torch.testing.assert_close(losses[1], losses[0], **limits)
    torch.testing.assert_close(gradients[1], gradients[0], **limits)
