"""Our encoder or decoder and its contenders, with the same widths and depths and with random
weights.

All have the same vocabulary, tied embeddings, dropout of 0.1 on the branches (where the model has
such dropout) and none on attention probabilities. Models with a gated feed-forward get two thirds
of the inner width, which gives them the same number of weights.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    EuroBertConfig,
    LlamaConfig,
    ModernBertConfig,
    ModernBertDecoderConfig,
    NomicBertConfig,
    PreTrainedConfig,
    RoFormerConfig,
)

from hf_roformer_lite import RoFormerLiteConfig

from .workload import IGNORED, PAD, Workload, inner_width_of_gated

Kind = Literal["encoder", "mlm", "causal"]
OURS = "ours"
AUTO = {"encoder": AutoModel, "mlm": AutoModelForMaskedLM, "causal": AutoModelForCausalLM}
SPECIAL_TOKENS = {"pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3}


def our_config(work: Workload, **fields: Any) -> RoFormerLiteConfig:
    return RoFormerLiteConfig.from_preset(work.size, vocab_size=work.vocab_size, **fields)


def common(work: Workload) -> dict[str, Any]:
    """The fields that have the same names in all configurations of transformers."""
    ours = our_config(work)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    shared = {name: getattr(ours, name) for name in names}
    return {
        **shared,
        **SPECIAL_TOKENS,
        "max_position_embeddings": work.seq,
        "tie_word_embeddings": True,
    }


def gated(work: Workload) -> dict[str, Any]:
    return {
        **common(work),
        "intermediate_size": inner_width_of_gated(our_config(work).intermediate_size),
    }


def plain(work: Workload) -> dict[str, Any]:
    return {**common(work), "intermediate_size": our_config(work).intermediate_size}


def bert_config(work: Workload, **fields: Any) -> BertConfig:
    return BertConfig(**plain(work), attention_probs_dropout_prob=0.0, **fields)


def roformer_config(work: Workload, **fields: Any) -> RoFormerConfig:
    return RoFormerConfig(
        **plain(work),
        embedding_size=our_config(work).hidden_size,
        attention_probs_dropout_prob=0.0,
        **fields,
    )


def stock(config: PreTrainedConfig, kind: Kind, attention: str | None = None) -> nn.Module:
    return AUTO[kind].from_config(config, attn_implementation=attention)


def ours(work: Workload, kind: Kind) -> nn.Module:
    return stock(our_config(work, is_decoder=kind == "causal"), kind)


def bert(work: Workload, kind: Kind) -> nn.Module:
    return stock(bert_config(work, is_decoder=kind == "causal"), kind)


def roformer(work: Workload, kind: Kind) -> nn.Module:
    # It has only eager attention.
    return stock(roformer_config(work, is_decoder=kind == "causal"), kind, "eager")


def modernbert(work: Workload, kind: Kind, **fields: Any) -> nn.Module:
    """ModernBERT, in which all layers have global attention by default. `fields` are those of its
    configuration."""
    layer_types = ["full_attention"] * our_config(work).num_hidden_layers
    fields = {
        "layer_types": layer_types,
        "mlp_dropout": 0.1,
        "cls_token_id": 2,
        "sep_token_id": 3,
    } | fields
    if kind == "causal":
        return stock(ModernBertDecoderConfig(**gated(work), **fields), kind)
    return stock(ModernBertConfig(**gated(work), **fields), kind)


def sparse_modernbert(work: Workload, kind: Kind, **fields: Any) -> nn.Module:
    """ModernBERT with logits at labelled positions only, like ours. This is not its default."""
    model = modernbert(work, kind, **fields)
    model.sparse_prediction = model.config.sparse_prediction = True
    return model


def eurobert(work: Workload, kind: Kind) -> nn.Module:
    return stock(EuroBertConfig(**gated(work), mask_token_id=4), kind)


def nomic_bert(work: Workload, kind: Kind) -> nn.Module:
    return stock(NomicBertConfig(**gated(work), hidden_dropout_prob=0.1), kind)


def llama(work: Workload, kind: Kind) -> nn.Module:
    return stock(LlamaConfig(**gated(work)), kind)


class TorchStack(nn.Module):
    """`torch.nn.TransformerEncoder` with embeddings and post-norm, which its fast path with nested
    tensors requires."""

    def __init__(self, work: Workload, kind: Kind):
        super().__init__()
        config = our_config(work)
        self.kind = kind
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=PAD)
        self.positions = nn.Embedding(work.seq, config.hidden_size)
        layer = nn.TransformerEncoderLayer(
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            activation="gelu",
            batch_first=True,
        )
        layer.self_attn.dropout = 0.0
        # This is the dropout inside the feed-forward.
        layer.dropout.p = 0.0
        # Autocast fails on nested tensors.
        is_nested = work.dtype == "float32"
        self.stack = nn.TransformerEncoder(
            layer, config.num_hidden_layers, enable_nested_tensor=is_nested
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        length = input_ids.shape[1]
        states = self.embeddings(input_ids) + self.positions.weight[:length]
        padding = None
        if attention_mask is not None:
            padding = attention_mask == 0
        mask = None
        if self.kind == "causal":
            mask = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1)
        states = self.stack(states, mask, padding, is_causal=mask is not None)
        if self.kind == "encoder":
            return states
        return lm_loss(states @ self.embeddings.weight.T, labels, self.kind == "causal")


class XTransformersStack(nn.Module):
    """x-transformers with rotary positions and its fused attention."""

    def __init__(self, work: Workload, kind: Kind):
        super().__init__()
        from x_transformers import Decoder, Encoder, TransformerWrapper

        config = our_config(work)
        self.kind = kind
        self.stack = TransformerWrapper(
            num_tokens=config.vocab_size,
            max_seq_len=work.seq,
            use_abs_pos_emb=False,
            tie_embedding=True,
            attn_layers=(Decoder if kind == "causal" else Encoder)(
                dim=config.hidden_size,
                depth=config.num_hidden_layers,
                heads=config.num_attention_heads,
                ff_mult=config.intermediate_size // config.hidden_size,
                attn_dim_head=config.head_dim,
                ff_dropout=0.1,
                rotary_pos_emb=True,
                attn_flash=True,
            ),
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        mask = None
        if attention_mask is not None:
            mask = attention_mask.bool()
        result = self.stack(input_ids, mask=mask, return_embeddings=self.kind == "encoder")
        if self.kind == "encoder":
            return result
        return lm_loss(result, labels, self.kind == "causal")


def lm_loss(logits: torch.Tensor, labels: torch.Tensor, is_causal: bool) -> torch.Tensor:
    if is_causal:
        labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)


Maker = Callable[[Workload, Kind], nn.Module]
ENCODERS: dict[str, Maker] = {
    OURS: ours,
    "bert": bert,
    "roformer": roformer,
    "modernbert": modernbert,
    "eurobert": eurobert,
    "nomic_bert": nomic_bert,
    "torch": TorchStack,
    "x-transformers": XTransformersStack,
}
DECODERS: dict[str, Maker] = {
    OURS: ours,
    "bert": bert,
    "roformer": roformer,
    "modernbert": modernbert,
    "llama": llama,
    "torch": TorchStack,
    "x-transformers": XTransformersStack,
}
MAKERS: dict[Kind, dict[str, Maker]] = {
    "encoder": ENCODERS,
    "mlm": {**ENCODERS, "modernbert, sparse": sparse_modernbert},
    "causal": DECODERS,
}
