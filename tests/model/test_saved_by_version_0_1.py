"""Directories that version 0.1 saved load today, with the outputs, gradients, texts and tokens that
it gave.

Each folder of `data/version_0_1` is a model or a tokenizer as that version wrote it, with
`outputs.safetensors` or `outputs.json` beside it: its inputs, and what came out. Of each gradient
the norm and one projection are kept.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedModel

import hf_roformer_lite

SAVED = Path(__file__).parent / "data" / "version_0_1"
MODELS = sorted(path.parent.name for path in SAVED.glob("*/outputs.safetensors"))
TOKENIZERS = sorted(path.parent.name for path in SAVED.glob("*/outputs.json"))
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
    "no_cache": {"use_cache": False},
    "right": {},
}


HOLES = 3  # the row of the padded inputs that has padding between its tokens


def load(name: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    config = json.loads((SAVED / name / "config.json").read_text("utf-8"))
    model_class = getattr(hf_roformer_lite, config["architectures"][0])
    model, report = model_class.from_pretrained(SAVED / name, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval(), load_file(SAVED / name / "outputs.safetensors")


def part(kept: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in kept.items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize("name", MODELS)
def test_outputs(name):
    model, kept = load(name)
    for kind, inputs in (
        ("padded.", part(kept, "input.")),
        ("packed.", part(kept, "packed_input.")),
    ):
        if wanted := part(kept, kind):
            with torch.no_grad():
                output = model(**inputs)
            # beside a cache its windows counted places, and now count real tokens
            if name == "sliding-causal-lm":
                same = [row for row in range(len(output.logits)) if row != HOLES]
                wanted, output = {"logits": wanted["logits"][same]}, {"logits": output.logits[same]}
            for key, tensor in wanted.items():
                torch.testing.assert_close(output[key], tensor, **TOLERANCE, msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients(name):
    """In float64: sums of terms that cancel differ between processors, and those that are kept were
    float32's."""
    model, kept = load(name)
    wanted = part(kept, "gradient.")
    assert wanted.keys() == dict(model.named_parameters()).keys()
    labels = part(kept, "label.")
    inputs = part(kept, "input.")
    inputs = {
        key: value.double() if value.is_floating_point() else value for key, value in inputs.items()
    }
    output = model.double().train()(**inputs, **labels)
    loss = output.loss if labels else output.last_hidden_state.square().sum()
    loss.backward()
    if labels:
        torch.testing.assert_close(loss.detach().float(), kept["training.loss"], **TOLERANCE)
    for key, weight in model.named_parameters():
        gradient = torch.zeros(1).double() if weight.grad is None else weight.grad
        flat = gradient.flatten()
        projection = (flat * torch.cos(torch.arange(len(flat), dtype=torch.float64))).sum()
        found = torch.stack((flat.norm(), projection)).float()
        torch.testing.assert_close(found, wanted[key], rtol=2e-5, atol=2e-5, msg=key)


@pytest.mark.parametrize("name", [name for name in MODELS if name.endswith(("causal-lm", "pair"))])
def test_generated_tokens(name):
    model, kept = load(name)
    prompt, mask = kept["prompt.input_ids"], kept["prompt.attention_mask"]
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    for mode, wanted in part(kept, "tokens.").items():
        given = mask.flip(1) if mode == "right" else mask  # padded on the other side
        assert model.generate(prompt, attention_mask=given, **options, **MODES[mode]).equal(
            wanted
        ), mode


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens(name):
    tokenizer = AutoTokenizer.from_pretrained(SAVED / name)
    kept = json.loads((SAVED / name / "outputs.json").read_text("utf-8"))
    texts = kept["texts"]
    encoded = tokenizer(texts, return_offsets_mapping=True)
    assert encoded["input_ids"] == kept["input_ids"]
    assert [[list(span) for span in row] for row in encoded["offset_mapping"]] == kept[
        "offset_mapping"
    ]
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
    """A config that version 0.1 wrote says `sparse_prediction`."""
    written = json.loads((SAVED / "default-masked-lm" / "config.json").read_text("utf-8"))
    assert "sparse_prediction" in written and "skip_logits" not in written
    config = hf_roformer_lite.RoFormerLiteConfig.from_dict({**written, "sparse_prediction": False})
    assert config.skip_logits is False and config.to_dict()["skip_logits"] is False
