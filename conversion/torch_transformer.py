"""torch.nn.TransformerEncoder, TransformerDecoder and Transformer. They take vectors.

Example:
    >>> config = {"d_model": 512, "nhead": 8, "dim_feedforward": 2048, "num_layers": 6, "norm_first": True}
    >>> model = convert("torch-encoder", torch_encoder.state_dict(), config)
    >>> model(inputs_embeds=vectors, attention_mask=~src_key_padding_mask).last_hidden_state

They know no positions. Our decoders are causal by themselves, where torch's take `tgt_mask`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteSeq2SeqConfig, RoFormerLiteSeq2SeqModel
from hf_roformer_lite.errors import InputError

from .converter import PLAIN, Converter, SourceConfig, Tensors, VectorConverter, refuse_others, require
from .weight_map import Name, NameTable, Split

LAYER_FIELDS = ("d_model", "nhead", "dim_feedforward", "dropout", "activation", "layer_norm_eps", "norm_first", "bias")
ACTIVATIONS = ("relu", "gelu")


def attention_names(theirs: str, ours: str) -> tuple[Name, ...]:
    """Rows of `nn.MultiheadAttention`, which keeps queries, keys and values in one matrix."""
    projections = tuple(f"layers.{{i}}.{ours}.{side}_proj" for side in "qkv")
    return (
        *(
            Name(f"layers.{{i}}.{theirs}.in_proj_{part}", tuple(f"{name}.{part}" for name in projections), Split())
            for part in ("weight", "bias")
        ),
        Name(f"layers.{{i}}.{theirs}.out_proj.*", f"layers.{{i}}.{ours}.o_proj.*"),
    )


def stack_names(is_decoder: bool) -> tuple[Name, ...]:
    """Rows of an encoder or a decoder."""
    branches = ("self_attn", "cross_attn", "mlp") if is_decoder else ("self_attn", "mlp")
    return (
        *attention_names("self_attn", "self_attn"),
        *attention_names("multihead_attn", "cross_attn"),
        Name("layers.{i}.linear1.*", "layers.{i}.mlp.up_proj.*"),
        Name("layers.{i}.linear2.*", "layers.{i}.mlp.down_proj.*"),
        *(Name(f"layers.{{i}}.norm{k}.*", f"layers.{{i}}.{name}_norm.*") for k, name in enumerate(branches, 1)),
        Name("norm.*", "final_norm.*"),
    )


def stack_config(source: SourceConfig, num_layers: int, is_decoder: bool, final_norm: bool) -> RoFormerLiteConfig:
    """Our config for a stack of torch's layers."""
    width, heads = require(source, "torch", "d_model", "nhead")
    activation, bias = source.get("activation", "relu"), source.get("bias", True)
    if activation not in ACTIVATIONS:
        raise InputError(f"activation={activation!r}: must be one of {', '.join(ACTIVATIONS)}")
    return RoFormerLiteConfig(
        **PLAIN,
        vocab_size=0,
        hidden_size=width,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        intermediate_size=source.get("dim_feedforward", 2048),
        hidden_act=activation,
        hidden_dropout=source.get("dropout", 0.1),
        attention_dropout=source.get("dropout", 0.1),
        attention_bias=bias,
        mlp_bias=bias,
        norm_bias=bias,
        norm_placement="pre" if source.get("norm_first", False) else "post",
        norm_eps=source.get("layer_norm_eps", 1e-5),
        final_norm=final_norm,
        position_embedding_type="none",
        is_decoder=is_decoder,
        add_cross_attention=is_decoder,
    )


def torch_layer(source: SourceConfig, layer_class: type[nn.Module]) -> nn.Module:
    return layer_class(**{field: source[field] for field in LAYER_FIELDS if field in source}, batch_first=True)


def causal_mask(length: int) -> torch.Tensor:
    """True where torch's attention must not look."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class TorchEncoder(VectorConverter):
    """`config`: the arguments of `nn.TransformerEncoderLayer`, num_layers, and norm (whether there is a norm behind
    the last layer; with weights they tell)."""

    name = "torch-encoder"
    is_decoder = False

    def complete(self, source: SourceConfig, state_dict: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        return super().complete(source, state_dict) | {"norm": "norm.weight" in state_dict}

    def config(self, source: SourceConfig) -> RoFormerLiteConfig:
        refuse_others(source, self.name, (*LAYER_FIELDS, "batch_first", "num_layers", "norm"))
        (num_layers,) = require(source, self.name, "num_layers")
        return stack_config(source, num_layers, self.is_decoder, source.get("norm", False))

    def table(self, config: RoFormerLiteConfig, source: SourceConfig) -> NameTable:
        return NameTable(stack_names(self.is_decoder))

    def reference(self, source: SourceConfig) -> nn.Module:
        norm = None
        if source.get("norm"):
            norm = nn.LayerNorm(source["d_model"], source.get("layer_norm_eps", 1e-5), bias=source.get("bias", True))
        if self.is_decoder:
            return nn.TransformerDecoder(torch_layer(source, nn.TransformerDecoderLayer), source["num_layers"], norm)
        layer = torch_layer(source, nn.TransformerEncoderLayer)
        return nn.TransformerEncoder(layer, source["num_layers"], norm, enable_nested_tensor=False)

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        if not self.is_decoder:
            states = reference(inputs["states"], src_key_padding_mask=~inputs["mask"])
        else:
            states = reference(
                inputs["states"],
                inputs["memory"],
                tgt_mask=causal_mask(inputs["states"].shape[1]),
                tgt_key_padding_mask=~inputs["mask"],
                memory_key_padding_mask=~inputs["memory_mask"],
            )
        return {"hidden states": states[inputs["mask"]]}


class TorchDecoder(TorchEncoder):
    """As the encoder, for `nn.TransformerDecoder`."""

    name = "torch-decoder"
    is_decoder = True


class TorchTransformer(Converter):
    """`config`: the arguments of `nn.Transformer`."""

    name = "torch-transformer"

    def config(self, source: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        refuse_others(source, self.name, (*LAYER_FIELDS, "num_encoder_layers", "num_decoder_layers", "batch_first"))
        source = {"d_model": 512, "nhead": 8, **source}
        return RoFormerLiteSeq2SeqConfig(
            encoder=stack_config(source, source.get("num_encoder_layers", 6), False, True),
            decoder=stack_config(source, source.get("num_decoder_layers", 6), True, True),
        )

    def model_class(self, source: SourceConfig) -> type[PreTrainedModel]:
        return RoFormerLiteSeq2SeqModel

    def table(self, config: PreTrainedConfig, source: SourceConfig) -> NameTable:
        return NameTable(
            [
                Name(
                    tuple(f"{side}.{name}" for name in row.their_names),
                    tuple(f"{side}.{name}" for name in row.our_names),
                    row.operation,
                )
                for side in ("encoder", "decoder")
                for row in stack_names(side == "decoder")
            ]
        )

    def reference(self, source: SourceConfig) -> nn.Module:
        given: dict[str, Any] = {**source, "batch_first": True}
        return nn.Transformer(**given)

    def inputs(self, model: PreTrainedModel, generator: torch.Generator) -> Tensors:
        width = model.config.hidden_size
        mask, memory_mask = torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
        mask[1, 4:] = memory_mask[1, 2:] = False
        inputs = {"source": torch.randn(2, 5, width, generator=generator), "source_mask": memory_mask}
        return inputs | {"target": torch.randn(2, 6, width, generator=generator), "mask": mask}

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> Tensors:
        states = reference(
            inputs["source"],
            inputs["target"],
            tgt_mask=causal_mask(inputs["target"].shape[1]),
            src_key_padding_mask=~inputs["source_mask"],
            tgt_key_padding_mask=~inputs["mask"],
            memory_key_padding_mask=~inputs["source_mask"],
        )
        return {"hidden states": states[inputs["mask"]]}

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
