"""torch.nn.TransformerEncoder, TransformerDecoder and Transformer. They take vectors.

Example:
    >>> config = {"d_model": 512, "nhead": 8, "dim_feedforward": 2048, "num_layers": 6, "norm_first": True}
    >>> model = convert("torch-encoder", torch_encoder.state_dict(), config)
    >>> model(inputs_embeds=vectors, attention_mask=~src_key_padding_mask).last_hidden_state

These modules have no positions. Our decoders are always causal, where torch's take `tgt_mask`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig, RoFormerLiteSeq2SeqModel
from roformer_lite.errors import InputError

from .converter import (
    CLASSIC_FIELDS,
    Converter,
    SourceConfig,
    Tensors,
    refuse_unknown_fields,
    require_fields,
)
from .vector_converter import VectorConverter
from .weight_map import WeightMap, WeightRule
from .weight_operations import Chunk

LAYER_FIELDS = ("d_model", "nhead", "dim_feedforward", "dropout", "activation", "layer_norm_eps", "norm_first", "bias")
ACTIVATIONS = ("relu", "gelu")


def attention_rules(theirs: str, ours: str) -> tuple[WeightRule, ...]:
    """Rules of `nn.MultiheadAttention`, which keeps queries, keys and values in one matrix."""
    projections = tuple(f"layers.{{i}}.{ours}.{side}_proj" for side in "qkv")
    in_proj = (
        WeightRule(f"layers.{{i}}.{theirs}.in_proj_{part}", tuple(f"{name}.{part}" for name in projections), Chunk())
        for part in ("weight", "bias")
    )
    return (*in_proj, WeightRule(f"layers.{{i}}.{theirs}.out_proj.*", f"layers.{{i}}.{ours}.o_proj.*"))


def stack_rules(is_decoder: bool) -> tuple[WeightRule, ...]:
    """Rules of an encoder or a decoder."""
    branches = ("self_attn", "cross_attn", "mlp") if is_decoder else ("self_attn", "mlp")
    return (
        *attention_rules("self_attn", "self_attn"),
        *attention_rules("multihead_attn", "cross_attn"),
        WeightRule("layers.{i}.linear1.*", "layers.{i}.mlp.up_proj.*"),
        WeightRule("layers.{i}.linear2.*", "layers.{i}.mlp.down_proj.*"),
        *(WeightRule(f"layers.{{i}}.norm{k}.*", f"layers.{{i}}.{name}_norm.*") for k, name in enumerate(branches, 1)),
        WeightRule("norm.*", "final_norm.*"),
    )


def stack_config(
    source_config: SourceConfig, num_layers: int, is_decoder: bool, final_norm: bool
) -> RoFormerLiteConfig:
    """Our config for a stack of torch's layers."""
    width, heads = require_fields(source_config, "torch", "d_model", "nhead")
    activation, bias = source_config.get("activation", "relu"), source_config.get("bias", True)
    dropout = source_config.get("dropout", 0.1)
    if activation not in ACTIVATIONS:
        raise InputError(f"activation={activation!r}: must be one of {', '.join(ACTIVATIONS)}")
    return RoFormerLiteConfig(
        **CLASSIC_FIELDS,
        vocab_size=0,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        intermediate_size=source_config.get("dim_feedforward", 2048),
        hidden_act=activation,
        hidden_dropout=dropout,
        attention_dropout=dropout,
        mlp_dropout=dropout,
        attention_bias=bias,
        mlp_bias=bias,
        norm_bias=bias,
        norm_placement="pre" if source_config.get("norm_first", False) else "post",
        norm_eps=source_config.get("layer_norm_eps", 1e-5),
        final_norm=final_norm,
        position_embedding_type="none",
        is_decoder=is_decoder,
        add_cross_attention=is_decoder,
    )


def torch_layer(source_config: SourceConfig, layer_class: type[nn.Module]) -> nn.Module:
    fields = {field: source_config[field] for field in LAYER_FIELDS if field in source_config}
    return layer_class(**fields, batch_first=True)


def decoder_masks(mask: torch.Tensor, memory_mask: torch.Tensor) -> Tensors:
    """The masks of torch's decoders for our padding masks `(B, L)`. In torch's, True is what must not be seen."""
    length = mask.shape[1]
    return {
        "tgt_mask": torch.ones(length, length, dtype=torch.bool).triu(1),
        "tgt_key_padding_mask": ~mask,
        "memory_key_padding_mask": ~memory_mask,
    }


class TorchEncoder(VectorConverter):
    """Config: the arguments of `nn.TransformerEncoderLayer`, num_layers, and norm (whether a norm follows the last
    layer; with weights it is read from them)."""

    name = "torch-encoder"
    is_decoder = False

    def complete_config(self, source_config: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return super().complete_config(source_config, state_dict) | {"norm": "norm.weight" in state_dict}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteConfig:
        refuse_unknown_fields(source_config, self.name, (*LAYER_FIELDS, "batch_first", "num_layers", "norm"))
        (num_layers,) = require_fields(source_config, self.name, "num_layers")
        return stack_config(source_config, num_layers, self.is_decoder, source_config.get("norm", False))

    def weight_map(self, our_config: RoFormerLiteConfig, source_config: SourceConfig) -> WeightMap:
        return WeightMap(stack_rules(self.is_decoder))

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        norm = None
        if source_config.get("norm"):
            eps, bias = source_config.get("layer_norm_eps", 1e-5), source_config.get("bias", True)
            norm = nn.LayerNorm(source_config["d_model"], eps, bias=bias)
        num_layers = source_config["num_layers"]
        if self.is_decoder:
            return nn.TransformerDecoder(torch_layer(source_config, nn.TransformerDecoderLayer), num_layers, norm)
        layer = torch_layer(source_config, nn.TransformerEncoderLayer)
        return nn.TransformerEncoder(layer, num_layers, norm, enable_nested_tensor=False)

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        if not self.is_decoder:
            states = reference(inputs["states"], src_key_padding_mask=~inputs["mask"])
        else:
            masks = decoder_masks(inputs["mask"], inputs["memory_mask"])
            states = reference(inputs["states"], inputs["memory"], **masks)
        return {"hidden states": states[inputs["mask"]]}


class TorchDecoder(TorchEncoder):
    """As the encoder, for `nn.TransformerDecoder`."""

    name = "torch-decoder"
    is_decoder = True


class TorchTransformer(Converter):
    """Config: the arguments of `nn.Transformer`."""

    name = "torch-transformer"

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        known = (*LAYER_FIELDS, "num_encoder_layers", "num_decoder_layers", "batch_first")
        refuse_unknown_fields(source_config, self.name, known)
        fields = {"d_model": 512, "nhead": 8, **source_config}
        encoder_layers, decoder_layers = fields.get("num_encoder_layers", 6), fields.get("num_decoder_layers", 6)
        return RoFormerLiteSeq2SeqConfig(
            encoder=stack_config(fields, encoder_layers, is_decoder=False, final_norm=True),
            decoder=stack_config(fields, decoder_layers, is_decoder=True, final_norm=True),
        )

    def our_model_class(self, source_config: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteSeq2SeqModel

    def weight_map(self, our_config: PreTrainedConfig, source_config: SourceConfig) -> WeightMap:
        sides = {"encoder.": stack_rules(is_decoder=False), "decoder.": stack_rules(is_decoder=True)}
        return WeightMap([rule.prefixed(side, side) for side, rules in sides.items() for rule in rules])

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        fields: dict[str, Any] = {**source_config, "batch_first": True}
        return nn.Transformer(**fields)

    def random_inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        width = model.config.hidden_size
        mask, source_mask = torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
        mask[1, 4:] = source_mask[1, 2:] = False
        inputs = {"source": torch.randn(2, 5, width, generator=generator), "source_mask": source_mask}
        return inputs | {"target": torch.randn(2, 6, width, generator=generator), "mask": mask}

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        masks = decoder_masks(inputs["mask"], inputs["source_mask"])
        masks["src_key_padding_mask"] = ~inputs["source_mask"]
        return {"hidden states": reference(inputs["source"], inputs["target"], **masks)[inputs["mask"]]}

    def run_ours(self, model: PreTrainedModel, inputs: Tensors) -> Tensors:
        output = model(
            inputs_embeds=inputs["source"],
            attention_mask=inputs["source_mask"],
            decoder_inputs_embeds=inputs["target"],
            decoder_attention_mask=inputs["mask"],
            use_cache=False,
        )
        return {"hidden states": output.last_hidden_state[inputs["mask"]]}


CONVERTERS = (TorchEncoder(), TorchDecoder(), TorchTransformer())
