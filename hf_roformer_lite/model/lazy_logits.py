"""Outputs of training whose logits are computed when somebody first reads them, as few do.

The unread logits travel as an entry of the output, so that whatever takes outputs apart and puts them together again
(accelerate under mixed precision, torch's trees) carries them along unread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions, MaskedLMOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput
from transformers.utils.generic import maybe_autocast

from .fast_linear import autocast_dtype
from .torch_internals import version_of


class UnreadLogits:
    """Logits of `hidden_states`, computed once, as they would have been in the forward pass: with gradients if it had
    them, and under its autocast."""

    def __init__(
        self,
        compute: Callable[[torch.Tensor], torch.Tensor],
        hidden_states: torch.Tensor,
        modules: Iterable[nn.Module],
    ):
        self._compute, self._hidden_states = compute, hidden_states
        self._weights = [weight for module in modules for weight in module.parameters()]
        self._versions = self._versions_now()
        self._has_grad = torch.is_grad_enabled()
        device, dtype = hidden_states.device, autocast_dtype(hidden_states.device)
        self._autocast = partial(maybe_autocast, device.type, dtype=dtype, enabled=dtype is not None)
        self._logits: torch.Tensor | None = None

    def _versions_now(self) -> list[int]:
        return [version_of(weight) for weight in self._weights]

    def read(self) -> torch.Tensor:
        """The logits, `(B, L, vocab)`.

        Raises:
            RuntimeError: when the weights of the LM head have changed since the forward pass.
        """
        if self._logits is None:
            if self._versions_now() != self._versions:
                raise RuntimeError(
                    "logits: the LM head has changed since the forward pass, by a step of the optimizer; read them "
                    "before it, or set sparse_prediction=False in the config."
                )
            with torch.set_grad_enabled(self._has_grad), self._autocast():
                self._logits = self._compute(self._hidden_states)
            self._hidden_states = self._weights = None
        return self._logits

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[torch.Tensor]]:
        return _same, (self.read().detach(),)


def _same(value: Any) -> Any:
    return value


def read(value: Any) -> Any:
    """`value`, computed if it is logits that nobody has read."""
    return value.read() if isinstance(value, UnreadLogits) else value


class _ReadsLogits:
    """`output.logits`, `output["logits"]` and the output as a tuple give logits; only loops over its items do not."""

    def __getattribute__(self, name: str) -> Any:
        return read(super().__getattribute__(name))

    def __getitem__(self, key: str | int | slice) -> Any:
        names = list(self.keys())
        if isinstance(key, int):  # output[0] is the loss: nothing else is read
            key = names[key]
        return read(super().__getitem__(key))


class LazyMaskedLMOutput(_ReadsLogits, MaskedLMOutput):
    pass


class LazyCausalLMOutput(_ReadsLogits, CausalLMOutputWithCrossAttentions):
    pass


class LazySeq2SeqLMOutput(_ReadsLogits, Seq2SeqLMOutput):
    pass


_LAZY = {kind.__mro__[2]: kind for kind in (LazyMaskedLMOutput, LazyCausalLMOutput, LazySeq2SeqLMOutput)}


def lm_output(kind: type[ModelOutput], logits: torch.Tensor | UnreadLogits | None, **entries: Any) -> ModelOutput:
    """An output of class `kind`, or of a subclass whose logits are computed when they are read."""
    return (_LAZY[kind] if isinstance(logits, UnreadLogits) else kind)(logits=logits, **entries)
