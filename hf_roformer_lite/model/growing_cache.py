"""A cache that is written in place, so that a step of decoding does not copy the keys and values of all before it."""

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.utils.import_utils import is_tracing

FIRST_CAPACITY = 64  # tokens that a layer has room for at the start; it doubles when they are used up


class GrowingLayer(DynamicLayer):
    """A `DynamicLayer` whose keys and values are the used part of a buffer, `(2, B, heads, capacity, head_dim)`.

    With gradients and in traces it behaves as its base class: what is written in place cannot be differentiated.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.buffer: torch.Tensor | None = None
        self.spare: torch.Tensor | None = None  # where beams go when they change places

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values `(B, heads, L, head_dim)`; all of them, `(B, heads, past + L, head_dim)`, come back."""
        if torch.is_grad_enabled() or is_tracing(key_states):
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        past = self.get_seq_length()
        length = past + key_states.shape[2]
        if not self._is_writable(length):
            self._grow(key_states, past, length)
        keys, values = self.buffer.unbind()
        keys[:, :, past:length] = key_states
        values[:, :, past:length] = value_states
        self.keys, self.values = keys[:, :, :length], values[:, :, :length]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Copy the beams `(B * beams,)` that stay into the other of two buffers."""
        length = self.get_seq_length()
        if not length or not self._is_writable(length) or len(beam_idx) != len(self.keys):
            return super().reorder_cache(beam_idx)
        if self.spare is None or self.spare.shape != self.buffer.shape:
            self.spare = torch.empty_like(self.buffer)
        index = beam_idx.to(self.buffer.device)
        keys, values = (states[:, :, :length] for states in self.spare.unbind())
        torch.index_select(self.keys, 0, index, out=keys)
        torch.index_select(self.values, 0, index, out=values)
        self.buffer, self.spare = self.spare, self.buffer
        self.keys, self.values = keys, values

    def reset(self) -> None:
        super().reset()
        self.buffer = self.spare = None

    def _is_writable(self, length: int) -> bool:
        """Whether keys and values still are the beginning of the buffer, and it has room for `length` tokens."""
        buffer = self.buffer
        return (
            buffer is not None
            and buffer.shape[3] >= length
            and self.keys.data_ptr() == buffer.data_ptr()
            and self.keys.shape[:2] == buffer.shape[1:3]
            and buffer.is_inference() == torch.is_inference_mode_enabled()
        )

    def _grow(self, key_states: torch.Tensor, past: int, length: int) -> None:
        batch_size, heads, _, head_dim = key_states.shape
        capacity = max(FIRST_CAPACITY, 1 << (length - 1).bit_length())
        self.buffer, self.spare = key_states.new_empty(2, batch_size, heads, capacity, head_dim), None
        if past:
            self.buffer[0, :, :, :past] = self.keys
            self.buffer[1, :, :, :past] = self.values


def write_in_place(cache: Cache) -> None:
    """Let a dynamic cache that is still empty be written in place; every other one stays as it is."""
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if type(cache) is DynamicCache and not cache.offloading:
        cache.layers = [
            GrowingLayer() if type(layer) is DynamicLayer and not layer.is_initialized else layer
            for layer in cache.layers
        ]


__all__ = ["GrowingLayer", "write_in_place"]
