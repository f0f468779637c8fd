"""Tests of learned positions, and of RoPE tables that depend on the length."""

import pytest
import torch
from conftest import assert_close, build, random_ids, seq2seq_config, stack_config

import hf_roformer_lite as rl

IDS = random_ids(2, 70)


def test_learned_positions_end_with_their_table():
    model = build(rl.RoFormerLiteModel, stack_config("learned-typed"))
    with pytest.raises(ValueError, match="max_position_embeddings"):
        model(IDS)


ROPE = {
    "dynamic": {"factor": 4.0},
    "longrope": {
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0, 1.5, 2.0, 2.5],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
    },
}


@pytest.mark.parametrize("rope_type", ROPE)
def test_a_target_without_labels_at_its_end(rope_type):
    """Tables that depend on the length stay the same if no position after the last label needs to
    be computed."""
    config = seq2seq_config()
    stack = config.decoder
    stack.rope_parameters = {"rope_type": rope_type, "rope_theta": 1e4, **ROPE[rope_type]}
    stack.max_position_embeddings = 16
    num_pairs = stack.head_dim // 2
    for name in ("short_factor", "long_factor"):
        if name in stack.rope_parameters:
            stack.rope_parameters[name] = ROPE[rope_type][name][:num_pairs]
    model = build(rl.RoFormerLiteForConditionalGeneration, config)
    labels = IDS.masked_fill(torch.arange(IDS.shape[1]) >= 12, -100)
    assert IDS.shape[1] > 32
    losses = [
        model(IDS, decoder_input_ids=IDS, labels=labels, skip_logits=skip_logits).loss
        for skip_logits in (True, False)
    ]
    assert_close(*losses)
