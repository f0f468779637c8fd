"""Published numbers: rotary and sinusoidal positions, and attention written out by hand."""

import torch
from conftest import build, stack_config

from hf_roformer_lite import RoFormerLiteModel
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteRotaryEmbedding, rotate, sinusoidal_positions


def test_rotary_numbers():
    frequencies = RoFormerLiteRotaryEmbedding(stack_config(head_dim=8)).inv_freq
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1, 0.01, 0.001]))
    half = stack_config(head_dim=8, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5})
    torch.testing.assert_close(RoFormerLiteRotaryEmbedding(half).inv_freq, torch.tensor([1.0, 0.01]))
    rotary = RoFormerLiteRotaryEmbedding(stack_config(head_dim=4))
    cos, sin = rotary(torch.zeros(1, dtype=torch.float64), torch.tensor([3]))
    turned = rotate(torch.ones(1, 1, 4, dtype=torch.float64), cos, sin).flatten()
    expected = torch.tensor([-1.1311125046, 0.9695545335, -0.8488724885, 1.0295455340], dtype=torch.float64)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-10)


def test_sinusoidal_numbers():
    table = sinusoidal_positions(torch.tensor([1, 99]), 20, torch.float64)[:, 4:8]
    expected = torch.tensor(
        [
            [0.1578266401, 0.9874668357, 0.0630538780, 0.9980101244],
            [0.0175197662, -0.9998465171, -0.0366993538, 0.9993263518],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-10)


def test_one_layer_written_out():
    """A pre-norm layer in plain formulas, from the weights of the model."""
    config = stack_config(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=6)
    model = build(RoFormerLiteModel, config).double()
    weights = {name: tensor for name, tensor in model.state_dict().items()}
    ids = torch.tensor([[7, 8, 9]])

    def linear(states, name):
        return states @ weights[f"layers.0.{name}.weight"].T + weights[f"layers.0.{name}.bias"]

    def norm(states, name):
        centred = states - states.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + config.norm_eps).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def turned(states, position):
        first, second = states[:3], states[3:]
        angles = position * 10000.0 ** (-torch.arange(3, dtype=torch.float64) / 3)
        rotated = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.cat(rotated)

    states = weights["embeddings.word_embeddings.weight"][ids[0]] * 32**0.5
    normed = norm(states, "layers.0.self_attn_norm")
    query, key, value = (linear(normed, f"self_attn.{name}_proj") for name in "qkv")
    heads = []
    for head in range(2):
        queries = torch.stack([turned(query[p, head * 6 : head * 6 + 6], p) for p in range(3)])
        keys = torch.stack([turned(key[p], p) for p in range(3)])
        heads.append((queries @ keys.T / 6**0.5).softmax(-1) @ value)
    states = states + linear(torch.cat(heads, -1), "self_attn.o_proj")
    inner = linear(norm(states, "layers.0.mlp_norm"), "mlp.up_proj")
    states = states + linear(torch.nn.functional.gelu(inner), "mlp.down_proj")
    torch.testing.assert_close(model(ids)[0][0], norm(states, "final_norm"), rtol=0, atol=1e-12)
