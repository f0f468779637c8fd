"""Models in the format of CTranslate2, a fast engine for generation and encoders on CPUs and CUDA.

Its specifications define the possible layers; the tensors of our stack are written into one of
them. There, queries, keys and values of self-attention share one matrix, and so do keys and values
of cross-attention.
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

# Our names of activations, and the members of CTranslate2's `Activation`.
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
    """Write a RoFormerLite model to `directory`, which exists, in the form that CTranslate2
    loads.

    Args:
        model: An encoder–decoder, a causal language model, or an encoder: the bare stack, or a
            masked language model. Of the latter, only the stack is written, because CTranslate2's
            encoders return hidden states.
        tokenizer: The source of the vocabulary; its files are not written here.
        directory: The directory of `model.bin`, `config.json` and the vocabulary.
        quantization: The data type of the weights: `int8`, `int8_float32`, `float16` or `bfloat16`.
            Default: float32.

    Returns:
        The class that loads the model, one of `Translator`, `Generator` and `Encoder` of the
        package `ctranslate2`.

    Raises:
        ConversionError: naming the field and its value, if CTranslate2 cannot run such a model.
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
            f"{name}: CTranslate2 has no such head; --format onnx takes almost every model"
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
    """Reject models that the specifications cannot describe."""
    config = needs.config
    needs.require_standard_layers()
    known = ", ".join(sorted(_ACTIVATIONS))
    is_known = config.hidden_act in _ACTIVATIONS
    needs.require(is_known, "hidden_act", f"has the activations {known}")
    # Without positions, CTranslate2 would add sinusoids.
    has_positions = config.position_embedding_type != "none"
    needs.require(has_positions, "position_embedding_type", "has no layers without positions")
    needs.require_value("lm_head_transform", False, "has no layer before its LM head")
    if config.is_decoder:
        needs.require_value("type_vocab_size", 0, "has no segments in decoders")
    if config.position_embedding_type == "rope":
        scaling = config.rope_parameters["rope_type"]
        why = (
            f"keeps one table of angles, but with rope_type={scaling!r} the angles depend on the "
            "length of the text"
        )
        needs.require(scaling not in LENGTH_DEPENDENT, "rope_parameters", why)
        if scaling == "yarn":
            is_whole = config.rope_parameters.get("partial_rotary_factor", 1.0) == 1
            why = "scales the scores of whole heads, but yarn scales only the channels that rotate"
            needs.require(is_whole, "rope_parameters", why)


def _describe(
    spec: Any, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, vocabulary: list[str]
) -> None:
    """Write the eps and the special tokens of a generative model."""
    ends = model.generation_config.eos_token_id
    if not isinstance(ends, list):
        ends = [ends]
    if len(ends) != 1 or ends[0] is None:
        raise ConversionError(f"eos_token_id={ends}: CTranslate2 stops at one token; set one")
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
            # CTranslate2 scales the sum of both embeddings, but here segments are not scaled.
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
    """The configuration as arguments of both specifications."""
    options = {
        "num_layers": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        # Without this there would be no final norm, which post-norm stacks may also have.
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


# The parts of a layer's specification, and the names of our norms and matrices. Numbers are indices
# of a list.
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
    """Write the scaling of rotary positions as one factor for each pair of channels.

    CTranslate2 also has names for linear and llama3, but none for yarn, and its converter loses the
    factor of llama3.
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
    """Write the rows of all `modules` as one matrix."""
    spec.weight = torch.cat([module.weight for module in modules]).float()
    if modules[0].bias is not None:
        spec.bias = torch.cat([module.bias for module in modules]).float()


def _fill_norm(spec: Any, module: nn.Module) -> None:
    spec.gamma = module.weight.detach().float().clone()
    # For CTranslate2, a norm without beta is RMSNorm.
    if not hasattr(spec, "beta"):
        return
    spec.beta = torch.zeros_like(spec.gamma)
    if module.bias is not None:
        spec.beta = module.bias.detach().float().clone()


def _table(module: nn.Embedding) -> torch.Tensor:
    # Quantisation changes the tensor in place.
    return module.weight.detach().float().clone()
