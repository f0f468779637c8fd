"""Our encoder–decoder and its contenders, with the same widths and depths and with random weights.

All have one vocabulary for both sides, tied embeddings, and dropout of 0.1 on the branches but
nowhere else. The feed-forward of T5Gemma is gated and gets two thirds of the inner width.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    MarianConfig,
    PreTrainedConfig,
    T5Config,
    T5GemmaConfig,
    T5GemmaModuleConfig,
)
from transformers.models.t5.modeling_t5 import T5Attention, T5DenseActDense
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaMLP

from hf_roformer_lite import RoFormerLiteSeq2SeqConfig

from .stacks import OURS, SPECIAL_TOKENS, lm_loss, our_config
from .workload import PAD, START, Workload, inner_width_of_gated, shifted

TOKENS = {**SPECIAL_TOKENS, "decoder_start_token_id": START}


def stock(config: PreTrainedConfig, attention: str | None = None) -> nn.Module:
    return AutoModelForSeq2SeqLM.from_config(config, attn_implementation=attention)


def our_encoder_decoder_config(work: Workload) -> RoFormerLiteSeq2SeqConfig:
    return RoFormerLiteSeq2SeqConfig.from_preset(work.size, vocab_size=work.vocab_size)


def ours(work: Workload) -> nn.Module:
    return stock(our_encoder_decoder_config(work))


def _bart_like(kind: type[PreTrainedConfig], work: Workload) -> nn.Module:
    config = our_config(work)
    sides = {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_layers": config.num_hidden_layers,
            f"{side}_attention_heads": config.num_attention_heads,
            f"{side}_ffn_dim": config.intermediate_size,
        }
    return stock(
        kind(
            vocab_size=work.vocab_size,
            d_model=config.hidden_size,
            max_position_embeddings=max(work.seq, 128) + 2,
            activation_function="gelu",
            attention_dropout=0.0,
            activation_dropout=0.0,
            dropout=0.1,
            forced_eos_token_id=None,
            **sides,
            **TOKENS,
        )
    )


def bart(work: Workload) -> nn.Module:
    return _bart_like(BartConfig, work)


def marian(work: Workload) -> nn.Module:
    return _bart_like(MarianConfig, work)


def without_inner_dropout(model: nn.Module) -> nn.Module:
    """Turn off the dropout inside the attention and the feed-forward of T5 and T5Gemma."""
    for module in model.modules():
        if isinstance(module, T5Attention):
            module.dropout = 0.0
        elif isinstance(module, T5DenseActDense | T5GemmaMLP):
            module.dropout.p = 0.0
    return model


def t5(work: Workload) -> nn.Module:
    config = our_config(work)
    return without_inner_dropout(
        stock(
            T5Config(
                vocab_size=work.vocab_size,
                d_model=config.hidden_size,
                d_kv=config.head_dim,
                d_ff=config.intermediate_size,
                num_layers=config.num_hidden_layers,
                num_heads=config.num_attention_heads,
                dropout_rate=0.1,
                **TOKENS,
            )
        )
    )


def t5gemma(work: Workload) -> nn.Module:
    config = our_config(work)
    fields = {
        "vocab_size": work.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": inner_width_of_gated(config.intermediate_size),
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_attention_heads,
        "head_dim": config.head_dim,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        **SPECIAL_TOKENS,
    }
    config = T5GemmaConfig(
        encoder=T5GemmaModuleConfig(**fields),
        decoder=T5GemmaModuleConfig(**fields, is_decoder=True),
        dropout_rate=0.1,
        vocab_size=work.vocab_size,
        **TOKENS,
    )
    # It has only eager attention.
    return without_inner_dropout(stock(config, "eager"))


class TorchEncoderDecoder(nn.Module):
    """`torch.nn.Transformer` with embeddings and a tied head."""

    def __init__(self, work: Workload):
        super().__init__()
        config = our_config(work)
        self.embeddings = nn.Embedding(work.vocab_size, config.hidden_size, padding_idx=PAD)
        self.positions = nn.Embedding(work.seq, config.hidden_size)
        self.transformer = nn.Transformer(
            config.hidden_size,
            config.num_attention_heads,
            config.num_hidden_layers,
            config.num_hidden_layers,
            config.intermediate_size,
            activation="gelu",
            batch_first=True,
        )
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embeddings(ids) + self.positions.weight[: ids.shape[1]]

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, labels: torch.Tensor
    ) -> torch.Tensor:
        inputs = shifted(labels)
        length = inputs.shape[1]
        ahead = torch.ones(length, length, dtype=torch.bool, device=inputs.device).triu(1)
        padding = None
        if attention_mask is not None:
            padding = attention_mask == 0
        states = self.transformer(
            self.embed(input_ids),
            self.embed(inputs),
            tgt_mask=ahead,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return lm_loss(states @ self.embeddings.weight.T, labels, is_causal=False)


ENCODER_DECODERS: dict[str, Callable[[Workload], nn.Module]] = {
    OURS: ours,
    "t5": t5,
    "bart": bart,
    "marian": marian,
    "t5gemma": t5gemma,
    "torch": TorchEncoderDecoder,
}
