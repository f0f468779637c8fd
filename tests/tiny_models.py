"""Tiny models of every text model of transformers, and batches for them."""

import inspect
import re
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

TABLES = [
    getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    for kind in (
        "MASKED_LM",
        "CAUSAL_LM",
        "SEQUENCE_CLASSIFICATION",
        "TOKEN_CLASSIFICATION",
        "SEQ_TO_SEQ_CAUSAL_LM",
    )
]
HEADS = [*TABLES, modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES]
HEADS.append(modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES)
ENCODER_DECODERS = set(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values())
# A model with more parameters than this has sizes in fields that no rule below finds.
LIMIT = 3e7
# Configurations have many names for the same kinds of sizes.
NAMES_OF_SIZES = (
    (64, "hidden_size d_model dim n_embd emb_dim embedding_size hidden_size_global d_latents"),
    (2, "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth"),
    (2, "num_encoder_layers num_decoder_layers num_blocks num_self_attends_per_block"),
    (4, "num_attention_heads n_head n_heads num_heads num_key_value_heads attention_heads"),
    (4, "encoder_attention_heads decoder_attention_heads num_experts num_local_experts"),
    (4, "num_encoder_attention_heads num_decoder_attention_heads linear_num_heads"),
    (96, "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim hidden_dim n_inner d_ff"),
    (32, "moe_intermediate_size ffn_hidden_size expert_ffn_hidden_size"),
    (16, "head_dim v_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim"),
    (16, "mamba_n_heads mamba_d_head mamba_d_state mamba_chunk_size chunk_size num_latents"),
    (8, "rotary_dim qk_rope_head_dim qk_nope_head_dim laurel_rank hidden_size_per_layer_input"),
    (120, "vocab_size entity_vocab_size vocab_size_per_layer_input"),
)
SIZES: dict[str, Any] = {name: size for size, names in NAMES_OF_SIZES for name in names.split()}
SIZES |= {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "mamba_expand": 4,
    "hc_lowrank": 8,
    "entity_emb_size": 16,
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "zero_expert_num": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "indexer_compress_ratio": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "encoder_hash_byte_group_vocab": 50,
    "max_position_embeddings": 128,
    "sliding_window": 7,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "mask_token_id": 3,
    "local_attention": 14,
    "per_layer_config": None,
    "image_size": 32,
}
# A model is built from the first of these that transformers can build and run. The value `...`
# leaves a field out.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"num_key_value_heads": 2},
    {},
    {"sliding_window": ...},
    {"head_dim": ..., "rotary_dim": ...},
    {"head_dim": ..., "embedding_size": ..., "sliding_window": ..., "num_key_value_heads": ...},
    {"head_dim": ..., "sliding_window": ..., "num_hidden_layers": 5},
)
LINEAR = "linear_attention"
SLIDING = "sliding_attention"
FULL = "full_attention"
ROPE = {"rope_type": "default", "rope_theta": 1e4}
SWA = (
    "num_attention_heads num_key_value_heads q_lora_rank kv_lora_rank head_dim qk_nope_head_dim "
    "v_head_dim"
).split()
DOTS = {"per_layer_config": ..., **{f"swa_{name}": SIZES[name] for name in SWA}}
DISTANCES = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
# These fields belong to one type: values that must fit together, and values that its checkpoints
# have although the defaults lack them.
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"use_cache": False},
    "cohere_compass_text": {"rope_parameters": {FULL: ROPE, SLIDING: ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8}},
    "deberta": DISTANCES,
    "deberta-v2": {**DISTANCES, "position_buckets": 8},
    "dots3_note": DOTS,
    "dots3_note_text": DOTS,
    "dory": {
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
        "layer_types": [SLIDING, FULL, FULL],
    },
    "falcon_h1": {"mamba_d_ssm": 256},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": [SLIDING, FULL] * 2,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 7},
    "granitemoehybrid": {"layer_types": [LINEAR, FULL]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"visual_embed": False, "coordinate_size": 12, "shape_size": 8},
    "lfm2": {"layer_types": ["conv", FULL]},
    "lfm2_moe": {"layer_types": ["conv", FULL], "num_dense_layers": 1},
    "lilt": {"hidden_size": 96},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8, "n_groups": 2, "state_size": 16},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2},
    "perceiver": {"max_position_embeddings": 20},
    "reformer": {
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "attention_head_size": 16,
    },
    "longt5": {"decoder_start_token_id": 0},
    "marian": {"decoder_start_token_id": 0},
    "switch_transformers": {"decoder_start_token_id": 0},
    "t5": {"decoder_start_token_id": 0},
    "xlstm": {
        "hidden_size": 128,
        "v_head_dim": ...,
        "mode": "train",
        "chunk_size": 1,
        "use_cache": False,
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": [LINEAR, "hybrid", "hybrid"]},
    "zamba2": {"layers_block_type": [LINEAR, "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}


def classes_of(kind: str) -> list[type[PreTrainedModel]]:
    """The classes of a type, first those without cross-attention, then its encoder–decoders."""
    entries = [table[kind] for table in HEADS if kind in table]
    names = dict.fromkeys(entry if isinstance(entry, str) else entry[0] for entry in entries)
    ordered = sorted(names, key=lambda name: name in ENCODER_DECODERS)
    return [getattr(transformers, name) for name in ordered]


def class_of(kind: str) -> type[PreTrainedModel]:
    return classes_of(kind)[0]


def merged(fields: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """`fields` with the values of `others`. Dictionaries within them are merged in the same way,
    and the value `...` leaves a field out."""
    both = dict(fields)
    for name, value in others.items():
        is_nested = isinstance(fields.get(name), dict)
        both[name] = merged(fields[name], value) if is_nested else value
    return {name: value for name, value in both.items() if value is not ...}


def small_fields(defaults: PreTrainedConfig, others: dict[str, Any]) -> dict[str, Any]:
    """Fields of a small model without dropout that has a layer of each kind, and fields of the
    configurations within it."""
    known = set(vars(defaults)) | set(defaults.attribute_map)
    random = re.compile("dropout|pdrop|layerdrop|jitter")
    fields = {
        name: 0.0
        for name, value in vars(defaults).items()
        if random.search(name) and type(value) is float
    }
    fields |= {name: value for name, value in SIZES.items() if name in known}
    fields |= fields_of_layers(defaults)
    fields = merged(fields, {name: value for name, value in others.items() if name in known})
    for name in defaults.sub_configs:
        part = getattr(defaults, name)
        if isinstance(part, PreTrainedConfig):
            fields[name] = {"model_type": part.model_type, **small_fields(part, others)}
    return fields


def fields_of_layers(defaults: PreTrainedConfig) -> dict[str, Any]:
    """The number of layers and the kind of each, for the fewest layers that have all kinds."""
    kinds = {}
    for name in ("layer_types", "mlp_layer_types"):
        kinds[name] = list(dict.fromkeys(vars(defaults).get(name) or ()))
    if not kinds["layer_types"]:
        return {}
    num_layers = max(2, *map(len, kinds.values()))
    fields: dict[str, Any] = {"num_hidden_layers": num_layers}
    for name, names in kinds.items():
        if names:
            fields[name] = (names * num_layers)[-num_layers:]
    return fields


def tiny_model(
    kind: str, model_class: type[PreTrainedModel] | None = None, **given: Any
) -> PreTrainedModel:
    """A model without dropout, whose random weights are large enough that a leak would show."""
    model_class = model_class or class_of(kind)
    reason = ""
    for others in VARIANTS:
        try:
            config = config_of(kind, model_class, others, given)
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in model_class(config).parameters())
            if size > LIMIT:
                reason = reason or "no small configuration by these rules"
                continue
            return model_with_large_weights(model_class, config)
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
    raise NotImplementedError(reason)


def config_of(
    kind: str, model_class: type[PreTrainedModel], others: dict[str, Any], given: dict[str, Any]
) -> PreTrainedConfig:
    """A configuration for `model_class` from the rules above, a variant, and the fields `given`."""
    defaults = AutoConfig.for_model(kind)
    # If `model_class` is the text model within a larger one, it takes a part of the configuration.
    for part in [getattr(defaults, name) for name in defaults.sub_configs]:
        if type(part) is model_class.config_class:
            defaults = part
    fields = merged(small_fields(defaults, others), OVERRIDES.get(kind, {}))
    return type(defaults)(**merged(fields, given))


def model_with_large_weights(
    model_class: type[PreTrainedModel], config: PreTrainedConfig
) -> PreTrainedModel:
    """A seeded model without dropout, after a forward pass that shows that it runs."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model(**batch_of(model))
    return model


def batch_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A batch of rows of 20, 13, 6 and 1 tokens, with labels for the head of the model."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 110, (4, 20), generator=generator)
    mask = (torch.arange(20) < torch.tensor([20, 13, 6, 1])[:, None]).long()
    # Some tokens are the mask token, and each text has an end.
    ids[0, 4] = ids[1, 2] = 3
    ids[range(4), mask.sum(1) - 1] = 2
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    if "bbox" in inspect.signature(type(model).forward).parameters:
        batch["bbox"] = torch.zeros(4, 20, 4, dtype=torch.long)
    is_unlabelled = (mask == 0) | (torch.rand(4, 20, generator=generator) < 0.3)
    labels = ids.masked_fill(is_unlabelled, -100)
    name = type(model).__name__
    if re.search("ForMaskedLM|LMHead|ForCausalLM|ForConditionalGeneration|MTModel", name):
        batch["labels"] = labels
        if model.config.is_encoder_decoder:
            # Every token of the target of an encoder–decoder has a label.
            is_padding = mask.roll(2, dims=0) == 0
            batch["labels"] = ids.roll(2, dims=0).masked_fill(is_padding, -100)
    elif "ForTokenClassification" in name:
        batch["labels"] = (labels % 2).where(labels != -100, -100)
    elif "ForSequenceClassification" in name:
        batch["labels"] = torch.arange(4) % 2
    elif "ForQuestionAnswering" in name:
        batch |= {
            "start_positions": torch.tensor([3, 2, 1, 0]),
            "end_positions": torch.tensor([5, 3, 2, 0]),
        }
    elif "ForMultipleChoice" in name:
        batch = {name: value.unflatten(0, (2, 2)) for name, value in batch.items()}
        batch["labels"] = torch.tensor([0, 1])
    return batch


TARGETS = ("labels", "start_positions", "end_positions")
