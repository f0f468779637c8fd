"""After `padding_free`, every text model of transformers has the same outputs, or it is refused.

`python tests/test_padding_free_models.py [TYPES]` measures again, and writes
`padding_free_models.csv` and the page `docs/padding_free_models.md`.
"""

import csv
import inspect
import re
import sys
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.utils import ModelOutput

from hf_roformer_lite.padding_free import padding_free
from hf_roformer_lite.padding_free.layers import layers_of

RESULTS = Path(__file__).with_name("padding_free_models.csv")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "padding_free_models.md"
EXACT = "exact"
TAKES_MORE = "does not take text only"
INTRODUCTION = """# All text models

Every text model of transformers 5.24, and the outcome of `padding_free(model)`. The difference is the largest one of
logits, loss and gradients, relative to the largest value, of a small random model of the class (rows of 20, 13, 6 and 1
tokens). *Exact* means at most 1e-5, for every class of the type. All other types are refused with a `ValueError`, for the
reason in the table, and left as they were.

"""
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
# These types are in no other table, and read text. Other such types read sound.
SEQ2SEQ_TYPES = set(
    "blenderbot blenderbot-small fsmt led longt5 m2m_100 mvp nllb-moe pegasus pegasus_x plbart "
    "switch_transformers".split()
)
TYPES = sorted(kind for kind in SEQ2SEQ_TYPES.union(*TABLES[:-1]) if kind in CONFIG_MAPPING_NAMES)
FAST = set(
    "albert bert distilbert electra eurobert gemma3_text gpt2 llama mamba modernbert nomic_bert "
    "opt qwen3 roberta mobilebert gemma2 gpt_oss lfm2 marian".split()
)
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
# These types cannot be run or trained with a batch that has only text.
NOT_TEXT = {
    "gemma3n": "its part for images needs the package timm; its text model is gemma3n_text",
    "gemma4_assistant": "it drafts from the keys, values and states of another model",
    "gemma4_unified_assistant": "it drafts from the keys, values and states of another model",
    "git": "its loss expects the tokens of an image before the text",
    "layoutlmv2": "it reads images of pages, by the package detectron2",
    "musicgen": "its tokens are codes of sound, several at a place",
    "musicgen_melody": "its tokens are codes of sound, several at a place",
}
# The page describes an error by the words next to the first pattern that matches it.
REASONS = (
    ("attention interface", "attention, if any, is neither of the interface nor in the table"),
    ("outputs differ|meet outside", "tokens meet outside attention"),
    ("experts", "experts that take a limited number of tokens of a batch"),
    ("mask functions", "layers that take masks of another kind"),
    ("token ids alone", "they take no rows of token ids alone"),
    ("", "layers that read the mask, the cache or the rows of the batch themselves"),
)


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


def outputs_of(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The outputs by which two models are compared, at real tokens or for whole rows.

    They are the logits of the batch and of a full row; the logits of the token after that row, if
    the model can generate; the states of all layers; the loss in training, and all gradients."""
    full = {
        name: value[:1] for name, value in batch.items() if name not in (*TARGETS, "attention_mask")
    }
    if model.config.is_encoder_decoder:
        full["decoder_input_ids"] = full["input_ids"]
    with torch.no_grad():
        found = model.eval()(**batch)
        whole = model(**full)
    names = [
        name for name in found if name.endswith("logits") and isinstance(found[name], torch.Tensor)
    ]
    outputs = [found[name] for name in names]
    outputs += [whole[name] for name in names if name in whole]
    outputs += logits_of_next_token(model, full["input_ids"], whole)
    outputs += states_of_layers(model, batch)
    if set(TARGETS) & set(batch):
        outputs += loss_and_gradients(model, batch)
    real = batch["attention_mask"] != 0
    if model.config.is_encoder_decoder and "labels" in batch:
        real = batch["labels"] != -100
    return [value[real] if value.shape[:2] == real.shape else value for value in outputs]


def logits_of_next_token(
    model: PreTrainedModel, ids: torch.Tensor, whole: ModelOutput
) -> list[torch.Tensor]:
    """The logits of one more token after `whole`, the output of a full row with its cache."""
    # Some models have no cache, or cannot go on from it like this.
    with torch.no_grad(), suppress(Exception):
        cache = whole.get("cache", whole.get("past_key_values"))
        return [model(ids[:, :1], past_key_values=cache).logits]
    return []


def states_of_layers(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    # Some models have no states of layers.
    with torch.no_grad(), suppress(TypeError):
        states = model(**batch, output_hidden_states=True).get("hidden_states") or ()
        return [state for state in states if isinstance(state, torch.Tensor)]
    return []


def loss_and_gradients(
    model: PreTrainedModel, batch: dict[str, torch.Tensor]
) -> list[torch.Tensor]:
    model.train().zero_grad()
    loss = model(**batch).loss
    loss.backward()
    gradients = [
        parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None
    ]
    model.eval()
    return [loss.detach(), torch.cat(gradients)]


def numbers_of_computed_tokens(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> set[int]:
    """The numbers of states other than zero that the layers of a model return.

    A flat row leaves zeros at padding."""
    found = set()

    def look(layer: torch.nn.Module, args: tuple, output: Any) -> None:
        states = output if isinstance(output, torch.Tensor) else output[0]
        found.add(int((states != 0).any(-1).sum()))

    handles = [layer.register_forward_hook(look) for layer in layers_of(model)]
    takes_cache = "use_cache" in inspect.signature(type(model).forward).parameters
    options = {"use_cache": False} if takes_cache else {}
    with torch.no_grad():
        model(**batch, **options)
    for handle in handles:
        handle.remove()
    return found


def result_of(kind: str) -> str:
    """The result of the first class of a type, or the worst of all classes if this is exact."""
    first = result_of_class(kind, class_of(kind))
    if not first.startswith("exact"):
        return first
    results = {head.__name__: result_of_class(kind, head) for head in classes_of(kind)[1:]}
    results[class_of(kind).__name__] = first
    for name, result in results.items():
        if result.startswith("refused"):
            return f"refused: {name}, as {result.partition(': ')[2]}"
        if not result.startswith("exact"):
            return f"differs: {name} {result}"
    return max(results.values(), key=lambda result: float(result.partition(": ")[2]))


def result_of_class(
    kind: str, model_class: type[PreTrainedModel], dtype: torch.dtype = torch.float32
) -> str:
    if kind in NOT_TEXT:
        return f"not text: {NOT_TEXT[kind]}"
    try:
        model = tiny_model(kind, model_class).to(dtype)
    except NotImplementedError as error:
        return f"not built: {error}"
    batch = batch_of(model)
    expected = outputs_of(model, batch)
    try:
        padding_free(model)
    except ValueError as error:
        # The refused model must be left as it was.
        for found, value in zip(outputs_of(model, batch), expected, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-6)
        return f"refused: {str(error).partition('padding-free: ')[2]}"
    worst = max(
        float((found - value).abs().max() / value.abs().max().clamp(min=1))
        for found, value in zip(outputs_of(model, batch), expected, strict=True)
    )
    # The first of these heads scores padding as the place of an answer, too, and the others may
    # read padding at the last place.
    reads_padding = "ForQuestionAnswering|(Electra|RoFormer)ForMultipleChoice"
    computes_padding = re.search(reads_padding, str(model_class))
    num_tokens = numbers_of_computed_tokens(model, batch)
    if not computes_padding and int(batch["attention_mask"].sum()) not in num_tokens:
        return f"differs: its layers compute {num_tokens} tokens"
    # Rounding in float32 may move gradients as far as this, so double precision decides.
    if worst > 1e-5 and dtype == torch.float32:
        return result_of_class(kind, model_class, torch.float64)
    return f"exact: {worst:.0e}" if worst <= 1e-5 else f"differs: {worst:.0e}"


def written() -> dict[str, tuple[str, str]]:
    """The class and the result of each type from the last measurement."""
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return {row["type"]: (row["class"], row["result"]) for row in csv.DictReader(file)}


def page_of(results: dict[str, tuple[str, str]]) -> str:
    """The text of the page: the number of types of each outcome, and a table of all types."""
    outcomes = {kind: outcome_of(result) for kind, (_, result) in results.items()}
    counts = Counter(outcomes.values())
    names = [EXACT, *(name for _, name in REASONS), TAKES_MORE]
    lines = [f"| {name[0].upper()}{name[1:]} | {counts[name]} |" for name in names]
    rows = []
    for kind, (class_name, result) in results.items():
        difference = result.partition(": ")[2] if outcomes[kind] == EXACT else ""
        rows.append(f"| `{kind}` | {class_name} | {outcomes[kind]} | {difference} |")
    outcomes_table = ["| outcome | types |", "|---|---:|", *lines, ""]
    head = ["| `model_type` | class | outcome | largest difference |", "|---|---|---|---|"]
    types_table = ["## All types", "", *head, *rows, ""]
    return INTRODUCTION + "\n".join([*outcomes_table, *types_table])


def outcome_of(result: str) -> str:
    kind = result.partition(":")[0]
    if kind != "refused":
        return {"exact": EXACT, "not text": TAKES_MORE}[kind]
    return next(name for pattern, name in REASONS if re.search(pattern, result))


def test_every_type_was_measured():
    assert set(written()) == set(TYPES)
    kinds = {result.partition(":")[0] for _, result in written().values()}
    assert kinds == {"exact", "refused", "not text"}


def test_the_page_lists_what_was_measured():
    assert PAGE.read_text("utf-8") == page_of(written())


ITEMS = [kind if kind in FAST else pytest.param(kind, marks=pytest.mark.slow) for kind in TYPES]


@pytest.mark.parametrize("kind", ITEMS)
def test_exact_or_refused(kind):
    result = result_of(kind)
    assert result.partition(":")[0] == written()[kind][1].partition(":")[0], result


def main() -> None:
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    results = {kind: written().get(kind) for kind in TYPES}
    chosen = sys.argv[1:] or TYPES
    for kind, known in results.items():
        if known is None or kind in chosen:
            results[kind] = (class_of(kind).__name__, result_of(kind)[:160].strip())
            print(kind, *results[kind], flush=True)
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("type", "class", "result"))
        writer.writerows((kind, *result) for kind, result in results.items())
    PAGE.write_text(page_of(results), "utf-8")


if __name__ == "__main__":
    main()
