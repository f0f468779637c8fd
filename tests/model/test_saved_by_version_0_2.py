"""Tests that models of version 0.2 can be loaded, and give the same outputs, gradients and tokens.

Each folder of `data/version_0_2` contains a model as that version wrote it, and the tensors of
`outputs.safetensors`. Their names are these:

* `input.…` are the arguments of the padded batch and `padded.…` its outputs. `CASE_input.…` and
  `CASE.…` are those of other cases, such as `packed`. A tensor without dimensions is a number.
  Cases whose name begins with `training` were computed in training mode.
* `label.…` are the labels of the padded batch, and `training.…` and `gradient.WEIGHT` the results
  of the training step. `CASE.gradients` `(weights, 2)` has the weights in the order of their names.
* `prompt.…` are arguments of `generate` and `tokens.MODE` are its results. `GROUP_prompt.…` and
  `GROUP_tokens.MODE` are those of other prompts.

Outputs of padding are NaN, because nobody reads them.
"""

import copy
import functools
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
from transformers.utils import ModelOutput

SAVED = Path(__file__).parent / "data" / "version_0_2"
MODELS = sorted(path.parent.name for path in SAVED.glob("*/outputs.safetensors"))
GENERATING = [name for name in MODELS if name.endswith(("causal-lm", "pair"))]
OPTIONS = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
MODES = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "static": {"cache_implementation": "static"},
    "no_cache": {"use_cache": False},
}
# Each test copies the models that it changes.
load_once = functools.lru_cache(maxsize=None)(load)


def cases(kept: dict[str, torch.Tensor], is_training: bool) -> dict[str, dict[str, torch.Tensor]]:
    """Map the name of each case, in evaluation or in training, to the arguments of the model."""
    prefixes = {name.partition(".")[0] for name in kept}
    names = [prefix.removesuffix("_input") for prefix in prefixes if prefix.endswith("_input")]
    found = {name: part(kept, f"{name}_input.") for name in names}
    found["padded"] = part(kept, "input.")
    found["training"] = found["padded"] | part(kept, "label.")
    return {
        name: found[name] for name in sorted(found) if name.startswith("training") == is_training
    }


def numbers_as_python(inputs: dict[str, torch.Tensor]) -> dict[str, object]:
    return {key: value if value.ndim else value.item() for key, value in inputs.items()}


def compare(output: ModelOutput, wanted: dict[str, torch.Tensor], case: str) -> None:
    """Compare the outputs at real tokens."""
    for key, tensor in wanted.items():
        found = output[key]
        if isinstance(found, tuple):
            # Hidden states and attentions have one tensor for each layer.
            found = torch.stack(found)
        found = found.detach().float()
        is_real = ~tensor.isnan()
        assert found.shape == tensor.shape, (case, key)
        torch.testing.assert_close(
            found[is_real],
            tensor[is_real],
            **TOLERANCE,
            msg=lambda message, key=key: f"{case}.{key}: {message}",
        )


def loss_of(output: ModelOutput, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a model, or the sum of its squared outputs if it has no head."""
    if "loss" in output:
        return output.loss
    states = output.last_hidden_state
    is_pair = "decoder_input_ids" in inputs
    mask = inputs.get("decoder_attention_mask" if is_pair else "attention_mask")
    if mask is not None:
        states = states[mask != 0]
    loss = states.square().sum()
    if output.get("pooler_output") is not None:
        loss = loss + output.pooler_output.square().sum()
    return loss


def dropout_without_chance(states, p=0.5, training=True, inplace=False):
    return states * (1 - p) if training else states


@pytest.mark.parametrize("name", MODELS)
def test_outputs(name):
    saved, kept = load_once(SAVED / name)
    for case, inputs in cases(kept, is_training=False).items():
        # A call may change the frequencies of RoPE, and so the outputs of the next one.
        model = copy.deepcopy(saved)
        if case == "eager":
            model.set_attn_implementation("eager")
        with torch.no_grad():
            output = model(**numbers_as_python(inputs))
        compare(output, part(kept, f"{case}."), case)


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients(name, monkeypatch):
    """The losses and gradients are those of version 0.2.

    They are computed in float64, because in float32 sums whose terms cancel each other differ
    between processors. Dropout is replaced by a multiplication by the share that it keeps on
    average, which shows where dropout is applied and how strong it is, without being random.
    """
    monkeypatch.setattr(F, "dropout", dropout_without_chance)
    saved, kept = load_once(SAVED / name)
    model = copy.deepcopy(saved).double().train()
    for case, inputs in cases(kept, is_training=True).items():
        model.zero_grad()
        inputs = in_float64(inputs)
        output = model(**numbers_as_python(inputs))
        loss = loss_of(output, inputs)
        loss.backward()

        wanted = part(kept, f"{case}.")
        found = norms_and_projections(model)
        if case == "training":
            gradients = part(kept, "gradient.")
        else:
            gradients = dict(zip(sorted(found), wanted.pop("gradients"), strict=True))
        assert found.keys() == gradients.keys()
        for key, gradient in gradients.items():
            torch.testing.assert_close(
                found[key], gradient, **TOLERANCE_OF_GRADIENTS, msg=f"{case}, gradient of {key}"
            )
        torch.testing.assert_close(loss.detach().float(), wanted.pop("loss"), **TOLERANCE, msg=case)
        compare(output, wanted, case)
        assert ("logits" in wanted) == (output.get("logits") is not None), case


@pytest.mark.parametrize("name", GENERATING)
def test_generated_tokens(name):
    saved, kept = load_once(SAVED / name)
    prefixes = {key.partition(".")[0] for key in kept}
    groups = sorted(prefix.removesuffix("tokens") for prefix in prefixes if "tokens" in prefix)
    assert groups
    for group in groups:
        inputs = part(kept, f"{group}prompt.")
        for mode, wanted in part(kept, f"{group}tokens.").items():
            model = copy.deepcopy(saved)
            found = model.generate(**inputs, **OPTIONS, **MODES[mode])
            assert found.equal(wanted), (group, mode)
