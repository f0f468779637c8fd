"""The configuration of an encoder–decoder, which is made of two stacks."""

import copy
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

from .configuration_roformer_lite import TOKEN_IDS, RoFormerLiteBaseConfig, RoFormerLiteConfig
from .hub import REFERENCE_LAYERS, SEQ2SEQ
from .presets import preset_fields


def of_decoder(field: str, is_set: bool = False) -> property:
    """A field of the decoder as a property of a pair. With `is_set` the property can be set, which
    changes both sides."""

    def read(config: "RoFormerLiteSeq2SeqConfig") -> Any:
        return getattr(config.decoder, field)

    def write(config: "RoFormerLiteSeq2SeqConfig", value: Any) -> None:
        for side in (config.encoder, config.decoder):
            setattr(side, field, value)

    return property(read, write if is_set else None)


@strict
class RoFormerLiteSeq2SeqConfig(RoFormerLiteBaseConfig):
    r"""An encoder and a decoder, each a [`RoFormerLiteConfig`] of its own depth, width and
    vocabulary.

    Args:
        encoder, decoder (`RoFormerLiteConfig` or `dict`, *optional*): The two stacks, by default
            with the default fields. They are copied. The copy of the decoder becomes causal, with
            cross-attention to states of the width of the encoder.
        tie_word_embeddings (`bool`, defaults to `True`): Uses one matrix for the decoder's
            embedding and the LM head.
        share_embeddings (`bool`, defaults to `False`): Uses that matrix in the encoder too, so that
            both sides have one vocabulary. Takes effect with `tie_word_embeddings`, as transformers
            ties all or nothing.
        use_cache (`bool`, defaults to `True`): Whether the decoder returns its keys and values.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`): The ids that
            `RoFormerLiteTokenizer` gives to [PAD], [CLS], [SEP] and [CLS], where [CLS] starts and
            [SEP] ends a text: 0, 2, 3 and 2. The decoder takes over the first three.

    Raises:
        TypeError: for unknown fields, of the pair or of a stack.
        ValueError, StrictDataclassError: when the two stacks or the token ids do not fit together.
    """

    model_type = "roformer_lite_seq2seq"
    sub_configs = {"encoder": RoFormerLiteConfig, "decoder": RoFormerLiteConfig}
    # The two stacks have plans of their own.
    base_model_fsdp_plan: ClassVar[dict[Any, str]] = {}

    encoder: dict[str, Any] | PreTrainedConfig | None = None
    decoder: dict[str, Any] | PreTrainedConfig | None = None
    is_encoder_decoder: bool = True
    share_embeddings: bool = False
    decoder_start_token_id: int | None = 2

    @classmethod
    def from_preset(
        cls,
        name: str,
        encoder: dict[str, Any] | None = None,
        decoder: dict[str, Any] | None = None,
        **fields: Any,
    ) -> "RoFormerLiteSeq2SeqConfig":
        """Both stacks of size `name`. Those `fields` that the pair has go to the pair, all others
        to both stacks; `encoder` and `decoder` hold fields of one stack only."""
        of_pair: dict[str, Any] = {}
        of_stacks: dict[str, Any] = dict(preset_fields(name))
        for field, value in fields.items():
            if field in cls.__dataclass_fields__:
                of_pair[field] = value
            else:
                of_stacks[field] = value
            if field in TOKEN_IDS:
                of_stacks[field] = value
        if "vocab_size" in fields:
            # One vocabulary for both sides suggests one table.
            is_tied = of_pair.get("tie_word_embeddings", True)
            of_pair.setdefault("share_embeddings", is_tied)
        return cls(
            encoder={**of_stacks, **(encoder or {})},
            decoder={**of_stacks, **(decoder or {})},
            **of_pair,
        )

    def __post_init__(self, **kwargs: Any) -> None:
        self.check_names(kwargs)
        # Older versions of transformers make no configurations of dictionaries.
        for side in ("encoder", "decoder"):
            stack = copy.deepcopy(getattr(self, side))
            if not isinstance(stack, PreTrainedConfig):
                stack = RoFormerLiteConfig(**(stack or {}))
            setattr(self, side, stack)
        super().__post_init__(**kwargs)
        self._fit_stacks()

    def stacks(self) -> tuple[RoFormerLiteConfig, RoFormerLiteConfig]:
        """Encoder and decoder, which `__post_init__` has made configurations."""
        return self.encoder, self.decoder  # type: ignore[return-value]

    def _fit_stacks(self) -> None:
        encoder, decoder = self.stacks()
        for stack in (encoder, decoder):
            stack.is_decoder = stack is decoder
            stack.add_cross_attention = stack is decoder
            stack.tie_word_embeddings = self.tie_word_embeddings
        decoder.cross_attention_hidden_size = encoder.hidden_size
        if decoder.vocab_size:
            for field in TOKEN_IDS:
                setattr(decoder, field, getattr(self, field))

    def validate_architecture(self) -> None:
        """Reject stacks and token ids that do not fit together."""
        encoder, decoder = self.stacks()
        if decoder.layer_style != "standard":
            raise ValueError(
                f"decoder.layer_style={decoder.layer_style!r} has no cross-attention "
                "in addition to self-attention."
            )
        for field in ("vocab_size", "embedding_size"):
            encoder_value = getattr(encoder, field)
            decoder_value = getattr(decoder, field)
            self.require(
                not self.share_embeddings or encoder_value == decoder_value,
                field="share_embeddings",
                what=f"False, or {field} the same on both sides, "
                f"not {encoder_value} and {decoder_value}",
            )
        for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            self.require(
                getattr(self, field) is not None,
                field=field,
                what="a token id, as generation needs it",
            )
        if not decoder.vocab_size:
            return
        last = decoder.vocab_size - 1
        for field in ("pad_token_id", "decoder_start_token_id"):
            self.require(
                0 <= getattr(self, field) <= last,
                field=field,
                what=f"from 0 to decoder.vocab_size - 1 = {last}",
            )

    def file_of_classes(self) -> str:
        encoder, _ = self.stacks()
        return SEQ2SEQ if encoder.layer_style == "standard" else REFERENCE_LAYERS

    # Transformers and PEFT look for these at the top of the configuration.
    hidden_size = of_decoder("hidden_size")
    num_hidden_layers = of_decoder("num_hidden_layers")
    num_attention_heads = of_decoder("num_attention_heads")
    vocab_size = of_decoder("vocab_size", is_set=True)
    initializer_range = of_decoder("initializer_range", is_set=True)
    max_position_embeddings = of_decoder("max_position_embeddings", is_set=True)
