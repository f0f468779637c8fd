"""Decoding: one more token of every row, for a stack whose cache holds the tokens before it.

With one token a row every product is small, and what surrounds the products decides: calls of modules, changes of
layout, masks, copies of the cache. A `DecodingStep` is made once for a cache and then computes what the layers would,
with their own weights and norms, in a third of the operations: queries, keys and values in one product, `(B, width)`
all the way, and products in the layout that the processor multiplies fastest, where enough rows share the weights.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional as F
from transformers.activations import GELUActivation
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .attention import RoFormerLiteAttention
from .attention_plan import DensePlan
from .fast_linear import PackedProduct, autocast_dtype, is_traced_or_transformed, is_unmodified
from .feed_forward import RoFormerLiteMLP
from .growing_cache import GrowingBuffer
from .input_layout import InputLayout
from .layers import RoFormerLiteLayer
from .rope import rotate
from .torch_internals import has_hooks

if TYPE_CHECKING:
    from .modeling_roformer_lite import RoFormerLiteModel

Tables = dict[str, tuple[torch.Tensor, torch.Tensor] | None]  # cosines and sines, as the layers take them

# Steps hold copies of weights: of more caches than this that are in use at once, the others are served by the layers.
MAX_STEPS = 4
_step_of_cache: WeakKeyDictionary[Cache, DecodingStep] = WeakKeyDictionary()
_making = Lock()  # servers generate in several threads


class DecodingStep:
    """The layers of `stack` for one token in each of `rows` rows.

    The weights are read when this is made, and copied where several maps or rows share a product. Whether the modules
    are plain is looked at then, once; a longer input, with which every generation begins, ends the step.
    """

    def __init__(self, stack: RoFormerLiteModel, rows: int):
        self.stack, self.rows = stack, rows
        is_stock = ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
        self.is_possible = is_stock and all(map(_is_plain_layer, stack.layers))
        self.layers = [_LayerStep(layer, rows) for layer in stack.layers] if self.is_possible else []
        self.head: tuple[nn.Module, PackedProduct] | None = None

    def is_current(self) -> bool:
        """Whether no weight has changed since."""
        return all(product.is_current() for layer in self.layers for product in layer.products)

    def __call__(self, states: torch.Tensor, tables: dict[str, Tables], layout: InputLayout) -> torch.Tensor:
        """`(B, 1, hidden)` to the same; the cache of the layout is one token longer then."""
        one_position = {
            kind: {name: table and tuple(part.squeeze(1) for part in table) for name, table in of_kind.items()}
            for kind, of_kind in tables.items()
        }
        states = states.squeeze(1)  # (B, hidden)
        for layer in self.layers:
            states = layer(states, one_position[layer.kind], layout)
        return states.unsqueeze(1)


def reorder_beams(cache: Cache, beam_idx: torch.Tensor) -> Cache:
    """The cache with the beams `(B * beams,)` that stay. All beams of a source have the same keys and values of it, so
    that only those of the target move."""
    step = _step_of_cache.get(cache)
    buffers = {} if step is None else {layer.attention.layer_idx: layer.buffer for layer in step.layers}
    for place, layer in enumerate(_self_attention_cache(cache).layers):
        if place in buffers:
            buffers[place].reorder(layer, beam_idx)
        else:
            layer.reorder_cache(beam_idx)
    return cache


def _self_attention_cache(cache: Cache) -> Cache:
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def step_logits(head: nn.Module, states: torch.Tensor, cache: Cache | None) -> torch.Tensor:
    """`head(states)`, for `states` `(B, 1, width)` behind a `DecodingStep` by a product made for many steps."""
    step = None if cache is None else _step_of_cache.get(cache)
    if (
        step is None
        or not step.is_possible
        or not _is_plain_product(head, states)
        or states.shape[:-1] != (step.rows, 1)
    ):
        return head(states)
    if step.head is None or step.head[0] is not head or not step.head[1].is_current():
        step.head = head, PackedProduct([head], step.rows)
    return step.head[1](states.squeeze(1)).unsqueeze(1)


def _is_plain_product(head: nn.Module, states: torch.Tensor) -> bool:
    is_recorded = torch.is_grad_enabled() or is_traced_or_transformed(states)
    return not is_recorded and is_unmodified(head) and autocast_dtype(states.device) is None


def decoding_step(stack: RoFormerLiteModel, layout: InputLayout, states: torch.Tensor) -> DecodingStep | None:
    """What computes the layers for `states` `(B, 1, hidden)` and the cache of `layout`.

    None where the layers themselves have to: for longer inputs, with gradients, in traces, on other backends than
    sdpa, when outputs of every layer are asked for, and when a module has been replaced, adapted, sharded or hooked.
    The hooks by which transformers collects the outputs of every layer stay on a model that was once asked for them.
    """
    cache = layout.past_key_values
    # In a trace nothing may be asked of the shape: it would be that of all inputs.
    if cache is None or is_traced_or_transformed(states) or states.ndim != 3:
        return None
    if states.shape[1] != 1:
        with _making:
            _step_of_cache.pop(cache, None)
        return None
    if not _is_plain_call(stack, layout, states):
        return None
    step = _step_of_cache.get(cache)
    if step is None or step.stack is not stack or step.rows != len(states) or not step.is_current():
        with _making:
            _step_of_cache.pop(cache, None)
            if len(_step_of_cache) >= MAX_STEPS:
                return None
            step = _step_of_cache[cache] = DecodingStep(stack, len(states))
    return step if step.is_possible else None


def _is_plain_call(stack: RoFormerLiteModel, layout: InputLayout, states: torch.Tensor) -> bool:
    config, cross = stack.config, layout.cross_attention
    if torch.is_grad_enabled() or stack.training or config._attn_implementation != "sdpa" or not len(states):
        return False
    if config.output_attentions or config.output_hidden_states:
        return False
    if any(value is not None and value is not False for value in layout.attention_options.values()):
        return False
    if cross is not None:
        cache = layout.past_key_values
        is_read = isinstance(cache, EncoderDecoderCache) and all(map(cache.is_updated.get, range(len(stack.layers))))
        if not is_read or not isinstance(cross, DensePlan):
            return False
    return autocast_dtype(states.device) is None


def _is_plain_layer(layer: nn.Module) -> bool:
    """Whether a layer and all of its modules compute what their classes say, so that the weights may be read in place
    of calling them."""
    if type(layer) is not RoFormerLiteLayer or type(layer.mlp) is not RoFormerLiteMLP:
        return False
    attentions = [layer.self_attn] + ([layer.cross_attn] if hasattr(layer, "cross_attn") else [])
    if any(type(attention) is not RoFormerLiteAttention for attention in attentions):
        return False
    maps = [projection for module in (*attentions, layer.mlp) for projection in _maps_of(module)]
    others = set(layer.modules()) - set(maps)
    return all(map(is_unmodified, maps)) and not any(
        has_hooks(module) or "forward" in vars(module) for module in others
    )


def _maps_of(module: RoFormerLiteAttention | RoFormerLiteMLP) -> list[nn.Module]:
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return [projection for name in names if (projection := getattr(module, name, None)) is not None]


class _LayerStep:
    """One `RoFormerLiteLayer`; its norms and its activation are called, its products computed here."""

    def __init__(self, layer: RoFormerLiteLayer, rows: int):
        self.kind, self.is_pre_norm = layer.layer_type, layer.is_pre_norm
        attention, cross, mlp = layer.self_attn, getattr(layer, "cross_attn", None), layer.mlp
        self.attention, self.cross, self.buffer = attention, cross, GrowingBuffer()
        config = attention.config
        self.num_queries, self.num_keys = config.num_attention_heads, config.num_key_value_heads
        self.norms = layer.self_attn_norm.forward, getattr(layer, "cross_attn_norm", nn.Identity()).forward
        self.mlp_norm = layer.mlp_norm.forward
        self.qkv = PackedProduct([attention.q_proj, attention.k_proj, attention.v_proj], rows)
        self.out = PackedProduct([attention.o_proj], rows)
        if cross is not None:
            self.cross_query = PackedProduct([cross.q_proj], rows)
            self.cross_out = PackedProduct([cross.o_proj], rows)
        self.is_gated, self.act_fn = mlp.gate_proj is not None, mlp.act_fn.forward
        activation = "gelu" if type(mlp.act_fn) is GELUActivation and not self.is_gated else "none"
        self.up = PackedProduct([mlp.gate_proj, mlp.up_proj] if self.is_gated else [mlp.up_proj], rows, activation)
        self.down = PackedProduct([mlp.down_proj], rows)
        self.products = [self.qkv, self.out, self.up, self.down]
        if cross is not None:
            self.products += [self.cross_query, self.cross_out]

    def __call__(self, states: torch.Tensor, tables: Tables, layout: InputLayout) -> torch.Tensor:
        norm, cross_norm = self.norms
        cache = layout.past_key_values
        mask = layout.self_attention[self.kind].mask
        attended = self._attend(norm(states) if self.is_pre_norm else states, tables, cache, mask)
        states = self._add(self.out, attended, states, norm)
        if layout.cross_attention is not None:
            before = cross_norm(states) if self.is_pre_norm else states
            attended = self._attend_to_source(before, cache, layout.cross_attention.mask)
            states = self._add(self.cross_out, attended, states, cross_norm)
        inner = self.up(self.mlp_norm(states) if self.is_pre_norm else states)
        if self.is_gated:
            gate, inner = inner.chunk(2, dim=-1)
            inner = self.act_fn(gate) * inner
        elif not self.up.has_activation:
            inner = self.act_fn(inner)
        return self._add(self.down, inner, states, self.mlp_norm)

    def _add(self, product: PackedProduct, branch: torch.Tensor, residual: torch.Tensor, norm: Any) -> torch.Tensor:
        total = product(branch, residual)
        return total if self.is_pre_norm else norm(total)

    def _attend(self, states: torch.Tensor, tables: Tables, cache: Cache, mask: torch.Tensor | None) -> torch.Tensor:
        """Self-attention, `(B, hidden)` to `(B, heads * head_dim)`; keys and values are added to the cache."""
        module, queries, of_keys = self.attention, self.num_queries, self.num_keys
        heads = self.qkv(states).view(len(states), -1, module.head_dim)  # (B, queries + 2 * keys, head_dim)
        rotated, values = heads.narrow(1, 0, queries + of_keys), heads.narrow(1, queries + of_keys, of_keys)
        if (table := tables["position_embeddings"]) is not None:
            rotated = rotate(rotated, *table)
            if module.rotary_value:
                values = rotate(values, *(tables.get("value_position_embeddings") or table))
        query, keys = rotated.narrow(1, 0, queries), rotated.narrow(1, queries, of_keys)
        keys, values = self._add_to_cache(cache, keys.unsqueeze(2), values.unsqueeze(2))
        return _attention(query, keys, values, mask, module.scaling)

    def _add_to_cache(
        self, cache: Cache, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        own, place = _self_attention_cache(cache), self.attention.layer_idx
        layer = own.layers[place] if place < len(own.layers) else None
        if type(layer) is DynamicLayer and layer.get_seq_length() and not own.offloading:
            return self.buffer.append(layer, keys, values)
        return own.update(keys, values, place)

    def _attend_to_source(
        self, states: torch.Tensor, cache: EncoderDecoderCache, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Cross-attention, `(B, hidden)` to `(B, heads * head_dim)`, with what the cache holds of the source."""
        module, source = self.cross, cache.cross_attention_cache.layers[self.cross.layer_idx]
        query = self.cross_query(states).view(len(states), -1, module.head_dim)
        return _attention(query, source.keys, source.values, mask, module.scaling)


def _attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Queries `(B, heads, head_dim)`, keys and values `(B, key_value_heads, L, head_dim)`: `(B, heads * head_dim)`.

    The query heads that share a key-value head are its queries, so that nothing is repeated.
    """
    rows, key_heads, _, width = keys.shape
    grouped = query.view(rows, key_heads, -1, width)  # (B, key_value_heads, group, head_dim)
    if mask is not None and mask.shape[1] > 1:  # one for each query head
        mask = mask.reshape(len(mask), key_heads, -1, mask.shape[-1])
    return F.scaled_dot_product_attention(grouped, keys, values, mask, scale=scaling).flatten(1)


__all__ = ["DecodingStep", "decoding_step", "reorder_beams", "step_logits"]
