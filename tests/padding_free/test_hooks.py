"""Hooks of users see and change the batch that they would get from a stock model."""

from typing import Any

import pytest
import torch
from comparisons import (
    assert_close,
    assert_same_gradients,
    assert_same_outputs,
    batch_for,
    build,
    inputs_for,
    pair,
)
from conftest import mask_of, random_ids
from tiny_models import SIZES
from torch.nn import functional as F

from hf_roformer_lite import padding_free


@pytest.mark.parametrize(
    "kind", ["in place", "in place as data", "retained gradient", "hook of the gradient"]
)
def test_hooks_of_users_on_layers(kind):
    """Hooks see and change the batch that a layer returns, although the next layer does not need
    it."""
    found = []
    for model in pair("bert mlm"):
        seen = []

        def look(layer, args, output, seen=seen):
            if kind == "in place":
                output.add_(0.1)
            elif kind == "in place as data":
                output.data += 0.1
            elif kind == "retained gradient":
                output.retain_grad()
                seen.append(output)
            else:
                output.register_hook(lambda gradient: gradient * 0)

        model.bert.encoder.layer[0].register_forward_hook(look)
        batch = batch_for("bert mlm")
        with torch.set_grad_enabled("in place" not in kind):
            outputs = model(**batch)
        if "in place" in kind:
            found.append([outputs.loss])
            continue
        outputs.loss.backward()
        real = batch["attention_mask"].bool()
        weight = model.bert.embeddings.word_embeddings.weight
        found.append([outputs.loss, weight.grad, *(output.grad[real] for output in seen)])
    assert_close(*found)


def test_gradients_of_states_that_were_seen():
    """They are asked for afterwards, as attribution to layers does, or passed on to a head."""
    found = []
    for model in pair("bert tokens"):
        seen = []
        layer = model.bert.encoder.layer[0]
        layer.register_forward_hook(lambda layer, args, output, seen=seen: seen.append(output))
        batch = batch_for("bert tokens")
        labels = batch["labels"]
        of_layer = torch.autograd.grad(model(**batch).loss, seen)
        del batch["labels"]
        states = model.bert(**batch).last_hidden_state
        loss = F.cross_entropy(model.classifier(states).flatten(0, 1), labels.flatten())
        of_head = torch.autograd.grad(loss + states[labels != -100].square().mean(), states)
        found.append([gradient[labels != -100] for gradient in (*of_layer, *of_head)])
    assert_close(*found)


def ablate_first(states: torch.Tensor) -> torch.Tensor:
    """Replace the state of the first token of every row by zeros, as an experiment may do."""
    return torch.cat([states[:, :1] * 0, states[:, 1:]], dim=1)


HOOKS: dict[str, tuple[str, str, Any]] = {
    "before a layer": (
        "bert.encoder.layer.1",
        "register_forward_pre_hook",
        lambda module, args: (ablate_first(args[0]), *args[1:]),
    ),
    "after a layer": (
        "bert.encoder.layer.0",
        "register_forward_hook",
        lambda module, args, output: ablate_first(output),
    ),
    "within a layer": (
        "bert.encoder.layer.0.intermediate",
        "register_forward_hook",
        lambda module, args, output: ablate_first(output),
    ),
    "gradient within a layer": (
        "bert.encoder.layer.0.intermediate.dense",
        "register_full_backward_hook",
        lambda module, grads, outputs: (ablate_first(grads[0]),),
    ),
    "before the head": (
        "bert",
        "register_forward_hook",
        lambda module, args, output: setattr(output, "last_hidden_state", ablate_first(output[0])),
    ),
    "within the head": (
        "cls.predictions.transform.dense",
        "register_forward_hook",
        lambda module, args, output: ablate_first(output),
    ),
}


def test_a_module_whose_hook_is_older_than_the_last_forward_pass():
    free = padding_free(build("BertModel"))
    batch = inputs_for("bert mlm")
    seen = []
    module = torch.nn.Linear(SIZES["hidden_size"], SIZES["hidden_size"])
    module.register_forward_hook(lambda module, args, output: seen.append(output.shape[:2]))
    free(**batch)
    free.encoder.layer[0].attention.output.dense = module
    free(**batch)
    assert seen == [batch["input_ids"].shape]


@pytest.mark.parametrize("place", HOOKS)
@pytest.mark.parametrize("is_first", [True, False])
def test_hooks_that_know_rows(place, is_first):
    """Hooks of users get the batch, whether they are registered before `padding_free` or after it.

    A hook within a layer makes the layer compute padding, and one within the head, or before it,
    makes the head compute padding."""
    path, register, hook = HOOKS[place]
    stock = build("bert mlm")
    free = build("bert mlm")
    if not is_first:
        padding_free(free)
    for model in (stock, free):
        getattr(model.get_submodule(path), register)(hook)
    if is_first:
        padding_free(free)
    assert_same_gradients(free, stock, batch_for("bert mlm"))


@pytest.mark.parametrize("kind", ["first of its layer", "of all modules"])
def test_hooks_that_would_get_a_flat_row(kind):
    found = []
    for model in pair("bert tokens"):
        batch = batch_for("bert tokens")
        real = batch["attention_mask"].bool()

        def ablate(module, args, output):
            is_layer = isinstance(output, torch.Tensor) and type(module).__name__ == "BertLayer"
            return ablate_first(output) if is_layer else None

        if kind == "first of its layer":
            layer = model.bert.encoder.layer[0]
            handle = layer.register_forward_hook(ablate, prepend=True)
        else:
            handle = torch.nn.modules.module.register_module_forward_hook(ablate)
        with torch.no_grad():
            found.append(model(**batch).logits[real])
        handle.remove()
    assert_close(*found)


def test_hooks_in_a_later_layer_of_t5():
    """The first layer is flat, and the layer with the hook gets its position bias as a batch."""
    stock, free = pair("T5EncoderModel")
    free.encoder.block[1].layer[0].SelfAttention.q.register_forward_hook(lambda *_: None)
    mask = mask_of((9, 5, 3), 16)
    inputs = {"input_ids": random_ids(*mask.shape), "attention_mask": mask}
    assert_same_outputs(free, stock, inputs)
