"""torch.nn.TransformerEncoder, TransformerDecoder and Transformer, which take vectors.

Example:
    >>> config = {"d_model": 512, "nhead": 8, "num_layers": 6, "norm_first": True}
    >>> model = convert("torch-encoder", torch_encoder.state_dict(), config)
    >>> model(inputs_embeds=vectors, attention_mask=~src_key_padding_mask).last_hidden_state

These modules have no positions. Our decoders are always causal; torch's are so only with
`tgt_mask`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig, RoFormerLiteSeq2SeqModel

from .converter import CLASSIC_FIELDS, Converter, SourceConfig, Tensors, read_fields
from .weight_map import CHUNK, ConversionError, Rules, WeightRule, in_layers

LAYER_FIELDS = (
    "d_model",
    "nhead",
    "dim_feedforward",
    "dropout",
    "activation",
    "layer_norm_eps",
    "norm_first",
    "bias",
)
ACTIVATIONS = ("relu", "gelu")


def attention_rules(theirs: str, ours: str) -> Rules:
    """The rules of `nn.MultiheadAttention`, which keeps queries, keys and values in one matrix."""
    rules = (
        WeightRule("in_proj_*", ("q_proj.*", "k_proj.*", "v_proj.*"), CHUNK),
        WeightRule("out_proj.*", "o_proj.*"),
    )
    return tuple(
        rule.prefixed(f"layers.{{i}}.{theirs}.", f"layers.{{i}}.{ours}.") for rule in rules
    )


def stack_rules(is_decoder: bool) -> Rules:
    """The rules of an encoder or a decoder."""
    branches = ["self_attn", "mlp"]
    if is_decoder:
        branches.insert(1, "cross_attn")
    names = {"linear1.*": "mlp.up_proj.*", "linear2.*": "mlp.down_proj.*"}
    for number, branch in enumerate(branches, start=1):
        names[f"norm{number}.*"] = f"{branch}_norm.*"
    return (
        *attention_rules("self_attn", "self_attn"),
        *attention_rules("multihead_attn", "cross_attn"),
        *in_layers(names),
        WeightRule("norm.*", "final_norm.*"),
    )


def stack_config(
    source_config: SourceConfig, num_layers: int, is_decoder: bool, final_norm: bool
) -> RoFormerLiteConfig:
    """Our config for a stack of torch's layers."""
    activation = source_config.get("activation", "relu")
    bias = source_config.get("bias", True)
    dropout = source_config.get("dropout", 0.1)
    is_pre_norm = source_config.get("norm_first", False)
    if activation not in ACTIVATIONS:
        raise ConversionError(f"activation={activation!r}: must be one of {', '.join(ACTIVATIONS)}")
    return RoFormerLiteConfig(
        **CLASSIC_FIELDS,
        vocab_size=0,
        hidden_size=source_config["d_model"],
        num_hidden_layers=num_layers,
        num_attention_heads=source_config["nhead"],
        intermediate_size=source_config.get("dim_feedforward", 2048),
        hidden_act=activation,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        mlp_dropout=dropout,
        attention_bias=bias,
        mlp_bias=bias,
        norm_bias=bias,
        norm_placement="pre" if is_pre_norm else "post",
        norm_eps=source_config.get("layer_norm_eps", 1e-5),
        final_norm=final_norm,
        position_embedding_type="none",
        is_decoder=is_decoder,
        add_cross_attention=is_decoder,
    )


def decoder_masks(mask: torch.Tensor, memory_mask: torch.Tensor) -> Tensors:
    """The masks of torch's decoders for our padding masks `(B, L)`. In torch's masks, True hides a
    token."""
    length = mask.shape[1]
    return {
        "tgt_mask": torch.ones(length, length, dtype=torch.bool).triu(1),
        "tgt_key_padding_mask": ~mask,
        "memory_key_padding_mask": ~memory_mask,
    }


class TorchEncoder(Converter):
    """Config: the arguments of `nn.TransformerEncoderLayer`, num_layers, and norm (whether a norm
    follows the last layer; if there are weights, they determine it)."""

    name = "torch-encoder"
    is_decoder = False
    rules = stack_rules(is_decoder=False)

    def complete_config(
        self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        return dict(source_config) | {"norm": "norm.weight" in state_dict}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        required = ("num_layers", "d_model", "nhead")
        known = (*LAYER_FIELDS, "batch_first", "norm")
        num_layers, _, _ = read_fields(source_config, self.name, required, known)
        has_final_norm = source_config.get("norm", False)
        return stack_config(source_config, num_layers, self.is_decoder, has_final_norm)

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        num_layers = source_config["num_layers"]
        norm = None
        if source_config.get("norm"):
            eps = source_config.get("layer_norm_eps", 1e-5)
            bias = source_config.get("bias", True)
            norm = nn.LayerNorm(source_config["d_model"], eps, bias=bias)
        fields = {field: source_config[field] for field in LAYER_FIELDS if field in source_config}
        if self.is_decoder:
            layer = nn.TransformerDecoderLayer(**fields, batch_first=True)
            return nn.TransformerDecoder(layer, num_layers, norm)
        layer = nn.TransformerEncoderLayer(**fields, batch_first=True)
        return nn.TransformerEncoder(layer, num_layers, norm, enable_nested_tensor=False)

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> torch.Tensor:
        states = inputs["inputs_embeds"]
        mask = inputs["attention_mask"]
        if not self.is_decoder:
            return reference(states, src_key_padding_mask=~mask)
        masks = decoder_masks(mask, inputs["encoder_attention_mask"])
        return reference(states, inputs["encoder_hidden_states"], **masks)


class TorchDecoder(TorchEncoder):
    """Like the encoder, for `nn.TransformerDecoder`."""

    name = "torch-decoder"
    is_decoder = True
    rules = stack_rules(is_decoder=True)


class TorchTransformer(Converter):
    """Config: the arguments of `nn.Transformer`."""

    name = "torch-transformer"
    becomes = RoFormerLiteSeq2SeqModel
    rules = tuple(
        rule.prefixed(side, side)
        for side, is_decoder in (("encoder.", False), ("decoder.", True))
        for rule in stack_rules(is_decoder)
    )

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        known = (*LAYER_FIELDS, "num_encoder_layers", "num_decoder_layers", "batch_first")
        read_fields(source_config, self.name, required=(), known=known)
        fields = {"d_model": 512, "nhead": 8, **source_config}
        encoder_layers = source_config.get("num_encoder_layers", 6)
        decoder_layers = source_config.get("num_decoder_layers", 6)
        return RoFormerLiteSeq2SeqConfig(
            encoder=stack_config(fields, encoder_layers, is_decoder=False, final_norm=True),
            decoder=stack_config(fields, decoder_layers, is_decoder=True, final_norm=True),
        )

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        return nn.Transformer(**{**source_config, "batch_first": True})

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> torch.Tensor:
        masks = decoder_masks(inputs["decoder_attention_mask"], inputs["attention_mask"])
        masks["src_key_padding_mask"] = ~inputs["attention_mask"]
        return reference(inputs["inputs_embeds"], inputs["decoder_inputs_embeds"], **masks)


CONVERTERS = (TorchEncoder(), TorchDecoder(), TorchTransformer())
