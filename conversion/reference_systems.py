"""The five reference systems as plain modules, written from their specification, with the names of their checkpoints.

They are slow and simple on purpose: one module per head where they were published so, masked scores filled with minus
infinity, nothing shared with the models of this package. Converted models are compared with them.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
    """softmax(q kᵀ / √width) v over the last two dimensions. `visible` is broadcastable and True where a query
    sees a key."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if visible is not None:
        scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(-1) @ value


def sinusoids(length: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """`(length, width)`: sines in the even columns, cosines of the same angles in the odd ones."""
    angles = torch.arange(length, dtype=dtype)[:, None] * 10000 ** (-torch.arange(0, width, 2, dtype=dtype) / width)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


class DeepFeedForwardUnit(nn.Module):
    """x + down(prelu(up(norm(x))))"""

    def __init__(self, width: int, expansion: float, bias: bool, dropout: float):
        super().__init__()
        inner = int(width * expansion)
        self.layer_norm = nn.LayerNorm(width, eps=1e-9)
        self.up_proj, self.down_proj = nn.Linear(width, inner, bias), nn.Linear(inner, width, bias)
        self.parametric_relu = nn.PReLU(init=5e-3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down_proj(self.dropout(self.parametric_relu(self.up_proj(self.layer_norm(x)))))


class DeepFeedForward(nn.Module):
    def __init__(self, width: int, layers: int, expansion: float, bias: bool, dropout: float):
        super().__init__()
        self.ffn_layers = nn.ModuleList(DeepFeedForwardUnit(width, expansion, bias, dropout) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for unit in self.ffn_layers:
            x = unit(x)
        return x


class DeepHead(nn.Module):
    def __init__(self, width: int, base: float, **options):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (DeepFeedForward(width, **options) for _ in range(3))
        self.base = base

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        frequencies = 1 / self.base ** (torch.arange(half, dtype=torch.float32, device=x.device) / half)
        angles = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[:, None] * frequencies.to(x.dtype)
        first, second = x.split(half, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        query, key = self.rotate(self.q_proj(x)), self.rotate(self.k_proj(y))
        return attend(query, key, self.v_proj(y), visible)


class DeepAttention(nn.Module):
    def __init__(self, width: int, heads: int, **options):
        super().__init__()
        self.expand_proj, self.out_proj = nn.Linear(width, heads * width), nn.Linear(heads * width, width)
        self.attn_heads = nn.ModuleList(DeepHead(width, **options) for _ in range(heads))

    def forward(self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        xs, ys = (self.expand_proj(states).chunk(len(self.attn_heads), -1) for states in (x, y))
        heads = [head(a, b, visible) for head, a, b in zip(self.attn_heads, xs, ys, strict=True)]
        return self.out_proj(torch.cat(heads, -1))


class DeepLotxEncoder(nn.Module):
    """System A: `(B, L, width)` to `(B, L, width)`; keys and values are made of `y` where it is given."""

    def __init__(
        self,
        width: int,
        heads: int,
        bias: bool = True,
        layers: int = 1,
        expansion: float = 2,
        dropout: float = 0.02,
        head_layers: int = 1,
        head_expansion: float | None = None,
        head_dropout: float | None = None,
        base: float = 10000,
    ):
        super().__init__()
        head = {"layers": head_layers, "expansion": expansion if head_expansion is None else head_expansion}
        head |= {"bias": bias, "dropout": dropout if head_dropout is None else head_dropout}
        self.attn = DeepAttention(width, heads, base=base, **head)
        self.ffn = DeepFeedForward(2 * width, layers, expansion, bias, dropout)
        self.layer_norm = nn.LayerNorm(width, eps=1e-9)
        self.out_proj = nn.Linear(2 * width, width)

    def forward(
        self, x: torch.Tensor, visible: torch.Tensor | None = None, y: torch.Tensor | None = None
    ) -> torch.Tensor:
        normed = self.layer_norm(x)
        attended = self.attn(normed, normed if y is None else y, visible)
        return self.out_proj(self.ffn(torch.cat((attended, x), -1)))


class SmallHead(nn.Module):
    def __init__(self, width: int, head_width: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, head_width) for _ in range(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        return attend(self.q(x), self.k(y), self.v(y), visible)


class ManyHeads(nn.Module):
    """Heads of systems B and C, which call their output projection by different names."""

    def __init__(self, width: int, heads: int, output_name: str):
        super().__init__()
        self.heads = nn.ModuleList(SmallHead(width, width // heads) for _ in range(heads))
        self.output_name = output_name
        self.add_module(output_name, nn.Linear(heads * (width // heads), width))

    def forward(self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor | None) -> torch.Tensor:
        return getattr(self, self.output_name)(torch.cat([head(x, y, visible) for head in self.heads], -1))


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)


class PreNormLayer(nn.Module):
    """System B, encoder layer and (with `cross`) decoder layer."""

    def __init__(self, width: int, heads: int, inner: int, cross: bool):
        super().__init__()
        self.self_attn = ManyHeads(width, heads, "fc")
        self.residual1, self.residual2 = Residual(width), Residual(width)
        if cross:
            self.cross_attn = ManyHeads(width, heads, "fc")
            self.residual3 = Residual(width)
        self.ffn = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))

    def forward(
        self,
        x: torch.Tensor,
        visible: torch.Tensor | None = None,
        memory: torch.Tensor | None = None,
        memory_visible: torch.Tensor | None = None,
    ) -> torch.Tensor:
        normed = self.residual1.norm(x)
        x = x + self.self_attn(normed, normed, visible)
        last = self.residual2
        if memory is not None:
            x = x + self.cross_attn(self.residual2.norm(x), memory, memory_visible)
            last = self.residual3
        return x + self.ffn(last.norm(x))


class BertLikeEncoder(nn.Module):
    """System C: ids to hidden states."""

    def __init__(self, vocab: int, width: int, positions: int, layers: int, heads: int, inner: int):
        super().__init__()
        self.embeddings = nn.ModuleDict(
            {
                "token_embeddings": nn.Embedding(vocab, width),
                "position_embeddings": nn.Embedding(positions, width),
                "layer_norm": nn.LayerNorm(width, eps=1e-12),
            }
        )
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "layer_norm_1": nn.LayerNorm(width),
                    "layer_norm_2": nn.LayerNorm(width),
                    "attention": ManyHeads(width, heads, "output_linear"),
                    "feed_forward": nn.ModuleDict(
                        {"linear_1": nn.Linear(width, inner), "linear_2": nn.Linear(inner, width)}
                    ),
                }
            )
            for _ in range(layers)
        )

    def forward(self, ids: torch.Tensor, visible: torch.Tensor | None = None) -> torch.Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.embeddings["token_embeddings"](ids) + self.embeddings["position_embeddings"](positions)
        x = self.embeddings["layer_norm"](x)
        for layer in self.layers:
            normed = layer["layer_norm_1"](x)
            x = x + layer["attention"](normed, normed, visible)
            inner = F.gelu(layer["feed_forward"]["linear_1"](layer["layer_norm_2"](x)))
            x = x + layer["feed_forward"]["linear_2"](inner)
        return x


def unbiased_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """(x - mean) / (σₙ₋₁ + eps)"""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)


class Walkthrough(nn.Module):
    """System D, published as printed numbers: returns every stage under its printed name."""

    def __init__(self, width: int, head_width: int):
        super().__init__()
        self.Wq, self.Wk, self.Wv = (nn.Parameter(torch.randn(width, head_width)) for _ in range(3))
        self.Wo = nn.Parameter(torch.randn(width, head_width))
        self.Wff, self.bff = nn.Parameter(torch.randn(width, width)), nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        stages = {"Q": x @ self.Wq, "K": x @ self.Wk, "V": x @ self.Wv}
        scores = stages["Q"] @ stages["K"].transpose(-1, -2) / math.sqrt(self.Wq.shape[1])
        stages["probs"] = scores.softmax(-1)
        stages["ctx"] = stages["probs"] @ stages["V"]
        stages["attn_out"] = stages["ctx"] @ self.Wo.T
        stages["add1"] = x + stages["attn_out"]
        stages["norm1"] = unbiased_norm(stages["add1"], 1e-6)
        stages["ff_lin"] = F.linear(stages["add1"], self.Wff, self.bff)
        stages["relu"] = stages["ff_lin"].relu()
        stages["norm2"] = unbiased_norm(stages["relu"], 1e-6)
        stages["add2"] = stages["norm1"] + stages["norm2"]
        stages["norm3"] = unbiased_norm(stages["add2"], 1e-6)
        return stages


class UnbiasedNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gamma * unbiased_norm(x, 1e-9) + self.beta


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.w_q, self.w_k, self.w_v, self.fc_out = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x: torch.Tensor, y: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            linear(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, states in ((self.w_q, x), (self.w_k, y), (self.w_v, y))
        )
        return self.fc_out(attend(query, key, value, visible).transpose(1, 2).flatten(2))


class ScratchLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, cross: bool):
        super().__init__()
        self.self_attn = FusedAttention(width, heads)
        if cross:
            self.cross_attn = FusedAttention(width, heads)
        self.feed_forward = nn.ModuleDict({"w_1": nn.Linear(width, inner), "w_2": nn.Linear(inner, width)})
        self.sublayers = nn.ModuleList(nn.ModuleDict({"norm": UnbiasedNorm(width)}) for _ in range(2 + cross))

    def forward(
        self, x: torch.Tensor, visible: torch.Tensor, memory: torch.Tensor | None, memory_visible: torch.Tensor
    ) -> torch.Tensor:
        x = self.sublayers[0]["norm"](x + self.self_attn(x, x, visible))
        if memory is not None:
            x = self.sublayers[1]["norm"](x + self.cross_attn(x, memory, memory_visible))
        inner = self.feed_forward["w_1"](x).relu()
        return self.sublayers[-1]["norm"](x + self.feed_forward["w_2"](inner))


class ScratchStack(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, inner: int, cross: bool):
        super().__init__()
        self.layers = nn.ModuleList(ScratchLayer(width, heads, inner, cross) for _ in range(layers))
        self.norm = UnbiasedNorm(width)

    def forward(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        memory: torch.Tensor | None = None,
        memory_visible: torch.Tensor | None = None,
    ) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, visible, memory, memory_visible)
        return self.norm(x)


class ScratchEmbedding(nn.Module):
    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.embed = nn.ModuleDict({"embed": nn.Embedding(vocab, width)})

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        table = self.embed["embed"]
        width = table.weight.shape[1]
        return table(ids) * math.sqrt(width) + sinusoids(ids.shape[1], width, table.weight.dtype)


class ScratchSeq2Seq(nn.Module):
    """System E: source and target ids to logits."""

    def __init__(self, src_vocab: int, tgt_vocab: int, width: int, layers: int, heads: int, inner: int, pad: int):
        super().__init__()
        self.pad = pad
        self.src_embedding, self.tgt_embedding = ScratchEmbedding(src_vocab, width), ScratchEmbedding(tgt_vocab, width)
        self.encoder = ScratchStack(layers, width, heads, inner, cross=False)
        self.decoder = ScratchStack(layers, width, heads, inner, cross=True)
        self.fc_out = nn.Linear(width, tgt_vocab)

    def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
        src_visible = (src != self.pad)[:, None, None]
        causal = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).tril()
        memory = self.encoder(self.src_embedding(src), src_visible)
        tgt_visible = (tgt != self.pad)[:, None, None] & causal
        return self.fc_out(self.decoder(self.tgt_embedding(tgt), tgt_visible, memory, src_visible))
