"""Models in the format of CTranslate2, a fast engine for generation and encoders on CPUs and CUDA.

Its specifications say what a layer can be; a stack of ours fills in one of them, tensor by tensor.
Queries, keys and values of self-attention share a matrix there, keys and values of cross-attention
another.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.model.configuration_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.modeling_roformer_lite import (
    ALL_LAYERS,
    RoFormerLiteLayer,
    RoFormerLiteModel,
    sinusoidal_positions,
)

from .runtime_limits import Requirements, named_vocabulary
from .weight_map import ConversionError

# Our names of activations, and members of CTranslate2's `Activation`.
_ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "GELU"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh"), "GELUTanh"),
    **dict.fromkeys(("silu", "swish"), "SWISH"),
    "quick_gelu": "GELUSigmoid",
    "relu": "RELU",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}
# Scalings of rotary positions that depend on the length of the text.
LENGTH_DEPENDENT = ("dynamic", "longrope")


def export_ctranslate2(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    quantization: str | None = None,
) -> str:
    """Write a model of this package into `directory`, which exists, as CTranslate2 loads it.

    Args:
        model: An encoder–decoder, a causal language model, or an encoder: the bare stack, or a
            masked language model. Only the stack of the latter is written, as CTranslate2's
            encoders return hidden states.
        tokenizer: Names the vocabulary; its files are not written here.
        directory: Takes `model.bin`, `config.json` and the vocabulary.
        quantization: How weights are stored: `int8`, `int8_float32`, `float16` or `bfloat16`.
            Default: float32.

    Returns:
        The class that loads it, one of `Translator`, `Generator` and `Encoder` of the package
        `ctranslate2`.

    Raises:
        ConversionError: naming field and value, when CTranslate2 cannot run such a model.
    """
    import ctranslate2.specs as specs

    writers = {
        "RoFormerLiteForConditionalGeneration": _pair,
        "RoFormerLiteForCausalLM": _causal,
        "RoFormerLiteForMaskedLM": _encoder,
        "RoFormerLiteModel": _encoder,
    }
    name = type(model).__name__
    if name not in writers:
        raise ConversionError(
            f"{name}: CTranslate2 has no such head; --format onnx takes every model"
        )
    with torch.no_grad():
        loader, spec = writers[name](specs, model, tokenizer)
        spec.validate()
        spec.optimize(quantization)
    spec.save(str(directory))
    return loader


def _pair(
    specs: ModuleType, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, Any]:
    encoder = model.get_encoder()
    decoder = model.get_decoder()
    of_encoder = Requirements("CTranslate2", encoder.config, "encoder.")
    of_decoder = Requirements("CTranslate2", decoder.config, "decoder.")
    _check(of_encoder)
    _check(of_decoder)
    eps = encoder.config.norm_eps
    why = f"has one eps for all norms, here encoder.norm_eps={eps}"
    of_decoder.require_value("norm_eps", eps, why)
    of_encoder.require_value("type_vocab_size", 0, "has no segments in pairs")
    encoder_spec = _encoder_spec(specs, encoder)
    decoder_spec = _decoder_spec(specs, decoder, model.lm_head)
    spec = specs.TransformerSpec(encoder_spec, decoder_spec)
    vocabulary = named_vocabulary(tokenizer, decoder.config.vocab_size)
    spec.register_source_vocabulary(named_vocabulary(tokenizer, encoder.config.vocab_size))
    spec.register_target_vocabulary(vocabulary)
    _describe(spec, model, tokenizer, vocabulary)
    spec.config.decoder_start_token = vocabulary[model.generation_config.decoder_start_token_id]
    return "Translator", spec


def _causal(
    specs: ModuleType, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, Any]:
    _check(Requirements("CTranslate2", model.config))
    spec = specs.TransformerDecoderModelSpec(_decoder_spec(specs, model.model, model.lm_head))
    vocabulary = named_vocabulary(tokenizer, model.config.vocab_size)
    spec.register_vocabulary(vocabulary)
    _describe(spec, model, tokenizer, vocabulary)
    return "Generator", spec


def _encoder(
    specs: ModuleType, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, Any]:
    stack = model.base_model
    needs = Requirements("CTranslate2", stack.config)
    _check(needs)
    needs.require_value("is_decoder", False, "has no causal encoder")
    has_pooler = stack.pooler is not None
    spec = specs.TransformerEncoderModelSpec(_encoder_spec(specs, stack), pooling_layer=has_pooler)
    if has_pooler:
        _fill_linear(spec.pooler_dense, stack.pooler.dense)
    vocabulary = named_vocabulary(tokenizer, stack.config.vocab_size)
    spec.register_vocabulary(vocabulary)
    spec.config.layer_norm_epsilon = stack.config.norm_eps
    spec.config.unk_token = tokenizer.unk_token or vocabulary[0]
    return "Encoder", spec


def _check(needs: Requirements) -> None:
    """Refuse models for which the specifications have no place."""
    config = needs.config
    needs.require_standard_layers()
    known = ", ".join(sorted(_ACTIVATIONS))
    is_known = config.hidden_act in _ACTIVATIONS
    needs.require(is_known, "hidden_act", f"has the activations {known}")
    # CTranslate2 would add sinusoids of its own.
    has_positions = config.position_embedding_type != "none"
    needs.require(has_positions, "position_embedding_type", "has no layers without positions")
    needs.require_value("lm_head_transform", False, "has no layer before its LM head")
    if config.is_decoder:
        needs.require_value("type_vocab_size", 0, "has no segments in decoders")
    if config.position_embedding_type == "rope":
        scaling = config.rope_parameters["rope_type"]
        why = (
            f"keeps one table of angles, which rope_type={scaling!r} changes with the text's length"
        )
        needs.require(scaling not in LENGTH_DEPENDENT, "rope_parameters", why)
        if scaling == "yarn":
            is_whole = config.rope_parameters.get("partial_rotary_factor", 1.0) == 1
            why = "scales the scores of whole heads, and yarn only the part of channels that rotate"
            needs.require(is_whole, "rope_parameters", why)


def _describe(
    spec: Any, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, vocabulary: list[str]
) -> None:
    """Write the eps and the special tokens of a model that generates."""
    ends = model.generation_config.eos_token_id
    if not isinstance(ends, list):
        ends = [ends]
    if len(ends) != 1 or ends[0] is None:
        raise ConversionError(f"eos_token_id={ends}: CTranslate2 stops at one token; give one")
    spec.config.layer_norm_epsilon = model.config.get_text_config(decoder=True).norm_eps
    spec.config.eos_token = vocabulary[ends[0]]
    spec.config.bos_token = tokenizer.bos_token or vocabulary[ends[0]]
    spec.config.unk_token = tokenizer.unk_token or vocabulary[ends[0]]


def _encoder_spec(specs: ModuleType, stack: RoFormerLiteModel) -> Any:
    config = stack.config
    options = _options(specs, config)
    if config.type_vocab_size:
        options["num_source_embeddings"] = 2
        options["embeddings_merge"] = specs.EmbeddingsMerge.ADD
    spec = specs.TransformerEncoderSpec(**options)
    spec.embeddings[0].weight = _table(stack.embeddings.word_embeddings)
    if config.type_vocab_size:
        segments = _table(stack.embeddings.token_type_embeddings)
        if config.scale_embeddings:
            # CTranslate2 scales the sum of both embeddings; ours of segments are not scaled.
            segments *= config.hidden_size**-0.5
        spec.embeddings[1].weight = segments
    _fill_stack(spec, stack)
    return spec


def _decoder_spec(specs: ModuleType, stack: RoFormerLiteModel, lm_head: nn.Module) -> Any:
    config = stack.config
    options = _options(specs, config)
    spec = specs.TransformerDecoderSpec(
        with_encoder_attention=config.add_cross_attention, **options
    )
    spec.embeddings.weight = _table(stack.embeddings.word_embeddings)
    _fill_linear(spec.projection, lm_head)
    _fill_stack(spec, stack)
    return spec


def _options(specs: ModuleType, config: RoFormerLiteConfig) -> dict[str, Any]:
    """The configuration as arguments that both specifications take."""
    options = {
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        # Without this there is no place for a final norm, which post-norm stacks may have, too.
        "pre_norm": True,
        "no_final_norm": not config.final_norm,
        "activation": getattr(specs.Activation, _ACTIVATIONS[config.hidden_act]),
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.gated_mlp,
        "rms_norm": config.norm_type == "rmsnorm",
        "num_heads_kv": config.num_key_value_heads,
        "head_dim": config.head_dim,
    }
    if config.position_embedding_type == "rope":
        rope = config.rope_parameters
        options["rotary_dim"] = int(config.head_dim * rope.get("partial_rotary_factor", 1.0))
        options["rotary_interleave"] = False
        options["rotary_base"] = rope["rope_theta"]
        if rope["rope_type"] != "default":
            options["rotary_scaling_type"] = specs.attention_spec.RotaryScalingType.Su
    return options


def _fill_stack(spec: Any, stack: RoFormerLiteModel) -> None:
    config = stack.config
    spec.pre_norm = config.norm_placement == "pre"
    spec.scale_embeddings = config.scale_embeddings
    if config.position_embedding_type == "learned":
        spec.position_encodings.encodings = _table(stack.embeddings.position_embeddings)
    elif config.position_embedding_type == "sinusoidal":
        positions = torch.arange(config.max_position_embeddings)
        spec.position_encodings.encodings = sinusoidal_positions(
            positions, config.hidden_size, torch.float32
        )
    if config.embedding_norm:
        _fill_norm(spec.layernorm_embedding, stack.embeddings.norm)
    if config.final_norm:
        _fill_norm(spec.layer_norm, stack.final_norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_layer(layer_spec, layer)
        _fill_rotation(layer_spec.self_attention, stack)


# The parts of a layer's specification, and the names of our norms and matrices. Numbers stand for
# places in a list.
_NORMS = {"self_attention": "self_attn_norm", "attention": "cross_attn_norm", "ffn": "mlp_norm"}
_MATRICES = {
    "self_attention.0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.1": ("self_attn.o_proj",),
    "attention.0": ("cross_attn.q_proj",),
    "attention.1": ("cross_attn.k_proj", "cross_attn.v_proj"),
    "attention.2": ("cross_attn.o_proj",),
    "ffn.linear_1": ("mlp.down_proj",),
}
_PLAIN = {"ffn.linear_0": ("mlp.up_proj",)}
_GATED = {"ffn.linear_0": ("mlp.gate_proj",), "ffn.linear_0_noact": ("mlp.up_proj",)}


def _fill_layer(spec: Any, layer: RoFormerLiteLayer) -> None:
    for part, norm in _NORMS.items():
        if hasattr(spec, part):
            _fill_norm(getattr(spec, part).layer_norm, layer.get_submodule(norm))
    matrices = _MATRICES | _PLAIN
    if layer.mlp.gate_proj is not None:
        matrices = _MATRICES | _GATED
    for place, names in matrices.items():
        part, _, matrix = place.partition(".")
        if not hasattr(spec, part):
            continue
        within = getattr(spec, part)
        if matrix.isdecimal():
            target = within.linear[int(matrix)]
        else:
            target = getattr(within, matrix)
        _fill_linear(target, *map(layer.get_submodule, names))


def _fill_rotation(spec: Any, stack: RoFormerLiteModel) -> None:
    """Write a scaling of rotary positions as one factor for each pair of channels.

    CTranslate2 has names for linear and llama3 as well, but none for yarn, and its converter loses
    llama3's factor.
    """
    if ALL_LAYERS not in stack.rotary_emb:
        return
    rotary_emb = stack.rotary_emb[ALL_LAYERS]
    if rotary_emb.rope_type == "default":
        return
    unscaled, _ = rotary_emb.compute_default_rope_parameters(stack.config)
    factors = unscaled / rotary_emb.inv_freq
    spec.rotary_scaling_long_factor = factors
    spec.rotary_scaling_short_factor = factors
    # Yarn scales both queries and keys.
    sharpening = rotary_emb.attention_scaling**2
    spec.queries_scale = float(stack.config.head_dim**-0.5 * sharpening)


def _fill_linear(spec: Any, *modules: nn.Module) -> None:
    """One matrix of the rows of all `modules`."""
    spec.weight = torch.cat([module.weight for module in modules]).float()
    if modules[0].bias is not None:
        spec.bias = torch.cat([module.bias for module in modules]).float()


def _fill_norm(spec: Any, module: nn.Module) -> None:
    spec.gamma = module.weight.detach().float().clone()
    # CTranslate2 takes a norm without beta for RMSNorm.
    if not hasattr(spec, "beta"):
        return
    spec.beta = torch.zeros_like(spec.gamma)
    if module.bias is not None:
        spec.beta = module.bias.detach().float().clone()


def _table(module: nn.Embedding) -> torch.Tensor:
    # Quantisation changes the tensor in place.
    return module.weight.detach().float().clone()
