"""Configuration of one Transformer stack."""

from .remote_code import RemoteCodeConfig

# isort: split
import copy
import math
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

from .configuration_checks import (
    check_biases,
    check_classifier,
    check_dropout_places,
    check_layer_style,
    check_token_dropout,
    list_of_biases,
)
from .configuration_fields import check_field_names
from .configuration_presets import preset_fields
from .rope_parameters import LAYER_TYPES, check_rope_numbers, check_rope_parameters, in_short_form, is_by_layer_type
from .sharding import ComputedPlan, fsdp_plan, pipeline_plan, tensor_parallel_plan

MAX_LAYERS = 10_000  # lists of as many are made before anything else could refuse a slip of the keyboard


@strict
class RoFormerLiteConfig(RemoteCodeConfig, PreTrainedConfig):
    r"""One stack of Transformer layers: an encoder, or (with `is_decoder`) a decoder.

    Args:
        vocab_size (`int`, defaults to 8192): Rows of the token embedding. 0 leaves the table out: the stack then takes
            vectors (`inputs_embeds`) alone.
        hidden_size (`int`, defaults to 256): Width of the residual stream.
        embedding_size (`int`, *optional*): Width of the token embedding; a projection leads to `hidden_size` when the
            two differ (as ALBERT and RoFormer do). Default: `hidden_size`.
        type_vocab_size (`int`, defaults to 0): Segment embeddings (BERT has 2); 0 leaves them out.
        num_hidden_layers (`int`, defaults to 4): Number of layers.
        num_attention_heads (`int`, defaults to 4): Number of query heads.
        num_key_value_heads (`int`, *optional*): Number of key and value heads; fewer than `num_attention_heads` gives
            grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245). Default: `num_attention_heads`.
        head_dim (`int`, *optional*): Width of one head. Default: `hidden_size // num_attention_heads`. In
            `parallel_heads` layers it is always `hidden_size`.
        intermediate_size (`int`, defaults to 1024): Inner width of the feed-forward.
        hidden_act (`str`, defaults to `"gelu"`): Activation of the feed-forward, a name of `transformers`' `ACT2FN`.
        gated_mlp (`bool`, defaults to `False`): `down(act(gate(x)) * up(x))` in place of `down(act(up(x)))`
            (Shazeer 2020, arXiv:2002.05202); costs a third matrix.
        layer_style (`str`, defaults to `"standard"`): `standard`; `parallel_heads`, heads of full width with a
            feed-forward before each query, key and value (`RoFormerLiteParallelHeadsLayer`); or `walkthrough`, a layer
            with a norm inside its feed-forward branch (`RoFormerLiteWalkthroughLayer`). Parallel heads always use
            PReLU and ignore `hidden_act`; the walkthrough ignores `intermediate_size`.
        num_mlp_layers (`int`, defaults to 1): Feed-forward units of a `parallel_heads` layer, one after the other.
        qkv_mlp_layers (`int`, defaults to 1): Units before each of its queries, keys and values.
        qkv_intermediate_size (`int`, *optional*): Their inner width. Default: `intermediate_size // 2`, the same
            expansion, as the layer's own feed-forward is twice as wide.
        qkv_dropout (`float`, *optional*): Dropout inside them. Default: `hidden_dropout`.
        hidden_dropout (`float`, defaults to 0.1): Dropout on the embeddings and on every branch before it is added.
        hidden_dropout_places (`list[str]`, *optional*): Where it is, of `embeddings`, `attention` and `mlp`; only in
            standard layers (DistilBERT has none behind its attention, ALBERT none behind its feed-forward). Default:
            everywhere.
        attention_dropout (`float`, defaults to 0.0): Dropout on the attention probabilities.
        mlp_dropout (`float`, defaults to 0.0): Dropout between the two maps of a feed-forward (torch's own layers have
            it); only in standard layers.
        attention_bias (`bool` or `list[str]`, defaults to `True`): Biases in the attention's projections; a list names
            those that have one, of `q`, `k`, `v`, `o` (Qwen2 has `["q", "k", "v"]`).
        mlp_bias (`bool` or `list[str]`, defaults to `True`): The same for the feed-forward's `gate`, `up` and `down`
            (GTE has `["down"]`).
        norm_type (`str`, defaults to `"layernorm"`): `layernorm` or `rmsnorm` (Zhang & Sennrich 2019,
            arXiv:1910.07467).
        norm_placement (`str`, defaults to `"pre"`): `pre` normalises what goes into a branch, `post` what comes out
            of the addition (the original Transformer). Pre-norm trains stably at any depth.
        norm_eps (`float`, defaults to 1e-6): Added to the variance before its root.
        norm_bias (`bool`, defaults to `True`): Bias of the layer norms; RMSNorm has none.
        first_attention_norm (`bool`, defaults to `True`): With `norm_placement="pre"`, a norm before the attention of
            the first layer. ModernBERT has none there, as its embeddings have been normalised already.
        final_norm (`bool`, *optional*): A norm after the last layer. Default: with `norm_placement="pre"` only.
        embedding_norm (`bool`, defaults to `False`): A norm on the sum of the embeddings (as BERT).
        embedding_norm_eps (`float`, *optional*): Its eps. Default: `norm_eps`.
        scale_embeddings (`bool`, defaults to `True`): Multiply token embeddings by `sqrt(embedding_size)` (Vaswani
            et al. 2017, section 3.4). Without it, what the first layers add outweighs the small initial embeddings:
            after four minutes of training on Multi30k BLEU is 30.3 with it and 19.7 without, all else equal.
        position_embedding_type (`str`, defaults to `"rope"`): `rope` (Su et al. 2021, arXiv:2104.09864), `sinusoidal`
            (interleaved sine and cosine, Vaswani et al. 2017), `learned` or `none`.
        rope_parameters (`dict`, *optional*): transformers' own dictionary: `rope_type` (default, linear, dynamic,
            yarn, longrope, llama3), `rope_theta` (10000), `partial_rotary_factor` and what the type needs; or one such
            dictionary for each type of `layer_types`. Only with `position_embedding_type="rope"`.
        rotary_value (`bool`, defaults to `False`): Rotate the values too (an option of RoFormer).
        max_position_embeddings (`int`, defaults to 512): Rows of the learned positions; with `rope` only the RoPE
            scalings read it, and nothing limits the length.
        layer_types (`list[str]`, *optional*): `full_attention` or `sliding_attention` for each layer. Default: all
            full; all sliding when only `sliding_window` is given.
        sliding_window (`int`, *optional*): Reach of the sliding layers in tokens. A causal layer sees the last
            `sliding_window` tokens, itself included; a bidirectional one `sliding_window` to each side.
        token_dropout_mask_id (`int`, *optional*): Id of the mask token in models that were trained with token dropout
            (ESM-2, Lin et al. 2023): its embedding counts as zero, and those of a document are multiplied by
            0.88 / (1 - its share of mask tokens), 0.88 being the share that was left in training. Not in decoders.
        add_pooling_layer (`bool`, defaults to `False`): BERT's pooler on the bare stack: dense and tanh over the first
            token of each document, `pooler_output`.
        classifier_pooling (`str`, defaults to `"mean"`): What sequence heads read: `mean` of the tokens, `cls` (the
            first), `last`, or `late`: the mean behind the dense layer of `classifier_activation` (EuroBERT).
        classifier_activation (`str`, *optional*): With a name of `ACT2FN`, a dense layer with this activation comes
            before the classifier (BERT and RoFormer have `tanh`). Default: none.
        classifier_norm (`bool`, defaults to `False`): A norm behind that activation (ModernBERT).
        classifier_dropout (`float`, *optional*): Dropout before a classifier. Default: `hidden_dropout`.
        classifier_input_dropout (`bool`, defaults to `False`): The same before that dense layer, too (RoBERTa).
        classifier_text_features (`int`, defaults to 0): With a positive number, the classifier of sequences adds the
            scores of as many n-grams to its logits, that of tokens those of as many features of words and of the tags
            beside them (`RoFormerLiteTextScores`).
        lm_head_transform (`bool`, defaults to `False`): Dense, activation and norm before the LM head, as BERT's.
        head_bias (`bool`, defaults to `True`): Bias of the dense layer in either head, the classifier's and that of
            `lm_head_transform`.
        lm_head_bias (`bool`, defaults to `False`): Bias of the LM head.
        is_decoder (`bool`, defaults to `False`): Causal attention and a cache.
        add_cross_attention (`bool`, defaults to `False`): Attention to an encoder's states in each layer.
        cross_attention_hidden_size (`int`, *optional*): Width of those states. Default: `hidden_size`.
        tie_word_embeddings (`bool`, defaults to `True`): One matrix for token embedding and LM head.
        sparse_prediction (`bool`, defaults to `True`): In training, only labelled positions go through the LM head;
            `logits` are computed when they are first read (in compiled models they are None).
        chunk_size_feed_forward (`int`, defaults to 0): Tokens that go through the feed-forward at a time, to bound the
            memory of its inner states; in training the backward pass computes these again. 0 decides by their size
            (`RoFormerLiteMLP`). Only in standard layers.
        initializer_range (`float`, defaults to 0.02): Standard deviation of the initial weights. In the comparison
            named under `scale_embeddings`, 0.05 gave BLEU 25.7.
        use_cache (`bool`, defaults to `True`): Whether decoders return their keys and values.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): As `RoFormerLiteTokenizer` numbers them:
            [PAD] 0, [CLS] 2, [SEP] 3.

    Raises:
        TypeError: for a field that there is not.
        StrictDataclassError: for a value or combination of which no model can be built; the message names the field,
            its value and what would be right.
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
    classifier_text_features: int = 0
    lm_head_transform: bool = False
    head_bias: bool = True
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

    base_model_tp_plan = ComputedPlan(tensor_parallel_plan)
    base_model_fsdp_plan = ComputedPlan(fsdp_plan)
    base_model_pp_plan = ComputedPlan(pipeline_plan)

    @staticmethod
    def auto_classes() -> dict[str, type]:
        from .lm_heads import RoFormerLiteForCausalLM, RoFormerLiteForMaskedLM
        from .modeling_roformer_lite import RoFormerLiteModel
        from .task_heads import (
            RoFormerLiteForMultipleChoice,
            RoFormerLiteForQuestionAnswering,
            RoFormerLiteForSequenceClassification,
            RoFormerLiteForTokenClassification,
        )

        return {
            "AutoModel": RoFormerLiteModel,
            "AutoModelForMaskedLM": RoFormerLiteForMaskedLM,
            "AutoModelForCausalLM": RoFormerLiteForCausalLM,
            "AutoModelForSequenceClassification": RoFormerLiteForSequenceClassification,
            "AutoModelForTokenClassification": RoFormerLiteForTokenClassification,
            "AutoModelForQuestionAnswering": RoFormerLiteForQuestionAnswering,
            "AutoModelForMultipleChoice": RoFormerLiteForMultipleChoice,
        }

    @classmethod
    def from_preset(cls, name: str, **fields: Any) -> "RoFormerLiteConfig":
        """A config of size `name` (tiny, mini, small, base), with any `fields` in place of the preset's."""
        return cls(**{**preset_fields(name), **fields})

    def __post_init__(self, **kwargs: Any):
        check_field_names(self, kwargs)
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
        if self.layer_style == "parallel_heads":
            if self.head_dim is None:
                self.head_dim = self.hidden_size
            if self.qkv_intermediate_size is None:
                self.qkv_intermediate_size = self.intermediate_size // 2
        if self.head_dim is None and self.num_attention_heads > 0:
            self.require(
                self.hidden_size % self.num_attention_heads == 0,
                "hidden_size",
                f"a multiple of num_attention_heads={self.num_attention_heads}, unless head_dim is given",
            )
            self.head_dim = self.hidden_size // self.num_attention_heads
        if not self.vocab_size:
            self.pad_token_id = self.bos_token_id = self.eos_token_id = None
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.final_norm is None:
            self.final_norm = self.norm_placement == "pre"
        for field in ("num_hidden_layers", "num_mlp_layers", "qkv_mlp_layers"):
            self.require(getattr(self, field) <= MAX_LAYERS, field, f"at most {MAX_LAYERS:,}")
        if self.layer_types is None:
            kind = "full_attention" if self.sliding_window is None else "sliding_attention"
            self.layer_types = [kind] * self.num_hidden_layers
        self.attention_bias = list_of_biases(self.attention_bias, ("q", "k", "v", "o"))
        self.mlp_bias = list_of_biases(self.mlp_bias, ("gate", "up", "down") if self.gated_mlp else ("up", "down"))
        super().__post_init__(**kwargs)
        if self.position_embedding_type != "rope":
            self.rope_parameters = None
            return
        for parameters in self.rope_parameters_of_layers().values():
            if not isinstance(parameters, dict):
                continue  # refused with all other mistakes
            if parameters.get("rope_type") == "default":
                parameters.setdefault("partial_rotary_factor", 1.0)
            check_rope_numbers(parameters)
        self.rope_parameters = in_short_form(self.rope_parameters, self.layer_types)

    def rope_parameters_of_layers(self) -> dict[str | None, dict[str, Any]]:
        """The parameters of each type of layer; a single entry, `None`, where all layers rotate alike."""
        is_nested = is_by_layer_type(self.rope_parameters)
        return self.rope_parameters if is_nested else {None: self.rope_parameters}

    def has_bias(self, field: str, matrix: str) -> bool:
        """Whether a matrix has a bias, such as `q` by the field `attention_bias`."""
        setting = getattr(self, field)
        return setting if isinstance(setting, bool) else matrix in setting

    def hidden_dropout_at(self, place: str) -> float:
        """The dropout on the embeddings, or behind the attention or the feed-forward (`mlp`)."""
        places = self.hidden_dropout_places
        return self.hidden_dropout if places is None or place in places else 0.0

    def require(self, holds: bool, field: str, what: str) -> None:
        """Refuse the value of `field` unless something `holds`; `what` says what it must be.

        Raises:
            ValueError: with field, value and what would be right.
        """
        if not holds:
            raise ValueError(f"{field}={getattr(self, field)!r} is not possible: it must be {what}.")

    def validate_architecture(self) -> None:
        """Refuse every combination that no model can be built from, naming the field, its value and what is right."""
        positive = "hidden_size embedding_size num_attention_heads num_key_value_heads head_dim intermediate_size "
        positive += "max_position_embeddings num_mlp_layers qkv_mlp_layers"
        for field in positive.split():
            self.require(getattr(self, field) > 0, field, "a positive number")
        for field in (
            "vocab_size",
            "num_hidden_layers",
            "type_vocab_size",
            "initializer_range",
            "norm_eps",
            "classifier_text_features",
            "chunk_size_feed_forward",
        ):
            self.require(0 <= getattr(self, field) < math.inf, field, "zero or more")
        if self.embedding_norm_eps is not None:
            self.require(0 <= self.embedding_norm_eps < math.inf, "embedding_norm_eps", "zero or more")
        for field in ("hidden_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout", "qkv_dropout"):
            if getattr(self, field) is not None:
                self.require(0 <= getattr(self, field) < 1, field, "a probability, at least 0 and below 1")
        from transformers.activations import ACT2FN  # imports torch: late, as Auto classes read configs without it

        for field in ("hidden_act", "classifier_activation"):
            if getattr(self, field) is not None:
                known = f"an activation of transformers, one of {', '.join(sorted(ACT2FN))}"
                self.require(getattr(self, field) in ACT2FN, field, known)
        if self.pad_token_id is not None and self.vocab_size:
            self.require(
                0 <= self.pad_token_id < self.vocab_size,
                "pad_token_id",
                f"below vocab_size={self.vocab_size}, or None",
            )
        self.require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            "num_key_value_heads",
            f"a divisor of num_attention_heads={self.num_attention_heads}",
        )
        self.require(
            len(self.layer_types) == self.num_hidden_layers and set(self.layer_types) <= set(LAYER_TYPES),
            "layer_types",
            f"a list of num_hidden_layers={self.num_hidden_layers} entries, each one of {', '.join(LAYER_TYPES)}",
        )
        if "sliding_attention" in self.layer_types:
            reach = "a positive number of tokens below 2 ** 31, as layer_types has sliding_attention layers"
            self.require(0 < (self.sliding_window or 0) < 2**31, "sliding_window", reach)
        if self.add_cross_attention:
            self.require(self.is_decoder, "is_decoder", "True, as add_cross_attention=True makes it a decoder")
        if self.cross_attention_hidden_size is not None:
            self.require(self.cross_attention_hidden_size > 0, "cross_attention_hidden_size", "a positive number")
        if self.position_embedding_type == "sinusoidal":
            self.require(self.embedding_size % 2 == 0, "embedding_size", "even, for sinusoidal positions")
        check_biases(self)
        check_dropout_places(self)
        check_token_dropout(self)
        check_classifier(self)
        check_layer_style(self)
        if self.position_embedding_type == "rope":
            check_rope_parameters(self.rope_parameters, self.head_dim, self.layer_types)


__all__ = ["RoFormerLiteConfig"]
