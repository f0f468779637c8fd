"""Masks, positions and inputs of every kind leave the outputs of a model as they were."""

import gc
import weakref
from typing import Any

import pytest
import torch
import transformers
from comparisons import (
    CountedTokens,
    assert_close,
    assert_same_outputs,
    batch_for,
    build,
    inputs_for,
    pair,
    paired,
)
from conftest import gradients_of, positions_of

from hf_roformer_lite import padding_free


def test_inputs_of_other_kinds():
    stock, free = pair("BertModel")
    batch = batch_for("bert mlm")
    ids = batch["input_ids"]
    mask = batch["attention_mask"]
    vectors = stock.embeddings.word_embeddings(ids).detach()
    for inputs in (
        {"inputs_embeds": vectors, "attention_mask": mask},
        {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2},
        {"input_ids": ids},
    ):
        assert_same_outputs(free, stock, inputs)
    stock, free = pair("Qwen3Model")
    by_type = {"full_attention": (mask[:, None, None] * torch.ones(12, 12).tril()).bool()}
    found, expected = (
        model(ids, attention_mask=by_type).last_hidden_state for model in (free, stock)
    )
    assert_close(found, expected)


@pytest.mark.parametrize("lengths", [(12, 12, 11), (12, 12, 12)])
def test_nearly_full_batches_stay_as_they_are(lengths):
    stock, free = pair("bert classes")
    batch = batch_for("bert classes", lengths=lengths)
    with CountedTokens(free) as counted:
        found = free(**batch).logits
    assert_close(found, stock(**batch).logits, rtol=0, atol=1e-6)
    assert counted.numbers == [36]


@pytest.mark.parametrize("kind", ["four dimensions", "holes", "four dimensions, causal"])
def test_any_mask_is_computed_without_padding(kind):
    is_causal = kind.endswith("causal")
    stock, free = pair("LlamaModel" if is_causal else "bert mlm")
    inputs = inputs_for("bert mlm")
    mask = inputs["attention_mask"]
    if kind == "holes":
        mask[0, 3:5] = 0
    if kind.startswith("four"):
        given = mask[:, None, None].bool().expand(-1, 1, 12, -1)
        inputs["attention_mask"] = given & torch.ones(12, 12).tril().bool() if is_causal else given
    with CountedTokens(free) as counted, torch.no_grad():
        free(**inputs)
    assert counted.numbers == [int(mask.sum())]
    assert_same_outputs(free, stock, inputs)


ALL = torch.ones(4, 12, dtype=torch.long)


@pytest.mark.parametrize(
    "class_name, inputs",
    [
        ("LlamaModel", {"attention_mask": ALL, "is_causal": False}),
        ("MixtralForCausalLM", {"output_router_logits": True, "use_cache": False}),
        ("DistilBertModel", {"token_type_ids": ALL}),
    ],
)
def test_what_a_flat_row_must_not_change(class_name, inputs):
    stock, free = pair(class_name)
    assert_same_outputs(free, stock, inputs_for("bert mlm") | inputs)


def test_masks_of_models_that_make_them_are_let_go():
    """The documents that are derived from a mask hold no reference to it."""
    model = padding_free(build("DebertaV2ForMaskedLM")).eval()
    masks = []

    def look(layer: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        second = args[1] if len(args) > 1 else None
        masks.append(weakref.ref(kwargs.get("attention_mask", second)))

    layer = model.deberta.encoder.layer[0]
    layer.register_forward_pre_hook(look, with_kwargs=True, prepend=True)
    gc.disable()
    try:
        model(**inputs_for("bert mlm", lengths=(12, 12)))
        assert masks and all(mask() is None for mask in masks)
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "name, more",
    [
        ("llama", {"use_cache": False}),
        ("llama", {"labels": batch_for("llama")["labels"]}),
        ("llama classes", {}),
        ("bert classes", {}),
        ("falcon classes", {}),
        ("mpnet mlm", {}),
    ],
)
def test_evaluation_computes_real_tokens_alone(name, more):
    _, free = pair(name)
    batch = inputs_for(name)
    with CountedTokens(free) as counted:
        free(**batch | more)
        free.base_model(**batch)
    assert counted.numbers == [24, 24]


def scaled(rope_type: str, **options) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, **options}}


LONG = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 16}
DYNAMIC = {"max_position_embeddings": 16, **scaled("dynamic", factor=2.0)}
GEMMA3 = {
    "vision_config": {"image_size": 28, "patch_size": 14},
    "mm_tokens_per_image": 4,
    "image_token_id": 50,
}
# Only the second row has an image.
IMAGE = torch.zeros(4, 12, dtype=torch.long).index_fill(1, torch.arange(1, 4), 1)
IMAGE[[0, 2, 3]] = 0
NO_CACHE = {"use_cache": False}
RESTART = {"position_ids": positions_of((5, 7)).expand(4, -1)}
GAPS = {"position_ids": RESTART["position_ids"] * 2, "attention_mask": ALL}

# Each entry has the class of the model, fields of its configuration, and more inputs of its batch.
UNUSUAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "images in another row": ("Gemma3ForConditionalGeneration", GEMMA3, {"token_type_ids": IMAGE}),
    "chunks of attention": ("Llama4ForCausalLM", {"attention_chunk_size": 20}, {}),
    "padding alone": ("LlamaForCausalLM", {}, {"attention_mask": ALL * 0}),
    "dynamic frequencies": ("LlamaForCausalLM", DYNAMIC, NO_CACHE),
    "long frequencies": ("Phi3ForCausalLM", scaled("longrope", **LONG), NO_CACHE),
    "positions that restart": ("BertModel", {}, RESTART),
    "positions with gaps": ("LlamaModel", {}, GAPS),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_not_understood_is_as_it_was(case):
    class_name, fields, others = UNUSUAL[case]
    stock, free = pair(class_name, **fields)
    longest = 30 if case == "chunks of attention" else 12
    batch = inputs_for("bert mlm", lengths=(longest, 7, 1, 4))
    if "frequencies" in case:
        # The frequencies depend on the length of the longest row with its padding.
        batch = {name: torch.nn.functional.pad(value, (0, 8)) for name, value in batch.items()}
    assert_same_outputs(free, stock, batch | others)


def test_masks_of_four_dimensions_that_are_used_again():
    """What was decided in another call with the same mask does not count."""
    stock, free = pair("bert tokens")
    batch = batch_for("bert tokens")
    real = batch["attention_mask"].bool()
    batch["attention_mask"] = real[:, None, None].expand(-1, 1, 12, -1).contiguous()
    for more in ({}, {"output_hidden_states": True}, {}):
        assert_same_outputs(free, stock, batch | more)
    # A plan is for one call also if two masks share their memory.
    found = []
    for model in (free, stock):
        model.train().zero_grad()
        model.gradient_checkpointing_enable()
        both = torch.stack([batch["attention_mask"], batch["attention_mask"].flip(0)])
        turned = {name: value.flip(0) for name, value in batch.items()}
        parts = zip((batch, turned), both, strict=True)
        sum(model(**part | {"attention_mask": mask}).loss for part, mask in parts).backward()
        found.append(gradients_of(model))
    assert_close(*found)


def test_a_forward_that_names_no_arguments():
    class Passing(transformers.BertModel):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    stock, free = paired(Passing(build("BertModel").config).eval())
    batch = batch_for("bert mlm", side="left")
    given = (batch["input_ids"], batch["attention_mask"])
    assert_close(free(*given).pooler_output, stock(*given).pooler_output)
