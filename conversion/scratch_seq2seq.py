"""A sequence-to-sequence Transformer with two vocabularies, which takes ids and returns logits.

Its norm divides by the sample standard deviation, σₙ₋₁ = σ·√(n / (n - 1)). With this factor folded
into the gain, it becomes a layer norm.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput

from hf_roformer_lite import (
    RoFormerLiteConfig,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteSeq2SeqConfig,
)

from .converter import CLASSIC_FIELDS, Converter, SourceConfig, Tensors, read_fields
from .walkthrough import unbiased_norm
from .weight_map import (
    Operation,
    Rules,
    WeightMap,
    WeightRule,
    in_layers,
    projections,
    renamed,
    scale,
)

SIZES = ("src_vocab", "tgt_vocab", "d_model", "N", "heads", "d_ff")
EMBEDDINGS = renamed(
    {
        "src_embedding.embed.embed.weight": "model.encoder.embeddings.word_embeddings.weight",
        "tgt_embedding.embed.embed.weight": "model.decoder.embeddings.word_embeddings.weight",
        "fc_out.*": "lm_head.*",
    }
)
MATRICES = ("w_q", "w_k", "w_v", "fc_out")
SUBLAYERS = {"encoder": ("self_attn", "mlp"), "decoder": ("self_attn", "cross_attn", "mlp")}


def stack_rules(side: str, gain: Operation) -> Rules:
    """The rules of the encoder or the decoder; `gain` is the operation on the gains of the
    norms."""
    names = {"feed_forward.w_1.*": "mlp.up_proj.*", "feed_forward.w_2.*": "mlp.down_proj.*"}
    for attention in SUBLAYERS[side][:-1]:
        names |= projections(*(f"{attention}.{matrix}" for matrix in MATRICES), ours=attention)
    norms = {
        f"layers.{{i}}.sublayers.{j}.norm": f"layers.{{i}}.{name}_norm"
        for j, name in enumerate(SUBLAYERS[side])
    }
    table = list(in_layers(names))
    for theirs, ours in (norms | {"norm": "final_norm"}).items():
        table += [
            WeightRule(f"{theirs}.gamma", f"{ours}.weight", gain),
            WeightRule(f"{theirs}.beta", f"{ours}.bias"),
        ]
    return tuple(rule.prefixed(f"{side}.", f"model.{side}.") for rule in table)


class ScratchSeq2SeqConverter(Converter):
    """Config: src_vocab, tgt_vocab, d_model, N, heads, d_ff, pad (0), dropout (0.1); and for
    `generate` the first and last id of a target, sos (1) and eos (2)."""

    name = "scratch-seq2seq"
    becomes = RoFormerLiteForConditionalGeneration
    # Folding the factor rounds the gain, and its eps is approximated.
    tolerances = {torch.float32: 1e-5, torch.float64: 1e-6}

    def our_config(self, source_config: SourceConfig) -> RoFormerLiteSeq2SeqConfig:
        options = ("pad", "dropout", "sos", "eos")
        src_vocab, tgt_vocab, width, layers, heads, inner = read_fields(
            source_config, self.name, SIZES, options
        )
        ids = {
            "pad_token_id": source_config.get("pad", 0),
            "bos_token_id": source_config.get("sos", 1),
            "eos_token_id": source_config.get("eos", 2),
        }
        stack = {
            **CLASSIC_FIELDS,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner,
            "hidden_act": "relu",
            "hidden_dropout": source_config.get("dropout", 0.1),
            "norm_placement": "post",
            "norm_eps": 1e-18,
            "final_norm": True,
            "position_embedding_type": "sinusoidal",
            "scale_embeddings": True,
            **ids,
        }
        return RoFormerLiteSeq2SeqConfig(
            encoder=RoFormerLiteConfig(vocab_size=src_vocab, **stack),
            decoder=RoFormerLiteConfig(vocab_size=tgt_vocab, lm_head_bias=True, **stack),
            tie_word_embeddings=False,
            decoder_start_token_id=ids["bos_token_id"],
            **ids,
        )

    def weight_map(
        self, our_config: RoFormerLiteSeq2SeqConfig, source_config: SourceConfig
    ) -> WeightMap:
        width = our_config.hidden_size
        gain = scale(((width - 1) / width) ** 0.5)
        table = (*EMBEDDINGS, *stack_rules("encoder", gain), *stack_rules("decoder", gain))
        ignored = [f"{side}_embedding.positional_encoding.pe" for side in ("src", "tgt")]
        return WeightMap(table, ignored)

    def build_reference(self, source_config: SourceConfig) -> nn.Module:
        sizes = (source_config[field] for field in SIZES)
        return ScratchSeq2Seq(*sizes, source_config.get("pad", 0))

    def run_reference(self, reference: nn.Module, inputs: Tensors) -> ModelOutput:
        return Seq2SeqLMOutput(logits=reference(inputs["input_ids"], inputs["decoder_input_ids"]))


class UnbiasedNorm(nn.Module):
    """gamma · (x - mean) / σₙ₋₁ + beta"""

    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gamma * unbiased_norm(x, 1e-9) + self.beta


class ScratchAttention(nn.ModuleDict):
    """Attention of `heads` heads, `(B, L, width)` to `(B, L, width)`."""

    def __init__(self, width: int, heads: int):
        super().__init__({name: nn.Linear(width, width) for name in MATRICES})
        self.heads = heads

    def forward(self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        query = self._split(self["w_q"](x))
        key = self._split(self["w_k"](y))
        value = self._split(self["w_v"](y))
        attended = F.scaled_dot_product_attention(query, key, value, visible)
        return self["fc_out"](attended.transpose(1, 2).flatten(2))

    def _split(self, states: torch.Tensor) -> torch.Tensor:
        return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class ScratchStack(nn.Module):
    """The encoder or (with `cross`) the decoder, on embedded tokens."""

    def __init__(self, layers: int, width: int, heads: int, inner: int, cross: bool):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = nn.ModuleDict({"self_attn": ScratchAttention(width, heads)})
            if cross:
                layer["cross_attn"] = ScratchAttention(width, heads)
            layer["feed_forward"] = nn.ModuleDict(
                {"w_1": nn.Linear(width, inner), "w_2": nn.Linear(inner, width)}
            )
            layer["sublayers"] = nn.ModuleList(
                nn.ModuleDict({"norm": UnbiasedNorm(width)}) for _ in range(2 + cross)
            )
            self.layers.append(layer)
        self.norm = UnbiasedNorm(width)

    def forward(
        self, x: torch.Tensor, visible: torch.Tensor, *memory: torch.Tensor
    ) -> torch.Tensor:
        """`memory` is given for a decoder: the encoder's states, and which of them are visible."""
        for layer in self.layers:
            norms = [sublayer["norm"] for sublayer in layer["sublayers"]]
            x = norms[0](x + layer["self_attn"](x, x, visible))
            if memory:
                x = norms[1](x + layer["cross_attn"](x, *memory))
            inner = layer["feed_forward"]["w_1"](x).relu()
            x = norms[-1](x + layer["feed_forward"]["w_2"](inner))
        return self.norm(x)


class ScratchSeq2Seq(nn.Module):
    """The Transformer as a plain module, with the names of its checkpoints: source and target ids
    to logits."""

    def __init__(
        self,
        src_vocab: int,
        tgt_vocab: int,
        width: int,
        layers: int,
        heads: int,
        inner: int,
        pad: int,
    ):
        super().__init__()
        self.pad = pad
        for side, size in (("src", src_vocab), ("tgt", tgt_vocab)):
            table = nn.ModuleDict({"embed": nn.Embedding(size, width)})
            self.add_module(f"{side}_embedding", nn.ModuleDict({"embed": table}))
        self.encoder = ScratchStack(layers, width, heads, inner, cross=False)
        self.decoder = ScratchStack(layers, width, heads, inner, cross=True)
        self.fc_out = nn.Linear(width, tgt_vocab)

    def embed(self, side: nn.ModuleDict, ids: torch.Tensor) -> torch.Tensor:
        """The scaled embeddings of ids plus positions: sines in the even channels, cosines in the
        odd ones."""
        words = side["embed"]["embed"].weight
        width = words.shape[1]
        speeds = 10000 ** (-torch.arange(0, width, 2, dtype=words.dtype) / width)
        angles = torch.arange(ids.shape[1], dtype=words.dtype)[:, None] * speeds
        positions = torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
        return words[ids] * width**0.5 + positions

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        src_visible = (src != self.pad)[:, None, None]
        tgt_visible = (tgt != self.pad)[:, None, None]
        causal = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).tril()
        memory = self.encoder(self.embed(self.src_embedding, src), src_visible)
        target = self.embed(self.tgt_embedding, tgt)
        return self.fc_out(self.decoder(target, tgt_visible & causal, memory, src_visible))


CONVERTERS = (ScratchSeq2SeqConverter(),)
