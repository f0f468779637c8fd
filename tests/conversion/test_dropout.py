"""Converted torch layers drop out where torch's do."""

import pytest
import torch
from conversion_cases import CASES, source_weights
from torch import nn
from torch.nn import functional as F

from hf_roformer_lite.conversion import CONVERTERS, convert


@pytest.mark.parametrize("name", ["torch-encoder", "torch-decoder", "torch-transformer"])
@pytest.mark.parametrize("dropout", [{}, {"dropout": 0.0}, {"dropout": 0.3}], ids=str)
def test_places_of_dropout(name, dropout, monkeypatch):
    """Every dropout is replaced by its probability as a factor: training then gives the same numbers on both sides
    if and only if each stands where it stood."""
    attend = F.scaled_dot_product_attention

    def scaled_attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **kwargs):
        return attend(query, key, value, attn_mask, 0.0, is_causal, **kwargs) * (1 - dropout_p / 2)

    monkeypatch.setattr(F, "scaled_dot_product_attention", scaled_attention)
    for case in CASES[name]:
        config = {**case, **dropout}
        reference, weights = source_weights(name, config)
        model = convert(name, weights, config).train()
        for module in (*reference.train().modules(), *model.modules()):
            if isinstance(module, nn.Dropout):
                module.forward = lambda states, p=module.p: states * (1 - p)
        converter = CONVERTERS[name]
        inputs = converter.random_inputs(model, torch.Generator().manual_seed(0))
        theirs, ours = converter.run_reference(reference, inputs), converter.run_ours(model, inputs)
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, rtol=0, atol=1e-5)
