"""Models and tokenizers that versions 0.1 and 0.2 saved give the same outputs, gradients and
tokens.

Each folder of `data/version_0_1` and `data/version_0_2` contains a model or a tokenizer as that
version wrote it, and what it computed. The names of the tensors of `outputs.safetensors` are these:

* `input.…` are the arguments of the padded batch and `padded.…` its outputs. `CASE_input.…` and
  `CASE.…` are those of other cases, such as `packed`. A tensor without dimensions is a number.
  Cases whose name begins with `training` were computed in training mode.
* `label.…` are the labels of the padded batch, and `training.…` and `gradient.WEIGHT` the results
  of the training step. `CASE.gradients` `(weights, 2)` has the weights in the order of their names.
  Each gradient is represented by its norm and one projection.
* `prompt.…` are arguments of `generate` and `tokens.MODE` are its results. `GROUP_prompt.…` and
  `GROUP_tokens.MODE` are those of other prompts.

Outputs of padding are NaN in version 0.2, because nobody reads them.
"""

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_close, dropout_without_chance, part_of, positions_of
from program import config_of, read_json
from safetensors.torch import load_file
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils import ModelOutput

import hf_roformer_lite

DATA = Path(__file__).parent / "data"
Tensors = dict[str, torch.Tensor]
MODELS = sorted(
    path.parent.relative_to(DATA).as_posix() for path in DATA.glob("*/*/outputs.safetensors")
)
TOKENIZERS = sorted(path.parent for path in DATA.glob("version_*/*/outputs.json"))
GENERATING = [name for name in MODELS if name.endswith(("causal-lm", "pair"))]
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
TOLERANCE_OF_GRADIENTS = {"rtol": 2e-5, "atol": 2e-5}
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
    "no_cache": {"use_cache": False},
    # The padding is on the other side than in the prompt.
    "right": {},
}
# Sliding windows counted real tokens in version 0.1, and now count places, as in every model of
# transformers. For a row with padding between its tokens, the old numbers are no longer right.
WINDOWS_OF_TOKENS = {
    "version_0_1/modern-masked-lm": ("padded", "training"),
    "version_0_1/modern-sequence": ("padded", "training"),
    "version_0_1/sliding-causal-lm": ("training",),
}


@functools.cache
def load(name: str) -> tuple[PreTrainedModel, Tensors]:
    """Load a model, and the tensors that were saved with it. A test copies what it changes."""
    folder = DATA / name
    config = config_of(folder)
    model_class = getattr(hf_roformer_lite, config["architectures"][0])
    model, report = model_class.from_pretrained(folder, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval(), load_file(folder / "outputs.safetensors")


def cases(kept: Tensors, is_training: bool) -> dict[str, Tensors]:
    """Map the name of each case, in evaluation or in training, to the arguments of the model."""
    prefixes = {name.partition(".")[0] for name in kept}
    names = [prefix.removesuffix("_input") for prefix in prefixes if prefix.endswith("_input")]
    found = {name: part_of(kept, f"{name}_input.") for name in names}
    found["padded"] = part_of(kept, "input.")
    found["training"] = found["padded"] | part_of(kept, "label.")
    for inputs in found.values():
        # Earlier versions took the borders of documents without positions.
        if "cu_seq_lens_q" in inputs:
            inputs["position_ids"] = positions_of(inputs["cu_seq_lens_q"].diff())
    return {
        name: found[name] for name in sorted(found) if name.startswith("training") == is_training
    }


def rows_of(model: PreTrainedModel, kept: Tensors) -> dict[str, Any]:
    """The arguments of a model, in which packed documents are rows if the model pools tokens, and
    tensors without dimensions are numbers of Python."""
    inputs = {key: value if value.ndim else value.item() for key, value in kept.items()}
    if not getattr(model, "pools_tokens", False) or "position_ids" not in inputs:
        return inputs
    is_real = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])) != 0
    is_packed = bool(((inputs["position_ids"] == 0) & is_real).sum() > len(is_real))
    return documents_as_rows(inputs) if is_packed else inputs


def documents_as_rows(inputs: dict[str, Any]) -> dict[str, Any]:
    """Packed documents as padded rows."""
    ids = inputs["input_ids"]
    is_real = inputs.get("attention_mask", torch.ones_like(ids)).flatten() != 0
    begins = is_real & (inputs["position_ids"].flatten() == 0)
    numbers = begins.cumsum(0).where(is_real, 0)
    documents = [(numbers == number).nonzero()[:, 0] for number in range(1, numbers.max() + 1)]
    rows = {"attention_mask": [torch.ones(len(places)) for places in documents]}
    for name in ("input_ids", "token_type_ids"):
        if name in inputs:
            rows[name] = [inputs[name].flatten()[places] for places in documents]
    others = {name: inputs[name] for name in ("labels", "num_items_in_batch") if name in inputs}
    return {name: pad_sequence(row, batch_first=True) for name, row in rows.items()} | others


def compare(output: ModelOutput, wanted: Tensors, case: str) -> None:
    """Compare the outputs at real tokens."""
    for key, tensor in wanted.items():
        found = output[key]
        if isinstance(found, tuple):
            # Hidden states and attentions have one tensor for each layer.
            found = torch.stack(found)
        found = found.detach().float()
        is_real = ~tensor.isnan()
        assert found.shape == tensor.shape, (case, key)
        assert_close(
            found[is_real],
            tensor[is_real],
            **TOLERANCE,
            msg=lambda message, key=key: f"{case}.{key}: {message}",
        )


@pytest.mark.parametrize("name", MODELS)
def test_outputs(name):
    saved, kept = load(name)
    model = copy.deepcopy(saved)
    # Version 0.1 computed the packed case after the padded one.
    for case, inputs in reversed(cases(kept, is_training=False).items()):
        if name.startswith("version_0_2"):
            # A call may change the frequencies of RoPE, and so the outputs of the next one.
            model = copy.deepcopy(saved)
        if case == "eager":
            model.set_attn_implementation("eager")
        wanted = part_of(kept, f"{case}.")
        if not wanted or case in WINDOWS_OF_TOKENS.get(name, ()):
            continue
        with torch.no_grad():
            output = model(**rows_of(model, inputs))
            if "pooler_output" in wanted and "pooler_output" not in output:
                # Version 0.3 pools no packed documents.
                output["pooler_output"] = model(**documents_as_rows(inputs)).pooler_output
        compare(output, wanted, case)


def loss_of(output: ModelOutput, inputs: Tensors, is_pooled: bool) -> torch.Tensor:
    """Return the loss of a model, or the sum of its squared outputs if it has no head."""
    if "loss" in output:
        return output.loss
    states = output.last_hidden_state
    is_pair = "decoder_input_ids" in inputs
    mask = inputs.get("decoder_attention_mask" if is_pair else "attention_mask")
    if mask is not None:
        states = states[mask != 0]
    loss = states.square().sum()
    if is_pooled and output.get("pooler_output") is not None:
        loss = loss + output.pooler_output.square().sum()
    return loss


def norms_and_projections(model: PreTrainedModel) -> Tensors:
    """Represent the gradient of each weight by two numbers, its norm and a projection."""
    found = {}
    for name, weight in model.named_parameters():
        gradient = torch.zeros(1).double() if weight.grad is None else weight.grad
        flat = gradient.flatten()
        projection = (flat * torch.cos(torch.arange(len(flat), dtype=torch.float64))).sum()
        found[name] = torch.stack((flat.norm(), projection)).float()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients(name, monkeypatch):
    """They are computed in float64, because in float32 sums whose terms cancel each other differ
    between processors.

    Dropout is replaced by a multiplication by the share that it keeps on average, which shows where
    dropout is applied and how strong it is, without being random.
    """
    monkeypatch.setattr(F, "dropout", dropout_without_chance)
    saved, kept = load(name)
    model = copy.deepcopy(saved).double().train()
    for case, inputs in cases(kept, is_training=True).items():
        if case in WINDOWS_OF_TOKENS.get(name, ()):
            continue
        model.zero_grad()
        inputs = {
            key: value.double() if value.is_floating_point() else value
            for key, value in inputs.items()
        }
        output = model(**rows_of(model, inputs))
        loss = loss_of(output, inputs, is_pooled=name.startswith("version_0_2"))
        loss.backward()

        wanted = part_of(kept, f"{case}.")
        found = norms_and_projections(model)
        if case == "training":
            gradients = part_of(kept, "gradient.")
        else:
            gradients = dict(zip(sorted(found), wanted.pop("gradients"), strict=True))
        assert_close(
            found,
            gradients,
            **TOLERANCE_OF_GRADIENTS,
            msg=lambda message, case=case: f"{case}: {message}",
        )
        if "loss" in wanted:
            expected = wanted.pop("loss")
            assert_close(loss.detach().float(), expected, **TOLERANCE, msg=case)
        compare(output, wanted, case)


@pytest.mark.parametrize("name", GENERATING)
def test_generated_tokens(name):
    saved, kept = load(name)
    prefixes = {key.partition(".")[0] for key in kept}
    groups = sorted(prefix.removesuffix("tokens") for prefix in prefixes if "tokens" in prefix)
    assert groups
    count = 8 if name.startswith("version_0_1") else 6
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    for group in groups:
        inputs = part_of(kept, f"{group}prompt.")
        for mode, wanted in part_of(kept, f"{group}tokens.").items():
            given = dict(inputs)
            if mode == "right":
                given["attention_mask"] = inputs["attention_mask"].flip(1)
            model = copy.deepcopy(saved)
            found = model.generate(**given, **options, **MODES[mode])
            assert found.equal(wanted), (group, mode)


@pytest.mark.parametrize("folder", TOKENIZERS, ids=lambda folder: folder.name)
def test_tokens(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kept = read_json(folder / "outputs.json")
    texts = kept["texts"]
    encoded = tokenizer(texts, return_offsets_mapping=True)
    assert encoded["input_ids"] == kept["input_ids"]
    offsets = [[list(span) for span in row] for row in encoded["offset_mapping"]]
    assert offsets == kept["offset_mapping"]
    assert tokenizer(texts[0], texts[1])["input_ids"] == kept["pair"]
    is_jieba = folder.name == "tokenizer-jieba"
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
    path = DATA / "version_0_1" / "default-masked-lm" / "config.json"
    written = read_json(path)
    assert "sparse_prediction" in written and "skip_logits" not in written
    config = hf_roformer_lite.RoFormerLiteConfig.from_dict({**written, "sparse_prediction": False})
    assert config.skip_logits is False and config.to_dict()["skip_logits"] is False
