"""Configuration of an encoder–decoder made of two stacks."""

from .remote_code import RemoteCodeConfig

# isort: split
import copy
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec
from transformers.utils import logging

from .configuration_fields import check_field_names
from .configuration_presets import preset_fields
from .configuration_roformer_lite import RoFormerLiteConfig

logger = logging.get_logger(__name__)

TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


@strict
class RoFormerLiteSeq2SeqConfig(RemoteCodeConfig, PreTrainedConfig):
    r"""An encoder and a decoder, each a [`RoFormerLiteConfig`] of its own depth, width and vocabulary.

    Args:
        encoder, decoder (`RoFormerLiteConfig` or `dict`, *optional*): The two stacks; default configs when left out.
            They are copied; the decoder's copy becomes causal, with cross-attention to the encoder's width.
        tie_word_embeddings (`bool`, defaults to `True`): One matrix for the decoder's embedding and the LM head.
        share_embeddings (`bool`, defaults to `False`): The encoder uses that matrix too (one vocabulary for both
            sides). Takes effect with `tie_word_embeddings`, as transformers ties all or nothing.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`): As `RoFormerLiteTokenizer` numbers
            them: [PAD] 0, start [CLS] 2, end [SEP] 3. The decoder takes the first three over.

    Raises:
        TypeError: for a field that there is not, of the pair or of a stack.
        StrictDataclassError: when the two stacks or the token ids do not fit together.
    """

    model_type = "roformer_lite_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values"]
    sub_configs_defaults = {side: SubConfigSpec(RoFormerLiteConfig) for side in ("encoder", "decoder")}
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {}  # the two stacks have plans of their own

    encoder: dict[str, Any] | PreTrainedConfig | None = None
    decoder: dict[str, Any] | PreTrainedConfig | None = None
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    share_embeddings: bool = False
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

    @staticmethod
    def auto_classes() -> dict[str, type]:
        from .encoder_decoder import RoFormerLiteForConditionalGeneration, RoFormerLiteSeq2SeqModel

        return {
            "AutoModel": RoFormerLiteSeq2SeqModel,
            "AutoModelForSeq2SeqLM": RoFormerLiteForConditionalGeneration,
        }

    @classmethod
    def from_preset(
        cls,
        name: str,
        encoder: dict[str, Any] | None = None,
        decoder: dict[str, Any] | None = None,
        **fields: Any,
    ) -> "RoFormerLiteSeq2SeqConfig":
        """Both stacks of size `name`. `fields` of the pair go to the pair, all others to both stacks; `encoder` and
        `decoder` hold fields of one stack alone."""
        of_the_pair = {key: fields.pop(key) for key in list(fields) if key in cls.__dataclass_fields__}
        if "vocab_size" in fields:  # one vocabulary, one table
            of_the_pair.setdefault("share_embeddings", of_the_pair.get("tie_word_embeddings", True))
        ids = {key: value for key, value in of_the_pair.items() if key in TOKEN_IDS}
        stacks = {
            side: {**preset_fields(name), **ids, **fields, **(own or {})}
            for side, own in (("encoder", encoder), ("decoder", decoder))
        }
        return cls(**stacks, **of_the_pair)

    def __post_init__(self, **kwargs: Any):
        of_a_stack = RoFormerLiteConfig.__dataclass_fields__.keys() - PreTrainedConfig.__dataclass_fields__.keys()
        have_setters = {"vocab_size", "initializer_range", "max_position_embeddings"}
        misplaced = sorted(of_a_stack & kwargs.keys() - have_setters)
        if misplaced:
            logger.warning_once(
                f"{', '.join(f'{field}={kwargs[field]!r}' for field in misplaced)}: nothing reads this of the pair; "
                "give it to encoder= and decoder=, or to from_preset, which hands it to both."
            )
        check_field_names(self, {name: value for name, value in kwargs.items() if name not in misplaced})
        for side in ("encoder", "decoder"):  # older versions of transformers make no configs of dictionaries
            given = copy.deepcopy(getattr(self, side))
            setattr(self, side, given if isinstance(given, PreTrainedConfig) else RoFormerLiteConfig(**(given or {})))
        super().__post_init__(**kwargs)
        self.encoder.is_decoder = self.encoder.add_cross_attention = False
        self.decoder.is_decoder = self.decoder.add_cross_attention = True
        self.decoder.cross_attention_hidden_size = self.encoder.hidden_size
        if self.decoder.vocab_size:
            for field in TOKEN_IDS:
                setattr(self.decoder, field, getattr(self, field))
        for stack in (self.encoder, self.decoder):
            stack.tie_word_embeddings = self.tie_word_embeddings

    def validate_architecture(self) -> None:
        """Refuse stacks and token ids that do not fit together."""
        for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if getattr(self, field) is None:
                raise ValueError(f"{field}=None is not possible: it must be a token id, as generation needs it.")
        if self.decoder.layer_style != "standard":
            raise ValueError(
                f"decoder.layer_style={self.decoder.layer_style!r} is not possible: it must be 'standard', as the "
                "others have no self-attention beside their cross-attention."
            )
        for field in ("pad_token_id", "decoder_start_token_id"):
            if self.decoder.vocab_size and not 0 <= getattr(self, field) < self.decoder.vocab_size:
                raise ValueError(
                    f"{field}={getattr(self, field)} is outside the decoder's vocabulary: it must be from 0 to "
                    f"decoder.vocab_size - 1 = {self.decoder.vocab_size - 1}."
                )
        if self.share_embeddings:
            if not self.tie_word_embeddings:
                logger.warning_once("share_embeddings=True has no effect with tie_word_embeddings=False.")
            for field in ("vocab_size", "embedding_size"):
                here, there = getattr(self.encoder, field), getattr(self.decoder, field)
                if here != there:
                    raise ValueError(
                        f"share_embeddings=True needs the same {field} on both sides, but the encoder has {here} and "
                        f"the decoder {there}."
                    )

    # transformers reads the decoder's shape from the top of the config, above all when it builds caches.
    @property
    def vocab_size(self) -> int:
        return self.decoder.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.decoder.vocab_size = value
        if self.share_embeddings:
            self.encoder.vocab_size = value

    @property
    def initializer_range(self) -> float:
        return self.decoder.initializer_range

    @initializer_range.setter
    def initializer_range(self, value: float) -> None:
        self.encoder.initializer_range = self.decoder.initializer_range = value

    @property
    def max_position_embeddings(self) -> int:
        return self.decoder.max_position_embeddings

    @max_position_embeddings.setter
    def max_position_embeddings(self, value: int) -> None:
        self.encoder.max_position_embeddings = self.decoder.max_position_embeddings = value

    @property
    def hidden_size(self) -> int:
        return self.decoder.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return self.decoder.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        return self.decoder.num_attention_heads


__all__ = ["RoFormerLiteSeq2SeqConfig"]
