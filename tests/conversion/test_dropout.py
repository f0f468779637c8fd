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
from hf_roformer_lite.conversion.verification import comparable_outputs, random_inputs

ATTEND = F.scaled_dot_product_attention


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
    inputs = random_inputs(model, converter.needs_full_rows(model.config))
    with torch.no_grad(), factors_for_dropout(reference, model):
        theirs = comparable_outputs(converter.run_reference(reference, inputs), inputs)
        ours = comparable_outputs(model(**inputs), inputs)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["torch-encoder", "torch-decoder", "torch-transformer"])
@pytest.mark.parametrize("dropout", [{}, {"dropout": 0.0}, {"dropout": 0.3}], ids=str)
def test_layers_of_torch(name, dropout):
    for case in CASES[name]:
        assert_same_in_training(name, {**case, **dropout})


def dropouts(name):
    """Their fields that are probabilities of a dropout, with another value each."""
    fields = [field for field in CONVERTERS[name].config_class().to_dict() if "dropout" in field]
    values = {field: 0.1 * number for number, field in enumerate(fields, 1) if field != "token_dropout"}
    if name.startswith("modernbert"):  # has it behind the attention, too, where there is no place for it here
        values["attention_dropout"] = 0.0
    return values


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name):
    """Every head, with every dropout that its config has."""
    for case in {case["architectures"][0]: case for case in CASES[name]}.values():
        assert_same_in_training(name, {**case, **dropouts(name)})
