"""An encoder that computes one vector per text, for export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_roformer_lite.model.modeling_roformer_lite import (
    RoFormerLiteModel,
    RoFormerLitePreTrainedModel,
)
from hf_roformer_lite.model.pooling import pool

from ..errors import InputError
from ..saved.saved_model import load_config, sentence_modules

# These modules of sentence-transformers are supported.
_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


@dataclass
class SentenceEncoderOutput(ModelOutput):
    """States of the tokens, `(B, L, hidden)`, and the vector pooled from them, `(B, hidden)`, not
    normalised."""

    last_hidden_state: torch.Tensor | None = None
    sentence_embedding: torch.Tensor | None = None


def check_sentence_modules(name: str | Path) -> None:
    """Reject a model of sentence-transformers that is damaged, or whose vectors are not token
    states that are pooled as its configuration says.

    Raises:
        InputError: with the file, the unsupported module, or the pooling.
    """
    kinds = sentence_modules(name)
    if not kinds:
        return
    if "Pooling" not in kinds or not _MODULES.issuperset(kinds):
        raise InputError(
            f"{name}: modules.json lists {', '.join(kinds)}, but only pooled vectors can be "
            "exported; use sentence-transformers"
        )
    own = getattr(load_config(name), "classifier_pooling", None)
    if own is not None:
        # This imports the converters of all architectures.
        from hf_roformer_lite.conversion import sentence_pooling

        if sentence_pooling(name) != own:
            raise InputError(
                f"{name}: the pooling of 1_Pooling/config.json differs from "
                f"classifier_pooling={own!r} of config.json; set the field to mean, cls or last if "
                "one of them fits, or use sentence-transformers"
            )


def is_bare_encoder(model: PreTrainedModel) -> bool:
    """Whether a model only returns the states of its tokens, and is therefore exported for
    embeddings."""
    return isinstance(model, RoFormerLiteModel) and not model.config.is_decoder


class SentenceEncoder(RoFormerLitePreTrainedModel):
    """The stack of a model with the pooling of `config.classifier_pooling`. It shares the weights
    of the model.

    Args:
        model: The bare stack, a masked language model, or another model of one encoder.

    Raises:
        InputError: if the model is a decoder or has two stacks.
    """

    def __init__(self, model: PreTrainedModel):
        stack: Any = model.base_model
        if not is_bare_encoder(stack):
            raise InputError(
                f"{type(model).__name__} is not an encoder, and only encoders compute embeddings"
            )
        super().__init__(stack.config)
        self.model = stack

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> SentenceEncoderOutput:
        """The arguments are the same as in `RoFormerLiteModel.forward`."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            use_cache=False,
            return_dict=True,
        )
        states = outputs.last_hidden_state
        pooled = pool(states, self.config.classifier_pooling, attention_mask)
        return SentenceEncoderOutput(states, pooled)
