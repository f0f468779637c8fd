"""Tests that models and tokenizers of version 0.1 can be loaded, and give the same outputs.

Each folder of `data/version_0_1` contains a model or a tokenizer as that version wrote it. Its
inputs and outputs are in `outputs.safetensors` or `outputs.json` in the same folder. Each gradient
is represented by its norm and one projection.
"""

import json
from pathlib import Path

import pytest
import torch
from saved_versions import (
    TOLERANCE,
    TOLERANCE_OF_GRADIENTS,
    in_float64,
    load,
    norms_and_projections,
    part,
)
from torch.nn import functional as F
from transformers import AutoTokenizer

import hf_roformer_lite

SAVED = Path(__file__).parent / "data" / "version_0_1"
MODELS = sorted(path.parent.name for path in SAVED.glob("*/outputs.safetensors"))
TOKENIZERS = sorted(path.parent.name for path in SAVED.glob("*/outputs.json"))
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
    "no_cache": {"use_cache": False},
    "right": {},
}


# Sliding windows counted real tokens in version 0.1, and now count places, as in every model of
# transformers. For a row with padding between its tokens, the old numbers are therefore the new
# numbers of the same row without this padding.
HAS_HOLES_AND_WINDOWS = ("modern-masked-lm", "modern-sequence", "sliding-causal-lm")


def tokens_together(
    tensors: dict[str, torch.Tensor], mask: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Move the real tokens of each row of tensors `(B, L, ...)` to its beginning."""
    order = (mask == 0).long().argsort(dim=1, stable=True)  # (B, L)
    moved = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.shape[:2] == mask.shape:
            places = order.view(*order.shape, *[1] * (tensor.ndim - 2)).expand_as(tensor)
            moved[name] = tensor.gather(1, places)
    return moved


@pytest.mark.parametrize("name", MODELS)
def test_outputs(name):
    model, kept = load(SAVED / name)
    for kind, inputs in (
        ("padded.", part(kept, "input.")),
        ("packed.", part(kept, "packed_input.")),
    ):
        wanted = part(kept, kind)
        if wanted:
            # Causal models have a cache here, with which windows counted places in version 0.1 too.
            if name in HAS_HOLES_AND_WINDOWS and not model.config.is_decoder and kind == "padded.":
                wanted = tokens_together(wanted, inputs["attention_mask"])
                inputs = tokens_together(inputs, inputs["attention_mask"])
            with torch.no_grad():
                output = model(**inputs)
            for key, tensor in wanted.items():
                torch.testing.assert_close(output[key], tensor, **TOLERANCE, msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name):
    """The loss and gradients are those of version 0.1.

    They are computed in float64, because in float32 sums whose terms cancel each other differ
    between processors. The saved ones were computed in float32.
    """
    model, kept = load(SAVED / name)
    wanted = part(kept, "gradient.")
    assert wanted.keys() == dict(model.named_parameters()).keys()
    labels = part(kept, "label.")
    inputs = part(kept, "input.")
    if name in HAS_HOLES_AND_WINDOWS:
        if model.config.is_decoder:
            # A token predicts the next place, so labels are shifted before tokens are moved.
            labels = {"shift_labels": F.pad(labels["labels"][:, 1:], (0, 1), value=-100)}
        labels = tokens_together(labels, inputs["attention_mask"])
        inputs = tokens_together(inputs, inputs["attention_mask"])
    output = model.double().train()(**in_float64(inputs), **labels)
    loss = output.loss if labels else output.last_hidden_state.square().sum()
    loss.backward()
    if labels:
        torch.testing.assert_close(loss.detach().float(), kept["training.loss"], **TOLERANCE)
    for key, found in norms_and_projections(model).items():
        torch.testing.assert_close(found, wanted[key], **TOLERANCE_OF_GRADIENTS, msg=key)


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(("causal-lm", "pair"))])
def test_generated_tokens(name):
    model, kept = load(SAVED / name)
    prompt = kept["prompt.input_ids"]
    mask = kept["prompt.attention_mask"]
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    for mode, wanted in part(kept, "tokens.").items():
        # The mode "right" has the padding on the other side.
        given = mask.flip(1) if mode == "right" else mask
        if mode == "right" and "sliding_attention" in model.config.get_text_config().layer_types:
            with pytest.raises(ValueError, match="padding_side='left'"):
                model.generate(prompt, attention_mask=given, **options)
            continue
        found = model.generate(prompt, attention_mask=given, **options, **MODES[mode])
        assert found.equal(wanted), mode


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens(name):
    tokenizer = AutoTokenizer.from_pretrained(SAVED / name)
    kept = json.loads((SAVED / name / "outputs.json").read_text("utf-8"))
    texts = kept["texts"]
    encoded = tokenizer(texts, return_offsets_mapping=True)
    assert encoded["input_ids"] == kept["input_ids"]
    offsets = [[list(span) for span in row] for row in encoded["offset_mapping"]]
    assert offsets == kept["offset_mapping"]
    assert tokenizer(texts[0], texts[1])["input_ids"] == kept["pair"]
    is_jieba = name == "tokenizer-jieba"
    decoded = [
        tokenizer.decode(ids, skip_special_tokens=not is_jieba) for ids in encoded["input_ids"]
    ]
    assert decoded == kept["decoded"]
    if is_jieba:
        return
    assert tokenizer(texts[0], text_target=texts[1])["labels"] == kept["labels"]
    words = ["The", "fox", "北京", "17", "!"]
    assert tokenizer(words, is_split_into_words=True)["input_ids"] == kept["split_words"]
    tokenizer.add_bos_token = True
    assert tokenizer(texts[0])["input_ids"] == kept["bos"]


def test_the_former_name_of_skip_logits():
    """In configurations of version 0.1 the field was called `sparse_prediction`."""
    written = json.loads((SAVED / "default-masked-lm" / "config.json").read_text("utf-8"))
    assert "sparse_prediction" in written and "skip_logits" not in written
    config = hf_roformer_lite.RoFormerLiteConfig.from_dict({**written, "sparse_prediction": False})
    assert config.skip_logits is False and config.to_dict()["skip_logits"] is False
