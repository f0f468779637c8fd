"""Encoders in the format of llama.cpp, with their tokenizer inside.

llama.cpp does not build its layers from options: it has architectures, and each is a fixed sequence
of operations. Three of them are encoders that `RoFormerLiteConfig` can describe; other models are
not supported. The tokenizers are fixed, too. This module uses only BERT's WordPiece, which ends
every text with [SEP], even a prompt. For BPE, llama.cpp splits text by one of its own patterns, and
the pattern of RoFormerLite is not among them; its Unigram has no byte tokens for unknown
characters.
"""

import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteLayer, RoFormerLiteModel

from .runtime_limits import Requirements, unused_token, vocabulary_of
from .weight_map import ConversionError

MODEL_FILE = "model.gguf"
WORD_START = "\u2581"
# By default, a longer word is [UNK]. llama.cpp has no limit.
LONGEST_WORD = 100


@dataclass(frozen=True)
class _Architecture:
    """An encoder of llama.cpp.

    Args:
        name: Its name in llama.cpp.
        fields: The values that our configuration must have.
        grouped: Whether keys and values may have fewer heads than queries.
        tensors: The names of a layer's matrices and norms, and our names; several of ours are
            concatenated.
    """

    name: str
    fields: dict[str, Any]
    grouped: bool
    tensors: dict[str, tuple[str, ...]]


_FUSED = {"attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}
_APART = {f"attn_{name}": (f"self_attn.{name}_proj",) for name in "qkv"}
_COMMON = {
    "attn_output": ("self_attn.o_proj",),
    "ffn_up": ("mlp.up_proj",),
    "ffn_down": ("mlp.down_proj",),
}
_GATE = {"ffn_gate": ("mlp.gate_proj",)}
_POST_NORMS = {"attn_output_norm": ("self_attn_norm",), "layer_output_norm": ("mlp_norm",)}
_PRE_NORMS = {"attn_norm": ("self_attn_norm",), "ffn_norm": ("mlp_norm",)}
_POST = {
    "norm_placement": "post",
    "norm_type": "layernorm",
    "norm_bias": True,
    "final_norm": False,
    "embedding_norm": True,
}
_PRE = {
    "norm_placement": "pre",
    "norm_type": "rmsnorm",
    "final_norm": True,
    "embedding_norm": False,
}
_GATED = {"gated_mlp": True, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_PLAIN = {"gated_mlp": False, "hidden_act": "gelu", "attention_bias": True, "mlp_bias": True}

ARCHITECTURES = (
    _Architecture("eurobert", _PRE | _GATED, True, _APART | _COMMON | _GATE | _PRE_NORMS),
    _Architecture("jina-bert-v3", _POST | _PLAIN, False, _FUSED | _COMMON | _POST_NORMS),
    _Architecture("nomic-bert", _POST | _GATED, False, _FUSED | _COMMON | _GATE | _POST_NORMS),
)


def export_gguf(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    quantization: str | None = None,
) -> str:
    """Write an encoder of this package to `directory`, which exists, as `model.gguf`.

    Args:
        model: The bare stack, or a masked language model. Of the latter, only the stack is written:
            llama.cpp's encoders return embeddings, here with the pooling of `classifier_pooling`.
        tokenizer: BERT's WordPiece.
        directory: The directory of the file.
        quantization: The data type of matrices: `f16`, `bf16` or `q8_0`. Default: float32.

    Returns:
        The architecture of llama.cpp.

    Raises:
        ConversionError: if llama.cpp has no such model or tokenizer.
    """
    import gguf

    name = type(model).__name__
    if name not in ("RoFormerLiteModel", "RoFormerLiteForMaskedLM"):
        raise ConversionError(
            f"{name}: of RoFormerLite models, llama.cpp can run only encoders without a head"
        )
    stack: RoFormerLiteModel = model.base_model
    architecture = _architecture_of(stack.config)
    pipeline = _word_piece(tokenizer)
    tokens = vocabulary_of(tokenizer, stack.config.vocab_size)
    writer = gguf.GGUFWriter(directory / MODEL_FILE, architecture.name)
    _describe(gguf, writer, stack.config, quantization)
    _add_tokenizer(gguf, writer, tokenizer, pipeline, tokens)
    with torch.no_grad():
        _add_tensors(gguf, writer, stack, architecture, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return architecture.name


def _architecture_of(config: RoFormerLiteConfig) -> _Architecture:
    """The architecture that is equivalent to the configuration.

    Raises:
        ConversionError: if there is none; the message is about the nearest architecture.
    """
    nearest = min(ARCHITECTURES, key=lambda one: _count_differences(one, config))
    needs = Requirements(f"llama.cpp ({nearest.name})", config)
    needs.require_standard_layers()
    why = "has no RoFormerLite tokenizer that encodes a prompt without [SEP]"
    needs.require_value("is_decoder", False, why)
    needs.require_value("type_vocab_size", 0, "has no second segment")
    needs.require_value("add_pooling_layer", False, "has no pooler")
    is_pooled = config.classifier_pooling != "late"
    needs.require(is_pooled, "classifier_pooling", "pools the states of the stack")
    needs.require_value("position_embedding_type", "rope", "has only rotary positions")
    for field, value in nearest.fields.items():
        needs.require_value(field, value, f"needs {value!r}")
    rope = config.rope_parameters
    is_plain = rope["rope_type"] == "default" and rope["partial_rotary_factor"] == 1
    needs.require(is_plain, "rope_parameters", "rotates whole heads, without scaling")
    heads = config.num_attention_heads
    is_square = config.head_dim * heads == config.hidden_size
    why = f"needs hidden_size / num_attention_heads, of {config.hidden_size}"
    needs.require(is_square, "head_dim", why)
    if not nearest.grouped:
        needs.require_value("num_key_value_heads", heads, f"needs num_attention_heads={heads}")
    return nearest


def _count_differences(architecture: _Architecture, config: RoFormerLiteConfig) -> int:
    fields = architecture.fields.items()
    return sum(getattr(config, name) != value for name, value in fields)


def _word_piece(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """`tokenizer.json` of BERT's WordPiece.

    Raises:
        ConversionError: for every other pipeline.
    """
    pipeline = {}
    if tokenizer.is_fast:
        pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
    kind = pipeline.get("model", {}).get("type", type(tokenizer).__name__)
    steps = [(pipeline.get(step) or {}).get("type") for step in ("normalizer", "pre_tokenizer")]
    if kind != "WordPiece" or steps != ["BertNormalizer", "BertPreTokenizer"]:
        raise ConversionError(
            f"the tokenizer is of the kind {kind} with the steps {steps}, but "
            "llama.cpp has only BERT's WordPiece; --format onnx takes almost every model"
        )
    _check_settings(tokenizer, pipeline)
    letters = set().union(*tokenizer.get_vocab())
    other_letters = sorted(filter(_is_stripped_differently, letters))
    if _strips_accents(pipeline) and other_letters:
        raise ConversionError(
            f"the tokenizer has learned {other_letters[0]!r}: where accents are stripped, "
            "llama.cpp treats Korean syllables and the vowel signs of Indian scripts differently; "
            "train a tokenizer with strip_accents=False"
        )
    ids = tokenizer("")["input_ids"]
    if ids != [tokenizer.cls_token_id, tokenizer.sep_token_id]:
        raise ConversionError(
            f"the tokenizer puts {ids} around a text, but llama.cpp puts [CLS] before it and [SEP] "
            "after it"
        )
    return pipeline


def _check_settings(tokenizer: PreTrainedTokenizerBase, pipeline: dict[str, Any]) -> None:
    """Reject a WordPiece with settings that llama.cpp does not have."""
    for name in ("clean_text", "handle_chinese_chars"):
        if not pipeline["normalizer"][name]:
            raise ConversionError(
                f"the tokenizer has {name}=False, but llama.cpp always cleans text and separates "
                "Chinese characters; train a tokenizer with RoFormerLiteTokenizer.train"
            )
    longest = pipeline["model"]["max_input_chars_per_word"]
    if longest < LONGEST_WORD:
        raise ConversionError(
            f"the tokenizer has max_input_chars_per_word={longest}, but llama.cpp splits longer "
            f"words instead of returning [UNK]; set it to {LONGEST_WORD}"
        )
    special = tokenizer.all_special_ids
    for token in pipeline["added_tokens"]:
        if token["id"] not in special:
            raise ConversionError(
                f"the token {token['content']!r} was added to the tokenizer, but llama.cpp would "
                "split it like any other text; train the model with a tokenizer that has none"
            )


def _is_stripped_differently(letter: str) -> bool:
    """Whether stripping accents makes something else of a letter in llama.cpp: it also strips marks
    that take up space, and keeps Korean syllables whole."""
    return unicodedata.category(letter) in ("Mc", "Me") or "\u1100" <= letter <= "\u11ff"


def _strips_accents(pipeline: dict[str, Any]) -> bool:
    normalizer = pipeline["normalizer"]
    if normalizer["strip_accents"] is None:
        return normalizer["lowercase"]
    return normalizer["strip_accents"]


def _describe(
    gguf: ModuleType, writer: Any, config: RoFormerLiteConfig, quantization: str | None
) -> None:
    types = {None: "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
    writer.add_file_type(gguf.LlamaFileType[types[quantization]])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType[config.classifier_pooling.upper()])
    writer.add_vocab_size(config.vocab_size)
    if config.norm_type == "rmsnorm":
        writer.add_layer_norm_rms_eps(config.norm_eps)
    else:
        writer.add_layer_norm_eps(config.norm_eps)


def _add_tokenizer(
    gguf: ModuleType,
    writer: Any,
    tokenizer: PreTrainedTokenizerBase,
    pipeline: dict[str, Any],
    tokens: list[str | None],
) -> None:
    """Write the tokens. llama.cpp marks the first piece of a word, whereas WordPiece marks the
    others."""
    special = set(tokenizer.all_special_ids)
    texts = []
    types = []
    for index, token in enumerate(tokens):
        if token is None:
            text = unused_token(index)
            kind = gguf.TokenType.UNUSED
        elif index == tokenizer.unk_token_id:
            text = token
            kind = gguf.TokenType.UNKNOWN
        elif index in special:
            text = token
            kind = gguf.TokenType.CONTROL
        elif token.startswith("##") and len(token) > 2:
            text = token.removeprefix("##")
            kind = gguf.TokenType.NORMAL
        else:
            text = WORD_START + token
            kind = gguf.TokenType.NORMAL
        texts.append(text)
        types.append(kind)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(1)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_bos_token_id(tokenizer.cls_token_id)
    writer.add_sep_token_id(tokenizer.sep_token_id)
    writer.add_eos_token_id(tokenizer.sep_token_id)
    writer.add_unk_token_id(tokenizer.unk_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_bool("tokenizer.ggml.normalizer.lowercase", pipeline["normalizer"]["lowercase"])
    writer.add_bool("tokenizer.ggml.normalizer.strip_accents", _strips_accents(pipeline))


def _add_tensors(
    gguf: ModuleType,
    writer: Any,
    stack: RoFormerLiteModel,
    architecture: _Architecture,
    quantization: str | None,
) -> None:
    kind = gguf.GGMLQuantizationType[(quantization or "f32").upper()]

    def add(name: str, tensor: torch.Tensor) -> None:
        array = tensor.detach().float().numpy().copy()
        # Matrices whose rows are not whole quantised blocks, norms and biases are not quantised.
        is_matrix = array.ndim == 2 and array.shape[1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        if kind == gguf.GGMLQuantizationType.F32 or not is_matrix:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)

    config = stack.config
    embeddings = stack.embeddings
    words = embeddings.word_embeddings.weight
    if config.scale_embeddings:
        words = words * config.embedding_size**0.5
    add("token_embd.weight", words)
    if config.embedding_norm:
        add("token_types.weight", torch.zeros(1, config.hidden_size))
        add("token_embd_norm.weight", embeddings.norm.weight)
        add("token_embd_norm.bias", embeddings.norm.bias)
    if config.final_norm:
        add("output_norm.weight", stack.final_norm.weight)
    for number, layer in enumerate(stack.layers):
        _add_layer(add, f"blk.{number}", layer, architecture)


def _add_layer(
    add: Any, prefix: str, layer: RoFormerLiteLayer, architecture: _Architecture
) -> None:
    for name, places in architecture.tensors.items():
        modules = [layer.get_submodule(place) for place in places]
        add(f"{prefix}.{name}.weight", torch.cat([module.weight for module in modules]))
        if getattr(modules[0], "bias", None) is not None:
            add(f"{prefix}.{name}.bias", torch.cat([module.bias for module in modules]))
