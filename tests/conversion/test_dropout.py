"""Converted models drop out where the originals do."""

from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from conversion_cases import CASES, source_weights
from test_there_and_back import FAMILIES
from torch import nn
from torch.nn import functional as F

from hf_roformer_lite.conversion import CONVERTERS, convert

ATTEND = F.scaled_dot_product_attention
PROBABILITY = 0.3


@contextmanager
def factors_for_dropout(*models):
    """While it lasts, every dropout is a factor, its probability of keeping a number: training then gives the same
    numbers on both sides if and only if each dropout stands where it stood."""

    def scaled_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        return ATTEND(query, key, value, attn_mask, 0.0, is_causal, **kwargs) * (1 - dropout_p)

    def scaled(states, p=0.5, training=True, inplace=False):
        return states * (1 - p) if training else states

    for module in (module for model in models for module in model.train().modules()):
        if isinstance(module, nn.Dropout):
            module.forward = lambda states, p=module.p: states * (1 - p)
    with (
        mock.patch.object(F, "scaled_dot_product_attention", scaled_attention),
        mock.patch.object(F, "dropout", scaled),
    ):
        yield


def assert_same_in_training(name, config):
    reference, weights = source_weights(name, config)
    model, converter = convert(name, weights, config), CONVERTERS[name]
    inputs = converter.random_inputs(model, torch.Generator().manual_seed(0))
    with torch.no_grad(), factors_for_dropout(reference, model):
        theirs, ours = converter.run_reference(reference, inputs), converter.run_ours(model, inputs)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["torch-encoder", "torch-decoder", "torch-transformer"])
@pytest.mark.parametrize("dropout", [{}, {"dropout": 0.0}, {"dropout": 0.3}], ids=str)
def test_layers_of_torch(name, dropout):
    for case in CASES[name]:
        assert_same_in_training(name, {**case, **dropout})


def dropouts(name):
    """Their fields that are probabilities of a dropout."""
    fields = CONVERTERS[name].config_class().to_dict()
    return sorted(field for field in fields if "dropout" in field and field != "token_dropout")


PLACES = [(name, field) for name in FAMILIES for field in dropouts(name)]


@pytest.mark.parametrize(("name", "field"), PLACES, ids=["-".join(place) for place in PLACES])
def test_places_in_families(name, field):
    """One dropout at a time, in every head."""
    nothing = dict.fromkeys(dropouts(name), 0.0)
    for case in CASES[name]:
        assert_same_in_training(name, {**case, **nothing, field: PROBABILITY})
