"""Adapters of PEFT work in padding-free models."""

import copy

import peft
import pytest
import torch
from comparisons import (
    assert_close,
    assert_same_gradients,
    batch_for,
    batch_of_pairs,
    build,
)

from hf_roformer_lite import padding_free


@pytest.mark.parametrize("kind", ["adapter_names", "alora"])
def test_adapters_that_know_rows(kind):
    options = {}
    call = {}
    if kind == "alora":
        options["alora_invocation_tokens"] = [50, 51]
    else:
        call["adapter_names"] = ["default", "__base__"] * 2
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False, **options
    )
    outputs = []
    batch = batch_for("llama")
    batch["input_ids"][:2, 1:3] = torch.tensor([50, 51])
    real = batch["attention_mask"].bool()
    for is_free in (False, True):
        torch.manual_seed(0)
        model = peft.get_peft_model(padding_free(build("llama"), enabled=is_free), lora).eval()
        outputs.append(model(**batch, **call).logits[real])
    assert_close(*outputs)


LORA = peft.LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
PROMPT = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
# The decoder gets a cache with the prefix, and its mask must cover the prefix.
PREFIX = peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
ADAPTERS = [
    ("bert mlm", LORA),
    ("llama", PROMPT),
    ("T5ForConditionalGeneration", PREFIX),
    ("MBartForConditionalGeneration", PREFIX),
]


@pytest.mark.parametrize("name, config", ADAPTERS)
@pytest.mark.parametrize("is_first", [True, False])
def test_adapters(name, config, is_first):
    """`padding_free` comes before the adapter or after it."""
    models = []
    for is_free in (False, True):
        model = padding_free(build(name), enabled=is_free and is_first)
        torch.manual_seed(1)
        adapted = peft.get_peft_model(model, copy.deepcopy(config))
        models.append(padding_free(adapted, enabled=is_free))
    stock, free = models
    batch = batch_of_pairs() if config is PREFIX else batch_for(name)
    assert_same_gradients(free, stock, batch)
