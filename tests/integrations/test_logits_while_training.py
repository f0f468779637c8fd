"""Logits are skipped in training, unless a loop asks for them."""

import copy
import pickle

import numpy as np
import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from conftest import (
    assert_close,
    build,
    data_beside,
    gradients_of,
    random_ids,
    seq2seq_config,
    stack_config,
)
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from hf_roformer_lite import (
    RoFormerLiteForCausalLM,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForMaskedLM,
)
from hf_roformer_lite.model.losses import linear_cross_entropy

HEADS = {
    "mlm": lambda **fields: build(RoFormerLiteForMaskedLM, stack_config(**fields)),
    "causal": lambda **fields: build(RoFormerLiteForCausalLM, stack_config(**fields)),
    "pair": lambda **fields: build(RoFormerLiteForConditionalGeneration, pair_config(**fields)),
}
IDS = random_ids(4, 300)
LABELS = IDS.masked_fill(
    torch.rand(IDS.shape, generator=torch.Generator().manual_seed(1)) < 0.4, -100
)
MASK = torch.ones_like(IDS)
MASK[1, 200:] = 0
LABELS[1, 200:] = -100


def pair_config(**fields):
    config = seq2seq_config()
    for name, value in fields.items():
        setattr(config.decoder, name, value)
    return config


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", HEADS)
def test_skipped_and_computed_logits_teach_the_same(kind, smoothing):
    """Both ways have the same loss and gradients, with the number of items of a whole step.

    There are more labelled positions than the model computes at a time."""
    model = HEADS[kind]().double().train()
    found = []
    inputs = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS, "smoothing": smoothing}
    for skip_logits in (True, False):
        model.zero_grad()
        output = model(**inputs, skip_logits=skip_logits, num_items_in_batch=1000)
        assert isinstance(output.logits, torch.Tensor) != skip_logits
        output.loss.backward()
        found.append([output.loss, *gradients_of(model)])
    torch.testing.assert_close(*found)
    own = model(**inputs).loss
    targets = LABELS[:, 1:] if kind == "causal" else LABELS
    count = (targets != -100).sum()
    # The loss is a sum over labels, divided by the given number of items, or else by their count.
    torch.testing.assert_close(own * count, found[0][0] * 1000)


ROPE = data_beside(__file__)


@pytest.mark.parametrize("rope_type", ROPE)
def test_a_target_without_labels_at_its_end(rope_type):
    """Tables that depend on the length stay the same if no position after the last label needs to
    be computed. The target is longer than those that both tables were made for."""
    rope = {"rope_type": rope_type, "rope_theta": 1e4, **ROPE[rope_type]}
    model = HEADS["pair"](rope_parameters=rope, max_position_embeddings=16)
    ids = random_ids(2, 70)
    labels = ids.masked_fill(torch.arange(70) >= 12, -100)
    losses = [
        model(ids, decoder_input_ids=ids, labels=labels, skip_logits=skip_logits).loss
        for skip_logits in (True, False)
    ]
    assert_close(*losses)


@pytest.mark.parametrize("kind", HEADS)
def test_default_and_field(kind):
    for skip_logits in (True, False):
        model = HEADS[kind](skip_logits=skip_logits)
        # An evaluation reads the logits, so they are always computed there.
        assert model.eval()(IDS, labels=LABELS).logits is not None
        model.train()
        output = model(IDS, labels=LABELS)
        assert isinstance(output.logits, torch.Tensor) != skip_logits
        other = model(IDS, labels=LABELS, skip_logits=not skip_logits)
        assert isinstance(other.logits, torch.Tensor) == skip_logits
        assert len(model(IDS, labels=LABELS, skip_logits=False).logits) == len(IDS)


@pytest.mark.parametrize("kind", HEADS)
def test_reading_skipped_logits_says_how_to_get_them(kind):
    model = HEADS[kind]().train()
    output = model(IDS, labels=LABELS)
    in_float32 = convert_outputs_to_fp32(model.forward)(IDS, labels=LABELS)
    reading = (
        (AttributeError, lambda logits: logits.argmax(-1)),
        (TypeError, lambda logits: torch.argmax(logits, dim=-1)),
        (TypeError, lambda logits: F.cross_entropy(logits, LABELS)),
        (TypeError, lambda logits: logits[:, -1]),
        (TypeError, lambda logits: logits == IDS),
        (TypeError, lambda logits: 2 * logits),
        (TypeError, len),
        (TypeError, np.asarray),
    )
    for found in (output, pickle.loads(pickle.dumps(output)), in_float32):
        assert found.loss == found[0] == output.loss
        for error, read in reading:
            for logits in (found.logits, found["logits"], found[1]):
                with pytest.raises(error, match="skip_logits=False"):
                    read(logits)


@pytest.mark.parametrize("kind", HEADS)
def test_saved_structures_of_outputs_keep_their_class(kind):
    """Exported graphs find the class of their output by its name, even after a training."""
    head = HEADS[kind]()
    head.train()(IDS, labels=LABELS)
    output = head.eval()(IDS, labels=LABELS)
    leaves, structure = pytree.tree_flatten(output)
    saved = pytree.treespec_loads(pytree.treespec_dumps(structure))
    assert type(pytree.tree_unflatten(leaves, saved)) is type(output)


def test_hooks_on_the_head_run():
    model = HEADS["mlm"]().train()
    seen = []
    handles = [
        model.lm_head.register_forward_pre_hook(lambda *_: seen.append("before")),
        model.lm_head.register_forward_hook(lambda *_: seen.append("after")),
        model.lm_head.register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    for handle in handles:
        model(IDS, labels=LABELS).loss.backward()
        handle.remove()
    assert seen == "before after backward after backward backward".split()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["float32", "bfloat16 weights", "bfloat16 autocast"])
def test_loss_in_chunks_is_as_exact_as_that_of_all_logits(precision, smoothing):
    """Both losses and all gradients are about as far from those in float64, and the loss is in
    float32."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if precision == "bfloat16 weights" else torch.float32
    head = nn.Linear(64, 500).to(dtype)
    labels = torch.randint(0, 500, (1000,))
    # The states resemble those of a trained model, whose largest logits are those of the labels.
    states = (torch.randn(1000, 64) + 8 * head.weight.float()[labels]).to(dtype).detach()

    def all_logits(states, head):
        logits = head(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

    def in_chunks(states, head):
        return linear_cross_entropy(states, head, labels, label_smoothing=smoothing)

    def loss_and_gradients(loss_of, states, head):
        head.zero_grad()
        states = states.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in precision):
            loss = loss_of(states, head)
        (loss / len(labels)).backward()
        return [loss.detach(), states.grad, head.weight.grad, head.bias.grad]

    exact = loss_and_gradients(all_logits, states.double(), copy.deepcopy(head).double())
    usual = loss_and_gradients(all_logits, states, head)
    found = loss_and_gradients(in_chunks, states, head)
    assert found[0].dtype == torch.float32
    for own, other, expected in zip(found, usual, exact, strict=True):
        bound = 1.5 * (other.double() - expected).norm() + 1e-6 * expected.norm()
        assert (own.double() - expected).norm() <= bound
