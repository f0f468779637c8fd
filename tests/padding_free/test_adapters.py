"""Adapters of PEFT work in padding-free models."""

import copy

import pytest
import torch
from comparisons import (
    CLOSE,
    assert_same_gradients,
    batch_for,
    make,
    pair,
    pair_of,
)

from hf_roformer_lite import padding_free


@pytest.mark.parametrize(
    "class_name", ["T5ForConditionalGeneration", "MBartForConditionalGeneration"]
)
def test_prefixes_of_encoder_decoders(class_name):
    """A cache with the prefix is given to the decoder, whose mask must cover it."""
    from peft import PrefixTuningConfig, get_peft_model

    stock, free, batch = pair_of(class_name)
    tuned = []
    for model in (stock, free):
        torch.manual_seed(0)
        config = PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
        tuned.append(get_peft_model(model, config))
    assert_same_gradients(tuned[1], tuned[0], batch)


@pytest.mark.parametrize("kind", ["adapter_names", "alora"])
def test_adapters_that_know_rows(kind):
    from peft import LoraConfig, get_peft_model

    options = {}
    call = {}
    if kind == "alora":
        options["alora_invocation_tokens"] = [50, 51]
    else:
        call["adapter_names"] = ["default", "__base__"] * 2
    lora = LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False, **options
    )
    outputs = []
    batch = batch_for("llama")
    batch["input_ids"][:2, 1:3] = torch.tensor([50, 51])
    real = batch["attention_mask"].bool()
    for is_free in (False, True):
        torch.manual_seed(0)
        model = get_peft_model(padding_free(make("llama"), enabled=is_free), lora).eval()
        outputs.append(model(**batch, **call).logits[real])
    torch.testing.assert_close(*outputs, **CLOSE)


@pytest.mark.parametrize("is_first", [True, False])
def test_adapters(is_first):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    stock = make("bert mlm")
    free = make("bert mlm")
    torch.manual_seed(1)
    stock = get_peft_model(stock, lora)
    torch.manual_seed(1)
    if is_first:
        free = get_peft_model(padding_free(free), lora)
    else:
        free = padding_free(get_peft_model(free, lora))
    batch = batch_for("bert mlm")
    assert_same_gradients(free, stock, batch)


def test_virtual_tokens_before_those_of_the_batch():
    from peft import PromptTuningConfig, get_peft_model

    stock, _ = pair("llama")
    tuned = []
    for model in (stock, copy.deepcopy(stock)):
        torch.manual_seed(0)
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
        tuned.append(get_peft_model(model, config))
    assert_same_gradients(padding_free(tuned[1]), tuned[0], batch_for("llama"))
