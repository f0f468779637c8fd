"""Generated tokens and caches are those of the stock model."""

from typing import Any

import pytest
import torch
import transformers
from comparisons import assert_close, build, inputs_for, pair, paired
from conftest import data_beside, random_ids
from tiny_models import tiny_model

from hf_roformer_lite import padding_free


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "gpt neo"])
def test_generate(name, side):
    """Prompts that end with padding are continued after it, as by the stock model."""
    stock, free = pair(name)
    batch = inputs_for(name, side=side)
    for use_cache in (True, False):
        options = {"max_new_tokens": 8, "do_sample": False, "use_cache": use_cache}
        generated = [model.generate(**batch, **options, pad_token_id=0) for model in (free, stock)]
        assert torch.equal(*generated)


@pytest.mark.parametrize("name", ["BartForConditionalGeneration", "T5ForConditionalGeneration"])
def test_generate_from_targets(name):
    """Beginnings of targets that end with padding are continued after it, as by the stock model."""
    stock, free = pair(name)
    batch = inputs_for(name)
    size = batch["input_ids"].shape[0]
    batch["decoder_input_ids"] = random_ids(size, 6)
    batch["decoder_attention_mask"] = torch.ones(size, 6, dtype=torch.long)
    batch["decoder_attention_mask"][0, :3] = 0
    batch["decoder_attention_mask"][1, 4:] = 0
    options = {
        "max_new_tokens": 5,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    row = {key: value[1:2] for key, value in batch.items()}  # Proposed tokens need a single one.
    for inputs in (
        batch | {"use_cache": True},
        batch | {"use_cache": False},
        row | {"prompt_lookup_num_tokens": 2},
    ):
        expected, found = (model.generate(**inputs, **options) for model in (stock, free))
        assert_close(found.logits, expected.logits)


def test_a_causal_model_in_the_table_of_encoder_decoders():
    """Labels at padding count, and prompts that end with padding are continued as by the stock
    model, which hears no sound."""
    stock, free = paired(tiny_model("audioflamingo3"))
    batch = inputs_for("llama", side="right")
    losses = [model(**batch, labels=batch["input_ids"]).loss for model in (free, stock)]
    assert_close(*losses)
    options = {"max_new_tokens": 4, "do_sample": False, "use_cache": False, "pad_token_id": 0}
    assert torch.equal(*(model.generate(**batch, **options) for model in (free, stock)))


WAYS: dict[str, dict[str, Any]] = data_beside(__file__)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["llama", "BartForConditionalGeneration"])
def test_ways_to_generate(name, way):
    inputs = inputs_for(name, side="left")
    if way in ("prompt lookup", "assisted"):  # These take one row.
        inputs = {key: value[:1] for key, value in inputs.items()}
    generated = []
    for model in pair(name):
        options = {key: model if value is None else value for key, value in WAYS[way].items()}
        torch.manual_seed(0)
        generated.append(model.generate(**inputs, **options, max_new_tokens=6, pad_token_id=0))
    assert torch.equal(*generated)


@pytest.mark.slow
def test_continuous_batching():
    """transformers packs the requests itself, and refuses an attention that it does not know.

    A model that was switched back generates the tokens of one that was never switched."""
    stock, free = pair("llama")
    settings = transformers.GenerationConfig(
        max_new_tokens=3, do_sample=False, eos_token_id=2, pad_token_id=0
    )
    prompts = [[5, 6, 7], [8, 9]]
    # By default, the cache takes most of the free memory.
    small = transformers.ContinuousBatchingConfig(page_size=32, num_blocks=16, max_batch_tokens=16)
    with pytest.raises(ValueError, match="padding_free.*continuous batching"):
        free.generate_batch(prompts, settings, continuous_batching_config=small)
    answers = []
    for model in (stock, padding_free(free, enabled=False)):
        found = model.generate_batch(prompts, settings, continuous_batching_config=small)
        answers.append([output.generated_tokens for output in found.values()])
    assert answers[0] == answers[1]


def test_a_cache_of_fixed_size_is_generated_from():
    """The window is shorter than the prompt, and `generate` makes the mask itself."""
    model = build("MistralForCausalLM", sliding_window=4).eval()
    ids = random_ids(2, 8)
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(ids, **options)
    assert torch.equal(padding_free(model).generate(ids, **options), expected)
