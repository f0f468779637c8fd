"""Rotary and sinusoidal positions.

Rotary position embedding (Su et al. 2021, arXiv:2104.09864) turns pairs of channels of queries and keys by an angle
that grows with the position, so that their product depends on the distance alone. The pairing is half-split everywhere
in this package, as in Llama: channel j turns with channel j + rotary_dim / 2. Checkpoints with interleaved pairs
(2j, 2j + 1) are permuted when they are converted.
"""

import copy

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update

from .configuration_roformer_lite import RoFormerLiteConfig
from .fast_linear import autocast_dtype


class RoFormerLiteRotaryEmbedding(nn.Module):
    """Cosines and sines of every position, for all layers at once.

    The names of the class and of its buffers are those by which transformers fills rotary tables after loading
    (`PreTrainedModel._init_weights`); the buffers are never saved.
    """

    def __init__(self, config: RoFormerLiteConfig):
        super().__init__()
        self.config = config
        self.rope_type: str = config.rope_parameters["rope_type"]
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        compute = ROPE_INIT_FUNCTIONS.get(self.rope_type, self.compute_default_rope_parameters)
        inv_freq, self.attention_scaling = compute(config)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(
        config: RoFormerLiteConfig, device: torch.device | None = None, dtype: torch.dtype = torch.float32, **kwargs
    ) -> tuple[torch.Tensor, float]:
        """The angle of each pair for one step of the position, theta^(-2j / rotary_dim), and a scaling of 1."""
        rotary_dim = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotary_dim, 2, dtype=dtype, device=device) / rotary_dim
        return config.rope_parameters["rope_theta"] ** -exponents, 1.0

    def _apply(self, fn, recurse: bool = True):
        # `model.to(torch.bfloat16)` moves the frequencies but must not round them.
        return super()._apply(lambda tensor: fn(tensor) if tensor.is_meta else tensor.to(fn(tensor).device), recurse)

    @torch.no_grad()
    @dynamic_rope_update
    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines, each `(*position_ids.shape, 1, rotary_dim)`, in the dtype of queries and keys.

        The first half of the sines is negated, so that `rotate` need not negate half of the states.
        """
        # At least float32, whatever the model's dtype: bfloat16 cannot tell neighbouring positions apart.
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        inv_freq = self.inv_freq.to(position_ids.device)
        if dtype == torch.float64 and self.rope_type == "default":
            inv_freq, _ = self.compute_default_rope_parameters(self.config, position_ids.device, dtype)
        angles = position_ids[..., None, None].to(dtype) * torch.cat((-inv_freq, inv_freq)).to(dtype)
        cos, sin = angles.cos(), angles.sin()  # (..., 1, rotary_dim)
        if self.attention_scaling != 1:
            cos, sin = cos * self.attention_scaling, sin * self.attention_scaling
        # Under autocast tables of float32 would make float32 of queries and keys again.
        dtype = autocast_dtype(hidden_states.device) or hidden_states.dtype
        return cos.to(dtype), sin.to(dtype)


def make_rotary_embedding(config: RoFormerLiteConfig) -> RoFormerLiteRotaryEmbedding | nn.ModuleDict:
    """The tables of a stack; by the type of layer where `rope_parameters` are."""
    if None in (of_layers := config.rope_parameters_of_layers()):
        return RoFormerLiteRotaryEmbedding(config)
    tables = nn.ModuleDict()
    for kind, parameters in of_layers.items():
        own = copy.copy(config)
        own.rope_parameters = parameters
        tables[kind] = RoFormerLiteRotaryEmbedding(own)
    return tables


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first rotary_dim channels of `states` `(..., heads, head_dim)` by tables `(..., 1, rotary_dim)`."""
    rotary_dim = cos.shape[-1]
    if rotary_dim < states.shape[-1]:
        rotated = rotate(states[..., :rotary_dim], cos, sin)
        return torch.cat((rotated, states[..., rotary_dim:]), dim=-1)
    halves = states.chunk(2, dim=-1)
    return torch.cat(halves[::-1], dim=-1).mul_(sin).addcmul_(states, cos)


def sinusoidal_positions(position_ids: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Position vectors of Vaswani et al. 2017, section 3.5, `(*position_ids.shape, width)`.

    Channel 2i is sin(p · 10000^(-2i / width)), channel 2i + 1 the cosine of the same angle.
    """
    compute_dtype = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, width, 2, device=position_ids.device, dtype=compute_dtype) / width
    angles = position_ids[..., None].to(compute_dtype) * 10000.0**-exponents  # (..., width / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)  # (..., width)
