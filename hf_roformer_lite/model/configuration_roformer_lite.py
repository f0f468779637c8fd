"""Configurations: of one stack of layers, and of an encoder–decoder made of two. Imports no model.

The file also says which class stands behind which Auto class, and how code travels beside the
weights (`RemoteCode`).
"""

import copy
import difflib
import math
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig

# "file.Class" behind each Auto class, by model type: what is registered, and what `auto_map` in a
# config.json says.
AUTO_CLASSES: dict[str, dict[str, str]] = {
    "roformer_lite": {
        "AutoConfig": "configuration_roformer_lite.RoFormerLiteConfig",
        "AutoModel": "modeling_roformer_lite.RoFormerLiteModel",
        "AutoModelForMaskedLM": "heads_roformer_lite.RoFormerLiteForMaskedLM",
        "AutoModelForCausalLM": "heads_roformer_lite.RoFormerLiteForCausalLM",
        "AutoModelForSequenceClassification": "heads_roformer_lite.RoFormerLiteForSequenceClassification",
        "AutoModelForTokenClassification": "heads_roformer_lite.RoFormerLiteForTokenClassification",
        "AutoModelForQuestionAnswering": "heads_roformer_lite.RoFormerLiteForQuestionAnswering",
        "AutoModelForMultipleChoice": "heads_roformer_lite.RoFormerLiteForMultipleChoice",
    },
    "roformer_lite_seq2seq": {
        "AutoConfig": "configuration_roformer_lite.RoFormerLiteSeq2SeqConfig",
        "AutoModel": "modeling_roformer_lite_seq2seq.RoFormerLiteSeq2SeqModel",
        "AutoModelForSeq2SeqLM": "modeling_roformer_lite_seq2seq.RoFormerLiteForConditionalGeneration",
    },
}

# Widths and depths of the compact BERTs (Turc et al. 2019, arXiv:1908.08962, table 1); base is
# BERT's own.
PRESETS: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 512,
    },
    "mini": {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    "small": {
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
    },
    "base": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    },
}
ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
MAX_LAYERS = 10_000
TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
# What transformers writes into a config.json or passes on, besides the fields and properties of its
# base class.
_OF_TRANSFORMERS = set(
    "model_type transformers_version auto_map quantization_config compression_config torch_dtype attn_implementation "
    "experts_implementation per_layer_config rope_theta rope_scaling partial_rotary_factor torchscript use_bfloat16 "
    "tf_legacy_loss pruned_heads tie_encoder_decoder finetuning_task tokenizer_class prefix task_specific_params "
    "xla_device gradient_checkpointing sep_token_id adapters is_decoder add_cross_attention decoder_start_token_id "
    "cross_attention_hidden_size".split()
)


class RemoteCode:
    """Gives configs, models and tokenizers the argument `remote_code` of `save_pretrained` and
    `push_to_hub`.

    `True` makes a *bundle*, code beside the weights, which opens with `trust_remote_code=True`
    where this package is not installed; `False` makes none; left out, a bundle stays one. The
    property `remote_code` reads and sets that. All classes of a bundle are found in one file of it,
    which imports the others: so they are always together.
    """

    def auto_map_holder(self) -> dict[str, Any]:
        """Where the `auto_map` is: in the fields of a configuration, or of a model's."""
        return vars(getattr(self, "config", self))

    def classes(self) -> dict[str, Any]:
        """The "file.Class" behind each Auto class in a bundle."""
        return self.config.classes()

    @property
    def remote_code(self) -> bool:
        return self.auto_map_holder().get("auto_map") is not None

    @remote_code.setter
    def remote_code(self, value: bool) -> None:
        # named anew, as a bundle may be older; but not what others have built on these classes
        if value:
            given = (self.auto_map_holder().get("auto_map") or {}).items()
            others = {
                auto: path
                for auto, path in given
                if isinstance(path, str) and ".RoFormerLite" not in path
            }
            self.auto_map_holder()["auto_map"] = {**self.classes(), **others}
        else:
            self.auto_map_holder().pop("auto_map", None)

    def save_pretrained(
        self, save_directory: Any, *args: Any, remote_code: bool | None = None, **kwargs: Any
    ) -> Any:
        self.remote_code = self.remote_code if remote_code is None else remote_code
        if type(self).__module__.rpartition(".")[0] == __name__.rpartition(".")[0]:
            # A private name of transformers, set where a bundle was opened: with it `auto_map`
            # would be overwritten.
            self._auto_class = None
        if self.remote_code and kwargs.get("is_main_process", True):
            from transformers.dynamic_module_utils import get_relative_import_files

            Path(save_directory).mkdir(parents=True, exist_ok=True)
            reference = next(iter(self.classes().values()))
            name = (reference[0] if isinstance(reference, list) else reference).partition(".")[0]
            main = str(Path(__file__).with_name(f"{name}.py"))
            for path in {main, *get_relative_import_files(main)}:
                shutil.copy(path, save_directory)
        return super().save_pretrained(save_directory, *args, **kwargs)

    def push_to_hub(self, *args: Any, remote_code: bool | None = None, **kwargs: Any) -> Any:
        if remote_code is not None:
            self.remote_code = remote_code
        return super().push_to_hub(*args, **kwargs)


class RemoteCodeTokenizer(RemoteCode):
    """For tokenizers; their `auto_map` is in tokenizer_config.json."""

    def auto_map_holder(self) -> dict[str, Any]:
        return self.init_kwargs

    def classes(self) -> dict[str, Any]:
        # Two places, for a slow and a fast tokenizer; transformers looks for this one in the first.
        return {
            "AutoTokenizer": [
                f"{type(self).__module__.rpartition('.')[2]}.{type(self).__name__}",
                None,
            ]
        }


class RoFormerLiteBaseConfig(RemoteCode, PreTrainedConfig):
    """What both configurations share: code beside the weights, and the refusal of fields that there
    are not."""

    def classes(self) -> dict[str, str]:
        classes = AUTO_CLASSES[self.model_type].items()
        return {
            auto: f"{self.file_of_classes()}.{path.partition('.')[2]}" for auto, path in classes
        }

    def require(self, holds: bool, field: str, what: str) -> None:
        """Refuse the value of `field` unless something `holds`; `what` says what it must be.

        Raises:
            ValueError: with field, value and what would be right.
        """
        if not holds:
            raise ValueError(
                f"{field}={getattr(self, field)!r} is not possible: it must be {what}."
            )

    def check_names(self, given: dict[str, Any]) -> None:
        """Refuse arguments that nothing reads, with `TypeError`: transformers takes any, in
        silence. What was saved (it has a `model_type` or a `transformers_version`) goes on loading,
        whoever wrote it."""
        # older versions kept the settings of generation in the config
        from transformers import GenerationConfig

        if "model_type" in given or "transformers_version" in given:
            return
        fields = self.__dataclass_fields__
        known = _OF_TRANSFORMERS.union(fields, dir(type(self)), vars(GenerationConfig()))
        for name in (name for name in given if name not in known and not name.startswith("_")):
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            if name in RoFormerLiteConfig.__dataclass_fields__:
                hint += (
                    " Give it to encoder= and decoder=, or to from_preset, which hands it to both."
                )
            raise TypeError(f"{type(self).__name__} has no field {name!r}{hint}")


class TensorParallelPlan:
    """How the matrices of a stack are cut among processes: computed when it is read, as it depends
    on fields."""

    def __get__(self, config: "RoFormerLiteConfig | None", owner: type | None = None) -> Any:
        if config is None:
            return self
        plan = {"embeddings.word_embeddings": "embedding_rowwise"}
        # its heads are slices of stacked weights, which no rule cuts
        if config.layer_style == "parallel_heads":
            return plan
        for attention in (
            ("self_attn", "cross_attn") if config.add_cross_attention else ("self_attn",)
        ):
            plan |= {f"layers.*.{attention}.{name}_proj": "colwise" for name in "qkv"}
            plan[f"layers.*.{attention}.o_proj"] = "rowwise"
        if config.layer_style == "standard":
            plan |= {f"layers.*.mlp.{name}_proj": "colwise" for name in config.mlp_matrices()[:-1]}
            plan["layers.*.mlp.down_proj"] = "rowwise"
        return plan


@strict
class RoFormerLiteConfig(RoFormerLiteBaseConfig):
    r"""One stack of Transformer layers: an encoder, or (with `is_decoder`) a decoder.

    Args:
        vocab_size (`int`, defaults to 8192): Rows of the token embedding; 0: the stack takes
            `inputs_embeds` alone.
        hidden_size (`int`, defaults to 256): Width of the residual stream.
        embedding_size (`int`, *optional*): Width of the token embedding, projected to `hidden_size`
            if the two differ (as in ALBERT and RoFormer). Default: `hidden_size`.
        type_vocab_size (`int`, defaults to 0): Segment embeddings (BERT has 2); 0 leaves them out.
        num_hidden_layers, num_attention_heads (`int`, default to 4): Layers, and query heads of
            each.
        num_key_value_heads (`int`, *optional*): Fewer than `num_attention_heads` give grouped-query
            attention (Ainslie et al. 2023, arXiv:2305.13245). Default: as many.
        head_dim (`int`, *optional*): Width of one head. Default: `hidden_size //
            num_attention_heads`.
        intermediate_size (`int`, defaults to 1024): Inner width of the feed-forward.
        hidden_act (`str`, defaults to `"gelu"`): Its activation, a name of `transformers`'
            `ACT2FN`.
        gated_mlp (`bool`, defaults to `False`): `down(act(gate(x)) * up(x))` in place of
            `down(act(up(x)))` (Shazeer 2020, arXiv:2002.05202); costs a third matrix.
        layer_style (`str`, defaults to `"standard"`): `parallel_heads` and `walkthrough` are the
            layers of two reference systems; `reference_layers.py` describes them and their fields,
            `num_mlp_layers`, `qkv_mlp_layers`, `qkv_intermediate_size` and `qkv_dropout`.
        hidden_dropout (`float`, defaults to 0.1): Dropout on the embeddings and on every branch
            before it is added.
        hidden_dropout_places (`list[str]`, *optional*): Where it is, of `embeddings`, `attention`
            and `mlp`. Default: everywhere.
        attention_dropout, mlp_dropout (`float`, default to 0.0): Dropout on the attention
            probabilities, and between the two maps of a feed-forward.
        attention_bias, mlp_bias (`bool` or `list[str]`, default to `True`): Biases of the
            projections; a list names those that have one, of `q`, `k`, `v`, `o` (Qwen2 has the
            first three), and of `gate`, `up`, `down`.
        norm_type (`str`, defaults to `"layernorm"`): Or `rmsnorm` (Zhang & Sennrich 2019,
            arXiv:1910.07467).
        norm_placement (`str`, defaults to `"pre"`): `pre` normalises what goes into a branch,
            `post` what comes out of the addition (the original Transformer). Pre-norm trains stably
            at any depth.
        norm_eps (`float`, defaults to 1e-6): Added to the variance before its root.
        norm_bias (`bool`, defaults to `True`): Bias of the layer norms; RMSNorm has none.
        first_attention_norm (`bool`, defaults to `True`): With `norm_placement="pre"`, a norm
            before the attention of the first layer (ModernBERT has none there).
        final_norm (`bool`, *optional*): A norm after the last layer. Default: with
            `norm_placement="pre"` only.
        embedding_norm (`bool`, defaults to `False`): A norm on the sum of the embeddings (as BERT),
            with `embedding_norm_eps` (`float`, *optional*; default: `norm_eps`).
        scale_embeddings (`bool`, defaults to `True`): Multiply token embeddings by
            `sqrt(embedding_size)` (Vaswani et al. 2017, section 3.4). Without it, what the first
            layers add outweighs the small initial embeddings.
        position_embedding_type (`str`, defaults to `"rope"`): `rope` (Su et al. 2021,
            arXiv:2104.09864), `sinusoidal` (interleaved sine and cosine, Vaswani et al. 2017),
            `learned` or `none`.
        rope_parameters (`dict`, *optional*): transformers' own dictionary: `rope_type` (default,
            linear, dynamic, yarn, longrope, llama3), `rope_theta` (10000), `partial_rotary_factor`
            and what the type needs; or one such dictionary for each type of `layer_types`.
        rotary_value (`bool`, defaults to `False`): Rotate the values too (an option of RoFormer).
        max_position_embeddings (`int`, defaults to 512): Rows of the learned positions; with `rope`
            only the RoPE scalings read it, and nothing limits the length.
        layer_types (`list[str]`, *optional*): `full_attention` or `sliding_attention` for each
            layer. Default: all full; all sliding when only `sliding_window` is given.
        sliding_window (`int`, *optional*): Reach of the sliding layers in tokens. A causal layer
            sees the last `sliding_window` tokens, itself included; a bidirectional one
            `sliding_window` to each side. Padding is no token, except beside a cache, which counts
            places.
        token_dropout_mask_id (`int`, *optional*): Id of the mask token in models that were trained
            with token dropout (ESM-2, Lin et al. 2023): its embedding counts as zero, and those of
                a document are multiplied by
            0.88 / (1 - its share of mask tokens), 0.88 being the share that was left in training.
            Not in decoders.
        add_pooling_layer (`bool`, defaults to `False`): BERT's pooler on the bare stack,
            `pooler_output`.
        classifier_pooling (`str`, defaults to `"mean"`): What sequence heads read: `mean` of the
            tokens, `cls` (the first), `last`, or `late`: the mean after the dense layer of
            `classifier_activation` (EuroBERT).
        classifier_activation (`str`, *optional*): A dense layer with this activation before the
            classifier (BERT and RoFormer have `tanh`); `classifier_norm` (`bool`) adds a norm after
            it (ModernBERT).
        classifier_dropout (`float`, *optional*): Dropout before a classifier (default:
            `hidden_dropout`), and with `classifier_input_dropout` (`bool`) before that dense layer,
            too (RoBERTa).
        classifier_text_features (`int`, defaults to 0): Number of features of the text whose scores
            are added to the logits of a sequence or token classifier (`text_features.py`); with
            `classifier_text_counts` (`bool`) an n-gram that occurs several times in a document
            counts more.
        decode_tags (`bool`, defaults to `False`): A token classifier answers one tag for each word,
            and no transition that can't be (`RoFormerLiteWordScores`).
        lm_head_transform (`bool`, defaults to `False`): Dense, activation and norm before the LM
            head, as BERT's.
        head_bias (`bool`, defaults to `True`): Bias of the dense layer in either head.
        lm_head_bias (`bool`, defaults to `False`): Bias of the LM head.
        is_decoder (`bool`, defaults to `False`): Causal attention and a cache; with
            `add_cross_attention` attention to an encoder's states of width
            `cross_attention_hidden_size` (default: `hidden_size`) in each layer.
        tie_word_embeddings (`bool`, defaults to `True`): One matrix for token embedding and LM
            head.
        skip_logits (`bool`, defaults to `True`): While training with labels, only labelled
            positions go through the LM head, and `logits` is None. Set it to False, or pass
            `skip_logits=False`, where a training loop reads the logits. Version 0.1 called it
            `sparse_prediction`.
        chunk_size_feed_forward (`int`, defaults to 0): Tokens that go through the feed-forward at a
            time; 0: all.
        initializer_range (`float`, defaults to 0.02): Standard deviation of the initial weights.
        use_cache (`bool`, defaults to `True`): Whether decoders return their keys and values.
        pad_token_id, bos_token_id, eos_token_id (`int`, *optional*): As `RoFormerLiteTokenizer`
            numbers them: [PAD] 0, [CLS] 2, [SEP] 3.

    Raises:
        TypeError: for a field that there is not.
        ValueError, StrictDataclassError: for a value or combination of which no model can be built.
    """

    model_type = "roformer_lite"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {"sparse_prediction": "skip_logits"}
    default_theta = 10000.0
    base_model_tp_plan = TensorParallelPlan()
    base_model_fsdp_plan: ClassVar[dict[str, str]] = {
        "embeddings.word_embeddings": "free_full_weight",
        "layers.*": "free_full_weight",
    }

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
    decode_tags: bool = False
    classifier_text_counts: bool = False
    lm_head_transform: bool = False
    head_bias: bool = True
    lm_head_bias: bool = False
    is_decoder: bool = False
    add_cross_attention: bool = False
    cross_attention_hidden_size: int | None = None
    tie_word_embeddings: bool = True
    skip_logits: bool = True
    initializer_range: float | int = 0.02
    use_cache: bool = True
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | list[int] | None = 3

    @classmethod
    def from_preset(cls, name: str, **fields: Any) -> "RoFormerLiteConfig":
        """A config of size `name` (tiny, mini, small, base), with any `fields` in place of the
        preset's."""
        return cls(**{**preset_fields(name), **fields})

    def __post_init__(self, **kwargs: Any):
        self.check_names(kwargs)
        has_rope = self.position_embedding_type == "rope"
        if not has_rope and (
            self.rope_parameters or kwargs.get("rope_scaling") or kwargs.get("rope_theta")
        ):
            raise ValueError(
                f"rope_parameters={self.rope_parameters or kwargs} can't be combined with position_embedding_type="
                f"{self.position_embedding_type!r}."
            )
        # transformers standardises it in place
        self.rope_parameters = copy.deepcopy(self.rope_parameters)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.layer_style == "parallel_heads":
            self.head_dim = self.hidden_size if self.head_dim is None else self.head_dim
            if self.qkv_intermediate_size is None:
                self.qkv_intermediate_size = self.intermediate_size // 2
        if self.head_dim is None and self.num_attention_heads > 0:
            what = f"a multiple of num_attention_heads={self.num_attention_heads}, unless head_dim is given"
            self.require(self.hidden_size % self.num_attention_heads == 0, "hidden_size", what)
            self.head_dim = self.hidden_size // self.num_attention_heads
        if not self.vocab_size:
            self.pad_token_id = self.bos_token_id = self.eos_token_id = None
        if self.embedding_size is None:
            self.embedding_size = self.hidden_size
        if self.final_norm is None:
            self.final_norm = self.norm_placement == "pre"
        # lists of as many are made
        for field in ("num_hidden_layers", "num_mlp_layers", "qkv_mlp_layers"):
            self.require(getattr(self, field) <= MAX_LAYERS, field, f"at most {MAX_LAYERS:,}")
        if self.layer_types is None:
            kind = "full_attention" if self.sliding_window is None else "sliding_attention"
            self.layer_types = [kind] * self.num_hidden_layers
        self.attention_bias = _shortest(self.attention_bias, ("q", "k", "v", "o"))
        self.mlp_bias = _shortest(self.mlp_bias, self.mlp_matrices())
        super().__post_init__(**kwargs)
        if not has_rope:
            self.rope_parameters = None
            return
        by_type = self.rope_parameters_of_layers()
        for parameters in by_type.values():
            if isinstance(parameters, dict) and parameters.get("rope_type") == "default":
                parameters.setdefault("partial_rotary_factor", 1.0)
        used = [by_type.get(kind) for kind in sorted(set(self.layer_types))]
        if (
            None not in by_type
            and used
            and isinstance(used[0], dict)
            and all(own == used[0] for own in used)
        ):
            self.rope_parameters = used[0]  # nested without need

    def rope_parameters_of_layers(self) -> dict[str | None, dict[str, Any]]:
        """The parameters of each type of layer; a single entry, `None`, where all layers rotate
        alike."""
        is_nested = any(
            kind in self.rope_parameters for kind in ("full_attention", "sliding_attention")
        )
        return self.rope_parameters if is_nested else {None: self.rope_parameters}

    def file_of_classes(self) -> str:
        """The file that has all classes of a bundle; those that only some models use import the
        others."""
        if not (self.classifier_text_features or self.decode_tags):
            return "heads_roformer_lite" if self.layer_style == "standard" else "reference_layers"
        self.require(
            self.layer_style == "standard",
            "layer_style",
            "standard with text features, in a bundle",
        )
        return "text_features"

    def has_bias(self, field: str, matrix: str) -> bool:
        """Whether a matrix has a bias, such as `q` by the field `attention_bias`."""
        setting = getattr(self, field)
        return setting if isinstance(setting, bool) else matrix in setting

    def hidden_dropout_at(self, place: str) -> float:
        """The dropout on the `embeddings`, after the `attention` or after the feed-forward
        (`mlp`)."""
        places = self.hidden_dropout_places
        return self.hidden_dropout if places is None or place in places else 0.0

    def mlp_matrices(self) -> tuple[str, ...]:
        """The matrices of a feed-forward, in their order."""
        return ("gate", "up", "down") if self.gated_mlp else ("up", "down")

    def validate_architecture(self) -> None:
        """Refuse what neither torch nor transformers would: values and combinations that would go
        without effect, or fail far from their cause."""
        sizes = "hidden_size embedding_size num_attention_heads num_key_value_heads head_dim intermediate_size "
        for field in (sizes + "max_position_embeddings num_mlp_layers qkv_mlp_layers").split():
            self.require(getattr(self, field) > 0, field, "a positive number")
        counts = "vocab_size type_vocab_size num_hidden_layers chunk_size_feed_forward qkv_intermediate_size "
        for field in (
            counts + "classifier_text_features norm_eps embedding_norm_eps initializer_range"
        ).split():
            self.require(0 <= (getattr(self, field) or 0) < math.inf, field, "zero or more")
        for field in (
            "hidden_dropout",
            "attention_dropout",
            "mlp_dropout",
            "classifier_dropout",
            "qkv_dropout",
        ):
            self.require(
                0 <= (getattr(self, field) or 0) < 1, field, "a probability, at least 0 and below 1"
            )
        if self.pad_token_id is not None and self.vocab_size:
            self.require(
                0 <= self.pad_token_id < self.vocab_size,
                "pad_token_id",
                f"below vocab_size={self.vocab_size}",
            )
        from transformers.activations import ACT2FN  # imports torch

        for field in ("hidden_act", "classifier_activation"):
            known = f"an activation of transformers, one of {', '.join(sorted(ACT2FN))}"
            self.require(getattr(self, field) in (None, *ACT2FN), field, known)
        heads = f"a divisor of num_attention_heads={self.num_attention_heads}"
        self.require(
            self.num_attention_heads % self.num_key_value_heads == 0, "num_key_value_heads", heads
        )
        known = {"full_attention", "sliding_attention"}
        entries = f"a list of num_hidden_layers={self.num_hidden_layers} entries, each one of {sorted(known)}"
        is_list = len(self.layer_types) == self.num_hidden_layers and set(self.layer_types) <= known
        self.require(is_list, "layer_types", entries)
        if "sliding_attention" in self.layer_types:
            reach = "a positive number of tokens below 2 ** 31, as layer_types has sliding_attention layers"
            self.require(0 < (self.sliding_window or 0) < 2**31, "sliding_window", reach)
        if self.add_cross_attention:
            self.require(self.is_decoder, "is_decoder", "True with add_cross_attention=True")
        if self.position_embedding_type == "sinusoidal":
            self.require(
                self.embedding_size % 2 == 0, "embedding_size", "even, for sinusoidal positions"
            )
        for field, matrices in (
            ("attention_bias", ("q", "k", "v", "o")),
            ("mlp_bias", self.mlp_matrices()),
        ):
            setting = getattr(self, field)
            right = isinstance(setting, bool) or set(setting) <= set(matrices)
            self.require(right, field, f"True, False, or a list of some of {', '.join(matrices)}")
        places = ("embeddings", "attention", "mlp")
        right = set(self.hidden_dropout_places or ()) <= set(places)
        self.require(
            right, "hidden_dropout_places", f"None, or a list of some of {', '.join(places)}"
        )
        if self.token_dropout_mask_id is not None:
            inside = 0 <= self.token_dropout_mask_id < self.vocab_size and not self.is_decoder
            self.require(
                inside,
                "token_dropout_mask_id",
                f"below vocab_size={self.vocab_size}, and None in a decoder",
            )
        if self.classifier_activation is None:
            without = "without classifier_activation"
            for field in ("classifier_norm", "classifier_input_dropout"):
                self.require(not getattr(self, field), field, f"False {without}")
            self.require(
                self.classifier_pooling != "late",
                "classifier_pooling",
                f"mean, cls or last {without}",
            )
        if self.norm_placement == "post":
            self.require(
                self.first_attention_norm, "first_attention_norm", "True with norm_placement='post'"
            )
        if self.position_embedding_type == "rope":
            self._check_rope()

    def _check_rope(self) -> None:
        """transformers refuses parameters that are missing, warns of many others, and takes the
        rest."""
        by_type = self.rope_parameters_of_layers()
        kinds = set(self.layer_types)
        if None not in by_type and set(by_type) != kinds:
            raise ValueError(
                f"rope_parameters={self.rope_parameters} must be one dictionary for all layers, or one for each of "
                f"their types, {', '.join(sorted(kinds))}."
            )
        for parameters in by_type.values():
            rope_type, share = (
                parameters.get("rope_type"),
                parameters.get("partial_rotary_factor", 1.0),
            )
            if rope_type not in ROPE_TYPES:
                raise ValueError(
                    f"rope_parameters has rope_type={rope_type!r}; choose one of {', '.join(ROPE_TYPES)}."
                )
            for key, value in parameters.items():
                if key == "truncate" and not isinstance(value, bool):
                    raise ValueError(
                        f"rope_parameters has truncate={value!r}; it must be True or False."
                    )
                if key in ("rope_type", "type", "truncate", "short_factor", "long_factor"):
                    continue
                if value is None and key in (
                    "attention_factor",
                    "beta_fast",
                    "beta_slow",
                    "mscale",
                    "mscale_all_dim",
                ):
                    continue  # which transformers computes by itself
                limit = 1 if key == "rope_theta" else 0
                if (
                    not _is_number(value)
                    or value < limit
                    or value == limit
                    and not key.startswith("mscale")
                ):
                    raise ValueError(
                        f"rope_parameters has {key}={value!r}; it must be a number above {limit}."
                    )
            rotary_dim = int(self.head_dim * share)
            if rotary_dim % 2 or not 0 < rotary_dim <= self.head_dim:
                raise ValueError(
                    f"head_dim={self.head_dim} with partial_rotary_factor={share} rotates {rotary_dim} channels; make "
                    "it an even number up to head_dim."
                )
            for key in {"short_factor", "long_factor"} & parameters.keys():
                value = parameters[key]
                right = isinstance(value, list) and len(value) == rotary_dim // 2
                if not right or not all(_is_number(factor) and factor > 0 for factor in value):
                    raise ValueError(
                        f"rope_parameters has {key}={value!r}; it must be {rotary_dim // 2} numbers above 0."
                    )


def of_decoder(field: str, is_set: bool = False) -> property:
    """A field of the decoder, to be read from the configuration of a pair, and perhaps to be set on
    both sides."""

    def write(config: "RoFormerLiteSeq2SeqConfig", value: Any) -> None:
        for side in (config.encoder, config.decoder):
            setattr(side, field, value)

    return property(lambda config: getattr(config.decoder, field), write if is_set else None)


@strict
class RoFormerLiteSeq2SeqConfig(RoFormerLiteBaseConfig):
    r"""An encoder and a decoder, each a [`RoFormerLiteConfig`] of its own depth, width and
    vocabulary.

    Args:
        encoder, decoder (`RoFormerLiteConfig` or `dict`, *optional*): The two stacks; default
            configs when left out. They are copied; the decoder's copy becomes causal, with
            cross-attention to the encoder's width.
        tie_word_embeddings (`bool`, defaults to `True`): One matrix for the decoder's embedding and
            the LM head.
        share_embeddings (`bool`, defaults to `False`): The encoder uses that matrix too (one
            vocabulary for both sides). Takes effect with `tie_word_embeddings`, as transformers
            ties all or nothing.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`): As
            `RoFormerLiteTokenizer` numbers them: [PAD] 0, start [CLS] 2, end [SEP] 3. The decoder
                takes the first three over.

    Raises:
        TypeError: for a field that there is not, of the pair or of a stack.
        ValueError, StrictDataclassError: when the two stacks or the token ids do not fit together.
    """

    model_type = "roformer_lite_seq2seq"
    keys_to_ignore_at_inference = ["past_key_values"]
    sub_configs = {"encoder": RoFormerLiteConfig, "decoder": RoFormerLiteConfig}
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

    @classmethod
    def from_preset(
        cls,
        name: str,
        encoder: dict[str, Any] | None = None,
        decoder: dict[str, Any] | None = None,
        **fields: Any,
    ) -> "RoFormerLiteSeq2SeqConfig":
        """Both stacks of size `name`. `fields` of the pair go to the pair, all others to both
        stacks; `encoder` and `decoder` hold fields of one stack alone."""
        of_the_pair = {
            key: fields.pop(key) for key in list(fields) if key in cls.__dataclass_fields__
        }
        if "vocab_size" in fields:  # one vocabulary, one table
            of_the_pair.setdefault("share_embeddings", of_the_pair.get("tie_word_embeddings", True))
        fields = {
            **preset_fields(name),
            **{key: of_the_pair[key] for key in TOKEN_IDS if key in of_the_pair},
            **fields,
        }
        return cls(
            encoder={**fields, **(encoder or {})},
            decoder={**fields, **(decoder or {})},
            **of_the_pair,
        )

    def __post_init__(self, **kwargs: Any):
        self.check_names(kwargs)
        # older versions of transformers make no configs of dictionaries
        for side in ("encoder", "decoder"):
            given = copy.deepcopy(getattr(self, side))
            setattr(
                self,
                side,
                given
                if isinstance(given, PreTrainedConfig)
                else RoFormerLiteConfig(**(given or {})),
            )
        super().__post_init__(**kwargs)
        self.encoder.is_decoder = self.encoder.add_cross_attention = False
        self.decoder.is_decoder = self.decoder.add_cross_attention = True
        self.decoder.cross_attention_hidden_size = self.encoder.hidden_size
        if self.decoder.vocab_size:
            for field in TOKEN_IDS:
                setattr(self.decoder, field, getattr(self, field))
        self.encoder.tie_word_embeddings = self.decoder.tie_word_embeddings = (
            self.tie_word_embeddings
        )

    def validate_architecture(self) -> None:
        """Refuse stacks and token ids that do not fit together."""
        for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            self.require(
                getattr(self, field) is not None, field, "a token id, as generation needs it"
            )
        for field in ("pad_token_id", "decoder_start_token_id") if self.decoder.vocab_size else ():
            last = self.decoder.vocab_size - 1
            self.require(
                0 <= getattr(self, field) <= last,
                field,
                f"from 0 to decoder.vocab_size - 1 = {last}",
            )
        if self.decoder.layer_style != "standard":
            raise ValueError(
                f"decoder.layer_style={self.decoder.layer_style!r} has no cross-attention beside its own."
            )
        for field in ("vocab_size", "embedding_size") if self.share_embeddings else ():
            here, there = getattr(self.encoder, field), getattr(self.decoder, field)
            what = f"False, or {field} the same on both sides, not {here} and {there}"
            self.require(here == there, "share_embeddings", what)

    def file_of_classes(self) -> str:
        return (
            "modeling_roformer_lite_seq2seq"
            if self.encoder.layer_style == "standard"
            else "reference_layers"
        )

    # transformers and PEFT look for these at the top of the config.
    hidden_size = of_decoder("hidden_size")
    num_hidden_layers = of_decoder("num_hidden_layers")
    num_attention_heads = of_decoder("num_attention_heads")
    vocab_size = of_decoder("vocab_size", is_set=True)
    initializer_range = of_decoder("initializer_range", is_set=True)
    max_position_embeddings = of_decoder("max_position_embeddings", is_set=True)


def preset_fields(name: str) -> dict[str, int]:
    """The sizes of preset `name` (tiny, mini, small or base), as config fields.

    Raises:
        ValueError: when there is no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"preset={name!r} does not exist; choose one of {', '.join(PRESETS)}.")
    return dict(PRESETS[name])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15


def _shortest(setting: bool | list[str], matrices: tuple[str, ...]) -> bool | list[str]:
    """`setting` in its shortest form: True where a list has all of `matrices`, False where it is
    empty."""
    if isinstance(setting, bool) or not set(setting) <= set(matrices):
        return setting  # wrong names are refused with all other mistakes
    named = [matrix for matrix in matrices if matrix in setting]
    return len(named) == len(matrices) if len(named) in (0, len(matrices)) else named


__all__ = [
    "AUTO_CLASSES",
    "PRESETS",
    "RoFormerLiteConfig",
    "RoFormerLiteSeq2SeqConfig",
    "preset_fields",
]
