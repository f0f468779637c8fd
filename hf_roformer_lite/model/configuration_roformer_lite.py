"""The configuration of one stack of layers, and what both configurations have in common."""

import copy
import difflib
import math
from typing import Any, ClassVar, Literal, TypeVar

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation.configuration_utils import GenerationConfig

from .hub import HEADS, REFERENCE_LAYERS, RemoteCode
from .parallel import FSDP_PLAN, TensorParallelPlan
from .presets import preset_fields
from .rope_parameters import check_rope_parameters

LAYER_TYPES = ("full_attention", "sliding_attention")
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
ATTENTION_MATRICES = ("q", "k", "v", "o")
DROPOUT_PLACES = ("embeddings", "attention", "mlp")

POSITIVE_FIELDS = (
    "hidden_size",
    "embedding_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "num_mlp_layers",
    "qkv_mlp_layers",
)
NON_NEGATIVE_FIELDS = (
    "vocab_size",
    "type_vocab_size",
    "num_hidden_layers",
    "qkv_intermediate_size",
    "norm_eps",
    "embedding_norm_eps",
    "initializer_range",
)
PROBABILITY_FIELDS = (
    "hidden_dropout",
    "attention_dropout",
    "mlp_dropout",
    "classifier_dropout",
    "qkv_dropout",
)

# Version 0.1 or 0.2 wrote these fields, which describe scores of the text in a classifier.
FIELDS_OF_TEXT_SCORES = (
    "classifier_text_features",
    "classifier_text_counts",
    "classifier_token_bytes",
    "decode_tags",
)

# Arguments that configurations of transformers take although no field or property has their name.
NAMES_OF_TRANSFORMERS = (
    # The base class and the RoPE mixin read these.
    "attn_implementation",
    "experts_implementation",
    "partial_rotary_factor",
    "rope_theta",
    # Loading, quantization, adapters and training write these into a config.json.
    "adapters",
    "auto_map",
    "compression_config",
    "gradient_checkpointing",
    "quantization_config",
)


class RoFormerLiteBaseConfig(RemoteCode, PreTrainedConfig):
    """The common part of both configurations: bundles of code, fields, and checks of names and
    values."""

    keys_to_ignore_at_inference = ["past_key_values", "cache"]

    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    def require(self, holds: bool, field: str, what: str) -> None:
        """Reject the value of `field` unless `holds` is true; `what` describes the valid values.

        Raises:
            ValueError: with the field, its value and the valid values.
        """
        if not holds:
            raise ValueError(f"{field}={getattr(self, field)!r} is invalid: it must be {what}.")

    def check_names(self, given: dict[str, Any]) -> None:
        """Reject arguments that are not fields, because transformers silently accepts every name.

        A saved configuration, which has a `model_type`, always loads, even if another program or
        version has added fields to it.

        Raises:
            TypeError: naming the argument and, if there is one, the field that was meant.
        """
        if "model_type" in given:
            return
        fields = type(self).__dataclass_fields__
        known = {*fields, *dir(type(self)), *NAMES_OF_TRANSFORMERS}
        # Older versions of transformers kept the settings of generation in the configuration.
        known |= vars(GenerationConfig()).keys()
        for name in given:
            if name in known or name.startswith("_"):
                continue
            hint = "."
            similar = difflib.get_close_matches(name, fields, n=1)
            if similar:
                hint = f"; did you mean {similar[0]!r}?"
            if name in RoFormerLiteConfig.__dataclass_fields__:
                hint += (
                    " Pass it to encoder= and decoder=, or to from_preset, which hands it to both."
                )
            raise TypeError(f"{type(self).__name__} has no field {name!r}{hint}")


@strict
class RoFormerLiteConfig(RoFormerLiteBaseConfig):
    r"""One stack of Transformer layers: an encoder, or (with `is_decoder`) a decoder.

    Args:
        vocab_size (`int`, defaults to 8192): The number of rows of the token embedding. With 0 the
            stack has no token embedding and takes only `inputs_embeds`.
        hidden_size (`int`, defaults to 256): The width of the residual stream.
        embedding_size (`int`, *optional*): The width of the token embedding, which is projected to
            `hidden_size` if the two differ (as in ALBERT and RoFormer). The default is
            `hidden_size`.
        type_vocab_size (`int`, defaults to 0): The number of segment embeddings (BERT has 2). With
            0 there are none.
        num_hidden_layers (`int`, defaults to 4): The number of layers.
        num_attention_heads (`int`, defaults to 4): The number of query heads in each layer.
        num_key_value_heads (`int`, *optional*): A number smaller than `num_attention_heads` means
            grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245). The default is
            `num_attention_heads`.
        head_dim (`int`, *optional*): The width of one head. The default is `hidden_size //
            num_attention_heads`.
        intermediate_size (`int`, defaults to 1024): The inner width of the feed-forward.
        hidden_act (`str`, defaults to `"gelu"`): The activation of the feed-forward, by its name in
            transformers' `ACT2FN`.
        gated_mlp (`bool`, defaults to `False`): Computes `down(act(gate(x)) * up(x))` instead of
            `down(act(up(x)))` (Shazeer 2020, arXiv:2002.05202), which takes a third matrix.
        layer_style (`str`, defaults to `"standard"`): The styles `parallel_heads` and `walkthrough`
            are the layers of two reference systems. The file `reference_layers.py` describes them
            and their fields `num_mlp_layers`, `qkv_mlp_layers`, `qkv_intermediate_size` and
            `qkv_dropout`.
        hidden_dropout (`float`, defaults to 0.1): The dropout on the embeddings, and on every
            branch before it is added to the residual stream.
        hidden_dropout_places (`list[str]`, *optional*): The places of `hidden_dropout`, some of
            `embeddings`, `attention` and `mlp`. The default is all three.
        attention_dropout (`float`, defaults to 0.0): The dropout on the attention probabilities.
        mlp_dropout (`float`, defaults to 0.0): The dropout between the two maps of a feed-forward.
        attention_bias (`bool` or `list[str]`, defaults to `True`): Whether the projections of
            attention have biases. A list names those that have one, some of `q`, `k`, `v` and `o`
            (Qwen2 has the first three).
        mlp_bias (`bool` or `list[str]`, defaults to `True`): The same for the matrices of the
            feed-forward, `gate`, `up` and `down`.
        norm_type (`str`, defaults to `"layernorm"`): Either `layernorm` or `rmsnorm` (Zhang &
            Sennrich 2019, arXiv:1910.07467).
        norm_placement (`str`, defaults to `"pre"`): With `pre` the input of each branch is
            normalised, with `post` the sum after each branch (as in the original Transformer).
            Pre-norm trains stably at any depth.
        norm_eps (`float`, defaults to 1e-6): The number that is added to the variance before its
            root is taken.
        norm_bias (`bool`, defaults to `True`): Whether layer norms have biases. RMSNorm never has.
        first_attention_norm (`bool`, defaults to `True`): Whether there is a norm before the
            attention of the first layer (ModernBERT has none). Takes effect with
            `norm_placement="pre"`.
        final_norm (`bool`, *optional*): Whether a norm follows the last layer. By default there is
            one with `norm_placement="pre"` only.
        embedding_norm (`bool`, defaults to `False`): Whether the sum of the embeddings is
            normalised (as in BERT).
        embedding_norm_eps (`float`, *optional*): The `norm_eps` of the norm of the embeddings. The
            default is `norm_eps`.
        scale_embeddings (`bool`, defaults to `True`): Multiplies token embeddings by
            `sqrt(embedding_size)` (Vaswani et al. 2017, section 3.4). Without it, the small initial
            embeddings are outweighed by the output of the first layers.
        position_embedding_type (`str`, defaults to `"rope"`): One of `rope` (Su et al. 2021,
            arXiv:2104.09864), `sinusoidal` (interleaved sines and cosines, Vaswani et al. 2017),
            `learned` and `none`.
        rope_parameters (`dict`, *optional*): transformers' dictionary with `rope_type`
            (default, linear, dynamic, yarn, longrope or llama3), `rope_theta` (10000 by default),
            `partial_rotary_factor` and the parameters of the type; or one such dictionary for each
            type of `layer_types`.
        rotary_value (`bool`, defaults to `False`): Rotates the values too (an option of RoFormer).
        max_position_embeddings (`int`, defaults to 512): The number of rows of the learned
            positions. With `rope` only the RoPE scalings read it, and nothing limits the length.
        layer_types (`list[str]`, *optional*): The type of each layer, `full_attention` or
            `sliding_attention`. By default all layers are full, or all are sliding if
            `sliding_window` is set.
        sliding_window (`int`, *optional*): The reach of the sliding layers in tokens. A causal
            layer attends to the last `sliding_window` tokens including the token itself, which are
            at least 2, a bidirectional layer to `sliding_window` tokens on each side. As in
            transformers, padding between the tokens of a sequence counts.
        token_dropout_mask_id (`int`, *optional*): The id of the mask token in encoders that were
            trained with token dropout (ESM-2, Lin et al. 2023). The embeddings of mask tokens are
            set to zero, and all others of a document are multiplied by 0.88 / (1 - its share of
            mask tokens), where 0.88 is the share of tokens that training left unmasked.
        add_pooling_layer (`bool`, defaults to `False`): Adds the pooler of BERT to the bare stack,
            which then returns `pooler_output`.
        classifier_pooling (`str`, defaults to `"mean"`): The states that sequence heads read: the
            `mean` over the tokens, the first token (`cls`), the `last` token, or `late`, the mean
            after the dense layer of `classifier_activation` (EuroBERT).
        classifier_activation (`str`, *optional*): Adds a dense layer with this activation before
            the classifier (BERT and RoFormer use `tanh`).
        classifier_norm (`bool`, defaults to `False`): Adds a norm after the dense layer of
            `classifier_activation` (ModernBERT).
        classifier_dropout (`float`, *optional*): The dropout before a classifier. The default is
            `hidden_dropout`.
        classifier_input_dropout (`bool`, defaults to `False`): Applies `classifier_dropout` before
            the dense layer, too (RoBERTa).
        lm_head_transform (`bool`, defaults to `False`): Adds a dense layer, an activation and a
            norm before the LM head, as in BERT.
        head_bias (`bool`, defaults to `True`): Whether the dense layer of either head has a bias.
        lm_head_bias (`bool`, defaults to `False`): Whether the LM head has a bias.
        is_decoder (`bool`, defaults to `False`): Makes attention causal, with a cache.
        add_cross_attention (`bool`, defaults to `False`): Adds attention to the states of an
            encoder to each layer of a decoder.
        cross_attention_hidden_size (`int`, *optional*): The width of the states of the encoder. The
            default is `hidden_size`.
        tie_word_embeddings (`bool`, defaults to `True`): Uses one matrix for token embedding and LM
            head.
        skip_logits (`bool`, defaults to `True`): In training with labels, only labelled positions
            go through the LM head, and using `logits` raises an error. Set this field to False, or
            pass `skip_logits=False`, if a training loop reads the logits. In version 0.1, the field
            was called `sparse_prediction`.
        initializer_range (`float`, defaults to 0.02): The standard deviation of the initial
            weights.
        use_cache (`bool`, defaults to `True`): Whether decoders return their keys and values.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): The ids that
            `RoFormerLiteTokenizer` gives to [PAD], [CLS] and [SEP]: 0, 2 and 3.

    Raises:
        TypeError: for unknown fields.
        ValueError, StrictDataclassError: for values or combinations with which no model can be
            built.
    """

    model_type = "roformer_lite"
    attribute_map = {"sparse_prediction": "skip_logits"}
    base_model_tp_plan = TensorParallelPlan()
    base_model_fsdp_plan: ClassVar[dict[Any, str]] = FSDP_PLAN

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
    layer_style: Literal["standard", "parallel_heads", "walkthrough"] = "standard"
    num_mlp_layers: int = 1
    qkv_mlp_layers: int = 1
    qkv_intermediate_size: int | None = None
    qkv_dropout: float | int | None = None
    hidden_dropout: float | int = 0.1
    hidden_dropout_places: list[str] | None = None
    attention_dropout: float | int = 0.0
    mlp_dropout: float | int = 0.0
    attention_bias: bool | list[str] = True
    mlp_bias: bool | list[str] = True
    norm_type: Literal["layernorm", "rmsnorm"] = "layernorm"
    norm_placement: Literal["pre", "post"] = "pre"
    norm_eps: float | int = 1e-6
    norm_bias: bool = True
    first_attention_norm: bool = True
    final_norm: bool | None = None
    embedding_norm: bool = False
    embedding_norm_eps: float | int | None = None
    scale_embeddings: bool = True
    position_embedding_type: Literal["rope", "sinusoidal", "learned", "none"] = "rope"
    rope_parameters: dict[str, Any] | None = None
    rotary_value: bool = False
    max_position_embeddings: int = 512
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    token_dropout_mask_id: int | None = None
    add_pooling_layer: bool = False
    classifier_pooling: Literal["mean", "cls", "last", "late"] = "mean"
    classifier_activation: str | None = None
    classifier_norm: bool = False
    classifier_dropout: float | int | None = None
    classifier_input_dropout: bool = False
    lm_head_transform: bool = False
    head_bias: bool = True
    lm_head_bias: bool = False
    is_decoder: bool = False
    add_cross_attention: bool = False
    cross_attention_hidden_size: int | None = None
    skip_logits: bool = True
    initializer_range: float | int = 0.02

    @classmethod
    def from_preset(cls, name: str, **fields: Any) -> "RoFormerLiteConfig":
        """A config of size `name` (tiny, mini, small, base), in which `fields` override those of
        the preset."""
        return cls(**{**preset_fields(name), **fields})

    def __post_init__(self, **kwargs: Any) -> None:
        self.check_names(kwargs)
        drop_fields_of_text_scores(kwargs)
        self._check_rope_is_used(kwargs)
        # Transformers completes the dictionary in place, and the caller may use it again.
        self.rope_parameters = copy.deepcopy(self.rope_parameters)
        self._derive_fields()
        if not self.vocab_size:
            for field in TOKEN_IDS:
                setattr(self, field, None)
        self.attention_bias = shortest_list(self.attention_bias, ATTENTION_MATRICES)
        self.mlp_bias = shortest_list(self.mlp_bias, self.mlp_matrices())
        super().__post_init__(**kwargs)
        if self.position_embedding_type == "rope":
            self._simplify_rope_parameters()
        else:
            self.rope_parameters = None

    def _check_rope_is_used(self, kwargs: dict[str, Any]) -> None:
        """Reject parameters of a rotation that the layers do not have."""
        if self.position_embedding_type == "rope":
            return
        if self.rope_parameters or kwargs.get("rope_scaling") or kwargs.get("rope_theta"):
            raise ValueError(
                f"rope_parameters={self.rope_parameters or kwargs} can't be combined with "
                f"position_embedding_type={self.position_embedding_type!r}."
            )

    def _derive_fields(self) -> None:
        """Replace each None by the value that other fields suggest."""
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.layer_style == "parallel_heads":
            if self.head_dim is None:
                self.head_dim = self.hidden_size
            if self.qkv_intermediate_size is None:
                self.qkv_intermediate_size = self.intermediate_size // 2
        if self.head_dim is None and self.num_attention_heads > 0:
            self.require(
                self.hidden_size % self.num_attention_heads == 0,
                field="hidden_size",
                what=f"a multiple of num_attention_heads={self.num_attention_heads}, "
                "unless head_dim is set",
            )
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.final_norm is None:
            self.final_norm = self.norm_placement == "pre"
        if self.layer_types is None:
            kind = "full_attention" if self.sliding_window is None else "sliding_attention"
            self.layer_types = [kind] * self.num_hidden_layers

    def _simplify_rope_parameters(self) -> None:
        """Complete the parameters, and store a single dictionary if all layers rotate alike."""
        by_type = self.rope_parameters_of_layers()
        for parameters in by_type.values():
            if isinstance(parameters, dict) and parameters.get("rope_type") == "default":
                parameters.setdefault("partial_rotary_factor", 1.0)
        if None in by_type:
            return
        used = [by_type.get(kind) for kind in sorted(set(self.layer_types or ()))]
        if used and isinstance(used[0], dict) and used.count(used[0]) == len(used):
            self.rope_parameters = used[0]

    def rope_parameters_of_layers(self) -> dict[str | None, dict[str, Any]]:
        """The parameters of each type of layer, or a single entry `None` if all layers rotate
        alike."""
        parameters: dict[Any, Any] = self.rope_parameters or {}
        is_nested = any(kind in parameters for kind in LAYER_TYPES)
        if is_nested:
            return parameters
        return {None: parameters}

    def file_of_classes(self) -> str:
        """The file that has all classes of a bundle. It is the file of the layers of a reference
        system if the model has some, because that one imports the others."""
        return HEADS if self.layer_style == "standard" else REFERENCE_LAYERS

    def has_bias(self, field: str, matrix: str) -> bool:
        """Whether a matrix has a bias, such as `q` by the field `attention_bias`."""
        setting = getattr(self, field)
        if isinstance(setting, bool):
            return setting
        return matrix in setting

    def hidden_dropout_at(self, place: str) -> float:
        """The dropout at one of `DROPOUT_PLACES`: on the embeddings, after attention, or after the
        feed-forward. There is none on vectors that replace embeddings."""
        places = self.hidden_dropout_places
        has_place = places is None or place in places
        if not has_place or (place == "embeddings" and not self.vocab_size):
            return 0.0
        return self.hidden_dropout

    def mlp_matrices(self) -> tuple[str, ...]:
        """The matrices of a feed-forward, in their order."""
        return ("gate", "up", "down") if self.gated_mlp else ("up", "down")

    def validate_architecture(self) -> None:
        """Reject values and combinations that neither torch nor transformers rejects, but that
        would have no effect or fail far from their cause."""
        self._check_numbers()
        self._check_names()
        self._check_layers()
        self._check_positions()
        self._check_classifier()
        self._check_token_ids()

    def _check_numbers(self) -> None:
        for field in POSITIVE_FIELDS:
            self.require(getattr(self, field) > 0, field=field, what="a positive number")
        for field in NON_NEGATIVE_FIELDS:
            value = getattr(self, field) or 0
            self.require(0 <= value < math.inf, field=field, what="zero or more")
        for field in PROBABILITY_FIELDS:
            value = getattr(self, field) or 0
            self.require(
                0 <= value < 1,
                field=field,
                what="a probability, at least 0 and below 1",
            )

    def _check_names(self) -> None:
        """Check the fields that name activations, matrices or places."""
        activations = ", ".join(sorted(ACT2FN))
        for field in ("hidden_act", "classifier_activation"):
            self.require(
                getattr(self, field) in (None, *ACT2FN),
                field=field,
                what=f"an activation function in transformers, one of {activations}",
            )
        possible = {
            "attention_bias": ATTENTION_MATRICES,
            "mlp_bias": self.mlp_matrices(),
            "hidden_dropout_places": DROPOUT_PLACES,
        }
        for field, names in possible.items():
            setting = getattr(self, field)
            otherwise = "None" if field == "hidden_dropout_places" else "True, False"
            self.require(
                not isinstance(setting, list) or set(setting) <= set(names),
                field=field,
                what=f"{otherwise}, or a list of some of {', '.join(names)}",
            )

    def _check_layers(self) -> None:
        key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.require(
            self.num_attention_heads % key_value_heads == 0,
            field="num_key_value_heads",
            what=f"a divisor of num_attention_heads={self.num_attention_heads}",
        )
        self.require(
            self.first_attention_norm or self.norm_placement == "pre",
            field="first_attention_norm",
            what="True with norm_placement='post'",
        )
        self.require(
            self.is_decoder or not self.add_cross_attention,
            field="is_decoder",
            what="True with add_cross_attention=True",
        )
        # Transformers checks the number of entries, and knows more types.
        layer_types = self.layer_types or []
        self.require(
            set(layer_types) <= set(LAYER_TYPES),
            field="layer_types",
            what=f"a list of entries that are each one of {list(LAYER_TYPES)}",
        )
        # A cache keeps one token less than a window, and transformers takes none as all.
        smallest = 2 if self.is_decoder else 1
        has_window = smallest <= (self.sliding_window or 0) < 2**31
        self.require(
            has_window or "sliding_attention" not in layer_types,
            field="sliding_window",
            what=f"a number of tokens from {smallest} to 2 ** 31 - 1, "
            "as layer_types has sliding_attention layers",
        )

    def _check_positions(self) -> None:
        if self.position_embedding_type == "sinusoidal":
            width = self.embedding_size or self.hidden_size
            self.require(
                width % 2 == 0,
                field="embedding_size",
                what="even, for sinusoidal positions",
            )
        if self.position_embedding_type != "rope":
            return
        by_type = self.rope_parameters_of_layers()
        kinds = set(self.layer_types or ())
        if None not in by_type and set(by_type) != kinds:
            raise ValueError(
                f"rope_parameters={self.rope_parameters} must be one dictionary for all layers, "
                f"or one for each of their types, {', '.join(sorted(kinds))}."
            )
        for parameters in by_type.values():
            check_rope_parameters(parameters, head_dim=self.head_dim or 0)

    def _check_classifier(self) -> None:
        if self.classifier_activation is not None:
            return
        for field in ("classifier_norm", "classifier_input_dropout"):
            self.require(
                not getattr(self, field),
                field=field,
                what="False without classifier_activation",
            )
        self.require(
            self.classifier_pooling != "late",
            field="classifier_pooling",
            what="mean, cls or last without classifier_activation",
        )

    def _check_token_ids(self) -> None:
        if self.pad_token_id is not None and self.vocab_size:
            self.require(
                0 <= self.pad_token_id < self.vocab_size,
                field="pad_token_id",
                what=f"below vocab_size={self.vocab_size}",
            )
        if self.token_dropout_mask_id is not None:
            is_inside = 0 <= self.token_dropout_mask_id < self.vocab_size
            self.require(
                is_inside and not self.is_decoder,
                field="token_dropout_mask_id",
                what=f"below vocab_size={self.vocab_size}, and None in a decoder",
            )


def drop_fields_of_text_scores(saved: dict[str, Any]) -> None:
    """Remove the fields of the scores that versions 0.1 and 0.2 could add to the logits of a
    classifier.

    Raises:
        ValueError: if the saved model has such scores.
    """
    for field in FIELDS_OF_TEXT_SCORES:
        value = saved.pop(field, None)
        if value and field in ("classifier_text_features", "decode_tags"):
            raise ValueError(
                f"{field}={value!r}: this model adds scores of the text to its logits, which is no "
                "longer supported. Open it with version 0.2 of hf_roformer_lite, or train it again."
            )


Value = TypeVar("Value")


def filled(value: Value | None) -> Value:
    """The value of a field that is None only until `__post_init__` fills it, or that validation
    demands.

    Raises:
        ValueError: if it was set to None afterwards.
    """
    if value is None:
        raise ValueError(
            "A required field was set to None after the configuration was initialised; make a new "
            "configuration."
        )
    return value


def shortest_list(setting: bool | list[str], matrices: tuple[str, ...]) -> bool | list[str]:
    """A setting of biases in its shortest form: True for a list of all `matrices`, False for an
    empty list."""
    if isinstance(setting, bool) or not set(setting) <= set(matrices):
        # Wrong names raise an error later, with all other mistakes.
        return setting
    named = [matrix for matrix in matrices if matrix in setting]
    if len(named) in (0, len(matrices)):
        return bool(named)
    return named
