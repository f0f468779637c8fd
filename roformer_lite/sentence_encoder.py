"""An encoder that gives one vector for a text, for export and for the server."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_roformer_lite.model.modeling_roformer_lite import (
    RoFormerLiteModel,
    RoFormerLitePreTrainedModel,
    pool,
)

from .errors import InputError
from .saved_model import load_config, sentence_modules

# Of sentence-transformers; the server normalises anyway.
_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


@dataclass
class SentenceEncoderOutput(ModelOutput):
    """States of the tokens, `(B, L, hidden)`, and the vector pooled from them, `(B, hidden)`, not
    normalised."""

    last_hidden_state: torch.Tensor | None = None
    sentence_embedding: torch.Tensor | None = None


def check_sentence_modules(name: str | Path) -> None:
    """Refuse a model of sentence-transformers that is damaged, or whose vectors are not states of
    tokens, pooled as its configuration says.

    Raises:
        InputError: naming the file, the module that `SentenceEncoder` does not have, or the
            pooling.
    """
    kinds = sentence_modules(name)
    if not kinds:
        return
    if "Pooling" not in kinds or not _MODULES.issuperset(kinds):
        raise InputError(
            f"{name}: by modules.json its answers are those of {', '.join(kinds)}, and only pooled vectors are "
            "exported; use sentence-transformers"
        )
    own = getattr(load_config(name), "classifier_pooling", None)
    if own is not None:
        # This imports all sources of weights.
        from hf_roformer_lite.conversion import sentence_pooling

        if sentence_pooling(name) != own:
            raise InputError(
                f"{name}: 1_Pooling/config.json pools its vectors in another way than classifier_pooling={own!r} of "
                "config.json; set the field to mean, cls or last if one of them is that way, or use "
                "sentence-transformers"
            )


def is_bare_encoder(model: PreTrainedModel) -> bool:
    """Whether a model gives nothing but the states of its tokens, and so is exported for
    embeddings."""
    return isinstance(model, RoFormerLiteModel) and not model.config.is_decoder


class SentenceEncoder(RoFormerLitePreTrainedModel):
    """The stack of a model, pooled as `config.classifier_pooling` says; it shares the model's
    weights.

    Args:
        model: The bare stack, a masked language model, or another model of one encoder.

    Raises:
        InputError: when the model is a decoder or has two stacks.
    """

    def __init__(self, model: PreTrainedModel):
        stack = model.base_model
        if not isinstance(stack, RoFormerLiteModel) or stack.config.is_decoder:
            raise InputError(
                f"{type(model).__name__} is not an encoder, and only encoders give embeddings"
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
        """As `RoFormerLiteModel.forward`."""
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
