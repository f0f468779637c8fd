"""Keys and values that are written in place, so that a step of decoding does not copy those of all tokens before it.

The cache stays one of transformers: the tensors of its layers become the used part of a larger buffer. The buffers are
no attributes of the cache, since exporters take caches apart.
"""

import torch
from transformers.cache_utils import DynamicLayer

FIRST_CAPACITY = 64  # tokens that there is room for at the start; it doubles when they are used up


class GrowingBuffer:
    """Room for the keys and values of one layer of a dynamic cache, `(2, B, heads, capacity, head_dim)`."""

    def __init__(self) -> None:
        self.states: torch.Tensor | None = None
        self.spare: torch.Tensor | None = None  # where beams go when they change places
        self.length = 0

    def append(
        self, layer: DynamicLayer, key_states: torch.Tensor, value_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `layer.update` does: add keys and values `(B, heads, L, head_dim)`; all come back. Without gradients.

        Nothing that was written is written over, as others may still read it; a layer that was cut short since, or
        got other tensors, is copied.
        """
        past = layer.keys.shape[2]
        length = past + key_states.shape[2]
        if not self._holds(layer) or self.states.shape[3] < length:
            rows, heads, _, width = key_states.shape
            self.states = key_states.new_empty(2, rows, heads, max(FIRST_CAPACITY, 1 << length.bit_length()), width)
            self.spare = None
            self.states[0, :, :, :past] = layer.keys
            self.states[1, :, :, :past] = layer.values
        keys, values = self.states.unbind()
        keys[:, :, past:length] = key_states
        values[:, :, past:length] = value_states
        self._show(layer, length)
        return layer.keys, layer.values

    def reorder(self, layer: DynamicLayer, beam_idx: torch.Tensor) -> None:
        """What `layer.reorder_cache` does: keep the beams `(B * beams,)`, with one copy of them, written over what was
        there before the last reordering."""
        if not self._holds(layer) or len(beam_idx) != len(layer.keys):
            return layer.reorder_cache(beam_idx)
        if self.spare is None:
            self.spare = torch.empty_like(self.states)
        index = beam_idx.to(self.states.device)
        for states, kept in zip((layer.keys, layer.values), self.spare.unbind(), strict=True):
            torch.index_select(states, 0, index, out=kept[:, :, : self.length])
        self.states, self.spare = self.spare, self.states
        self._show(layer, self.length)

    def _show(self, layer: DynamicLayer, length: int) -> None:
        self.length = length
        layer.keys, layer.values = self.states[:, :, :, :length].unbind()

    def _holds(self, layer: DynamicLayer) -> bool:
        """Whether the tensors of `layer` are what was written here last, and may be added to."""
        return (
            self.states is not None
            and layer.keys.data_ptr() == self.states[0].data_ptr()
            and layer.values.data_ptr() == self.states[1].data_ptr()
            and layer.keys.shape[:3] == (*self.states.shape[1:3], self.length)
            and self.states.is_inference() == torch.is_inference_mode_enabled()
        )


__all__ = ["GrowingBuffer"]
