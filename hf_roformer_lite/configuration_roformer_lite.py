"""Configuration of one Transformer stack, and of an encoder–decoder made of two stacks."""

import copy
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig

from .rope_parameters import check_rope_parameters

LAYER_TYPES = ("full_attention", "sliding_attention")

# Widths and depths of the compact BERTs (Turc et al. 2019, arXiv:1908.08962, table 1); base is BERT's own.
PRESETS: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
    "mini": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "small": {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}


def preset_fields(name: str) -> dict[str, int]:
    """The sizes of preset `name` (tiny, mini, small or base), as config fields.

    Raises:
        ValueError: when there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} does not exist; choose one of {', '.join(PRESETS)}.")
    return dict(PRESETS[name])


@strict
class RoFormerLiteConfig(PreTrainedConfig):
    r"""One stack of Transformer layers: an encoder, or (with `is_decoder`) a decoder.

    Args:
        vocab_size (`int`, defaults to 8192): Rows of the token embedding.
        hidden_size (`int`, defaults to 256): Width of the residual stream.
        embedding_size (`int`, *optional*): Width of the token embedding; a projection leads to `hidden_size` when the
            two differ (as ALBERT and RoFormer do). Default: `hidden_size`.
        type_vocab_size (`int`, defaults to 0): Segment embeddings (BERT has 2); 0 leaves them out.
        num_hidden_layers (`int`, defaults to 4): Number of layers.
        num_attention_heads (`int`, defaults to 4): Number of query heads.
        num_key_value_heads (`int`, *optional*): Number of key and value heads; fewer than `num_attention_heads` gives
            grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245). Default: `num_attention_heads`.
        head_dim (`int`, *optional*): Width of one head. Default: `hidden_size // num_attention_heads`.
        intermediate_size (`int`, defaults to 1024): Inner width of the feed-forward.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the feed-forward, a name of `transformers`' `ACT2FN`.
        gated_mlp (`bool`, defaults to `False`): `down(act(gate(x)) * up(x))` in place of `down(act(up(x)))`
            (Shazeer 2020, arXiv:2002.05202); costs a third matrix.
        hidden_dropout (`float`, defaults to 0.1): Dropout on the embeddings and on every branch before it is added.
        attention_dropout (`float`, defaults to 0.0): Dropout on the attention probabilities.
        attention_bias (`bool`, defaults to `True`): Biases in the attention's projections.
        mlp_bias (`bool`, defaults to `True`): Biases in the feed-forward.
        norm_type (`str`, defaults to `"layernorm"`): `layernorm` or `rmsnorm` (Zhang & Sennrich 2019,
            arXiv:1910.07467).
        norm_placement (`str`, defaults to `"pre"`): `pre` normalises what goes into a branch, `post` what comes out
            of the addition (the original Transformer). Pre trains without care at any depth.
        norm_eps (`float`, defaults to 1e-6): Added to the variance before its root.
        norm_bias (`bool`, defaults to `True`): Bias of the layer norms; RMSNorm has none.
        final_norm (`bool`, *optional*): A norm after the last layer. Default: with `norm_placement="pre"` only.
        embedding_norm (`bool`, defaults to `False`): A norm on the sum of the embeddings (as BERT).
        scale_embeddings (`bool`, defaults to `False`): Multiply token embeddings by `sqrt(embedding_size)` (Vaswani
            et al. 2017, section 3.4).
        position_embedding_type (`str`, defaults to `"rope"`): `rope` (Su et al. 2021, arXiv:2104.09864), `sinusoidal`
            (interleaved sine and cosine, Vaswani et al. 2017), `learned` or `none`.
        rope_parameters (`dict`, *optional*): transformers' own dictionary: `rope_type` (default, linear, dynamic,
            yarn, longrope, llama3), `rope_theta` (10000), `partial_rotary_factor` and what the type needs. Only with
            `position_embedding_type="rope"`.
        rotary_value (`bool`, defaults to `False`): Rotate the values too (an option of RoFormer).
        max_position_embeddings (`int`, defaults to 512): Rows of the learned positions; with `rope` only the RoPE
            scalings read it, and nothing limits the length.
        layer_types (`list[str]`, *optional*): `full_attention` or `sliding_attention` for each layer. Default: all
            full; all sliding when only `sliding_window` is given.
        sliding_window (`int`, *optional*): Reach of the sliding layers in tokens. A causal layer sees the last
            `sliding_window` tokens, itself included; a bidirectional one `sliding_window` to each side.
        classifier_pooling (`str`, defaults to `"mean"`): What sequence heads read: `mean` of the tokens, `cls` (the
            first) or `last`.
        classifier_activation (`str`, *optional*): With a name of `ACT2FN`, a dense layer with this activation comes
            before the classifier (BERT and RoFormer have `tanh`). Default: none.
        classifier_dropout (`float`, *optional*): Dropout before a classifier. Default: `hidden_dropout`.
        lm_head_transform (`bool`, defaults to `False`): Dense, activation and norm before the LM head, as BERT's.
        lm_head_bias (`bool`, defaults to `False`): Bias of the LM head.
        is_decoder (`bool`, defaults to `False`): Causal attention and a cache.
        add_cross_attention (`bool`, defaults to `False`): Attention to an encoder's states in each layer.
        cross_attention_hidden_size (`int`, *optional*): Width of those states. Default: `hidden_size`.
        tie_word_embeddings (`bool`, defaults to `True`): One matrix for token embedding and LM head.
        sparse_prediction (`bool`, defaults to `True`): In training, only labelled positions go through the LM head,
            and no `logits` are returned.
        initializer_range (`float`, defaults to 0.02): Standard deviation of the initial weights.
        use_cache (`bool`, defaults to `True`): Whether decoders return their keys and values.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): As `RoFormerLiteTokenizer` numbers them:
            [PAD] 0, [CLS] 2, [SEP] 3.

    Raises:
        StrictDataclassError: for every value and combination that no model can be built from; it names the field, its
            value and what would be right.
    """

    model_type = "roformer_lite"
    keys_to_ignore_at_inference = ["past_key_values"]
    default_theta = 10000.0

    vocab_size: int = 8192
    hidden_size: int = 256
    embedding_size: int | None = None
    type_vocab_size: int = 0
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 1024
    hidden_act: str = "gelu"
    gated_mlp: bool = False
    hidden_dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    attention_bias: bool = True
    mlp_bias: bool = True
    norm_type: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_placement: Literal["pre", "post"] = "pre"
    norm_eps: float | int = 1e-6
    norm_bias: bool = True
    final_norm: bool | None = None
    embedding_norm: bool = False
    scale_embeddings: bool = False
    position_embedding_type: Literal["rope", "sinusoidal", "learned", "none"] = "rope"
    rope_parameters: dict[str, Any] | None = None
    rotary_value: bool = False
    max_position_embeddings: int = 512
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    classifier_pooling: Literal["mean", "cls", "last"] = "mean"
    classifier_activation: str | None = None
    classifier_dropout: float | int | None = None
    lm_head_transform: bool = False
    lm_head_bias: bool = False
    is_decoder: bool = False
    add_cross_attention: bool = False
    cross_attention_hidden_size: int | None = None
    tie_word_embeddings: bool = True
    sparse_prediction: bool = True
    initializer_range: float | int = 0.02
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    @property
    def base_model_tp_plan(self) -> dict[str, str]:
        """Tensor-parallel plan of the modules that this stack has."""
        attentions = ["self_attn", "cross_attn"] if self.add_cross_attention else ["self_attn"]
        plan = {"embeddings.word_embeddings": "embedding_rowwise"}
        for attention in attentions:
            plan |= {f"layers.*.{attention}.{name}_proj": "colwise" for name in "qkv"}
            plan[f"layers.*.{attention}.o_proj"] = "rowwise"
        plan |= {f"layers.*.mlp.{name}_proj": "colwise" for name in (["gate", "up"] if self.gated_mlp else ["up"])}
        return plan | {"layers.*.mlp.down_proj": "rowwise"}

    @property
    def base_model_fsdp_plan(self) -> dict[str, str]:
        """What FSDP2 shards together."""
        plan = {"embeddings.word_embeddings": "free_full_weight", "layers.*": "free_full_weight"}
        return plan | ({"final_norm": "keep_full_weight"} if self.final_norm else {})

    @classmethod
    def from_preset(cls, name: str, **fields: Any) -> "RoFormerLiteConfig":
        """A config of size `name` (tiny, mini, small, base), with any `fields` in place of the preset's."""
        return cls(**{**preset_fields(name), **fields})

    def __post_init__(self, **kwargs: Any):
        if self.position_embedding_type != "rope" and (
            self.rope_parameters or kwargs.get("rope_scaling") or kwargs.get("rope_theta")
        ):
            raise ValueError(
                f"rope_parameters={self.rope_parameters or kwargs} needs position_embedding_type='rope', but it is "
                f"{self.position_embedding_type!r}; leave rope_parameters out."
            )
        self.rope_parameters = copy.deepcopy(self.rope_parameters)  # standardised in place below
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.num_attention_heads > 0:
            self._require(
                self.hidden_size % self.num_attention_heads == 0,
                "hidden_size",
                f"a multiple of num_attention_heads={self.num_attention_heads}, unless head_dim is given",
            )
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.final_norm is None:
            self.final_norm = self.norm_placement == "pre"
        if self.layer_types is None:
            kind = "full_attention" if self.sliding_window is None else "sliding_attention"
            self.layer_types = [kind] * self.num_hidden_layers
        super().__post_init__(**kwargs)
        if self.position_embedding_type != "rope":
            self.rope_parameters = None

    def _require(self, holds: bool, field: str, what: str) -> None:
        if not holds:
            raise ValueError(f"{field}={getattr(self, field)!r} is not possible: it must be {what}.")

    def validate_architecture(self) -> None:
        """Refuse every combination that no model can be built from, naming the field, its value and what is right."""
        positive = "vocab_size hidden_size embedding_size num_attention_heads num_key_value_heads head_dim "
        positive += "intermediate_size max_position_embeddings"
        for field in positive.split():
            self._require(getattr(self, field) > 0, field, "a positive number")
        for field in ("num_hidden_layers", "type_vocab_size", "initializer_range", "norm_eps"):
            self._require(getattr(self, field) >= 0, field, "zero or more")
        for field in ("hidden_dropout", "attention_dropout", "classifier_dropout"):
            if getattr(self, field) is not None:
                self._require(0 <= getattr(self, field) < 1, field, "a probability, at least 0 and below 1")
        for field in ("hidden_act", "classifier_activation"):
            if getattr(self, field) is not None:
                known = f"an activation of transformers, one of {', '.join(sorted(ACT2FN))}"
                self._require(getattr(self, field) in ACT2FN, field, known)
        if self.pad_token_id is not None:
            self._require(
                0 <= self.pad_token_id < self.vocab_size,
                "pad_token_id",
                f"below vocab_size={self.vocab_size}, or None",
            )
        self._require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            "num_key_value_heads",
            f"a divisor of num_attention_heads={self.num_attention_heads}",
        )
        self._require(
            len(self.layer_types) == self.num_hidden_layers and set(self.layer_types) <= set(LAYER_TYPES),
            "layer_types",
            f"a list of num_hidden_layers={self.num_hidden_layers} entries, each one of {', '.join(LAYER_TYPES)}",
        )
        if "sliding_attention" in self.layer_types:
            reach = "a positive number of tokens, as layer_types has sliding_attention layers"
            self._require(self.sliding_window is not None and self.sliding_window > 0, "sliding_window", reach)
        if self.add_cross_attention:
            self._require(self.is_decoder, "is_decoder", "True, as add_cross_attention=True makes it a decoder")
        if self.cross_attention_hidden_size is not None:
            self._require(self.cross_attention_hidden_size > 0, "cross_attention_hidden_size", "a positive number")
        if self.position_embedding_type == "sinusoidal":
            self._require(self.embedding_size % 2 == 0, "embedding_size", "even, for sinusoidal positions")
        if self.position_embedding_type == "rope":
            check_rope_parameters(self.rope_parameters, self.head_dim)


@strict
class RoFormerLiteSeq2SeqConfig(PreTrainedConfig):
    r"""An encoder and a decoder, each a [`RoFormerLiteConfig`] of its own depth, width and vocabulary.

    Args:
        encoder, decoder (`RoFormerLiteConfig` or `dict`, *optional*): The two stacks; default configs when left out.
            They are copied; the decoder's copy becomes causal, with cross-attention to the encoder's width.
        tie_word_embeddings (`bool`, defaults to `True`): One matrix for the decoder's embedding and the LM head.
        share_embeddings (`bool`, defaults to `False`): The encoder uses that matrix too (one vocabulary for both
            sides). Takes effect with `tie_word_embeddings`, as transformers ties all or nothing.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`): As `RoFormerLiteTokenizer` numbers
            them: [PAD] 0, start [CLS] 2, end [SEP] 3.

    Raises:
        StrictDataclassError: when the two stacks or the token ids do not fit together.
    """

    model_type = "roformer_lite_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values"]
    sub_configs_defaults = {"encoder": RoFormerLiteConfig, "decoder": RoFormerLiteConfig}
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {}  # the plans of the two stacks say it all

    encoder: dict[str, Any] | PreTrainedConfig | None = None
    decoder: dict[str, Any] | PreTrainedConfig | None = None
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    share_embeddings: bool = False
    initializer_range: float | int = 0.02
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3
    decoder_start_token_id: int | None = 2

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
        stacks = {
            side: {**preset_fields(name), **fields, **(own or {})}
            for side, own in (("encoder", encoder), ("decoder", decoder))
        }
        return cls(**stacks, **of_the_pair)

    def __post_init__(self, **kwargs: Any):
        self.encoder, self.decoder = copy.deepcopy(self.encoder), copy.deepcopy(self.decoder)
        super().__post_init__(**kwargs)
        self.encoder.is_decoder = self.encoder.add_cross_attention = False
        self.decoder.is_decoder = self.decoder.add_cross_attention = True
        self.decoder.cross_attention_hidden_size = self.encoder.hidden_size
        for stack in (self.encoder, self.decoder):
            stack.tie_word_embeddings = self.tie_word_embeddings

    def validate_architecture(self) -> None:
        """Refuse stacks and token ids that do not fit together."""
        for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if getattr(self, field) is None:
                raise ValueError(f"{field}=None is not possible: it must be a token id, as generation needs it.")
        for field in ("pad_token_id", "decoder_start_token_id"):
            if not 0 <= getattr(self, field) < self.decoder.vocab_size:
                raise ValueError(
                    f"{field}={getattr(self, field)} is outside the decoder's vocabulary: it must be from 0 to "
                    f"decoder.vocab_size - 1 = {self.decoder.vocab_size - 1}."
                )
        if self.share_embeddings:
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
    def hidden_size(self) -> int:
        return self.decoder.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return self.decoder.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        return self.decoder.num_attention_heads


__all__ = ["RoFormerLiteConfig", "RoFormerLiteSeq2SeqConfig"]
