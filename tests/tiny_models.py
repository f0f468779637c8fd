"""Tiny models of every text model of transformers, and batches for them."""

import inspect
import re
from typing import Any

import torch
import transformers
from conftest import Batch, data_beside, mask_of
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

TABLES = [
    getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    for kind in """
        MASKED_LM CAUSAL_LM SEQUENCE_CLASSIFICATION TOKEN_CLASSIFICATION SEQ_TO_SEQ_CAUSAL_LM
    """.split()
]
HEADS = [*TABLES, modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES]
HEADS.append(modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES)
ENCODER_DECODERS = set(modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values())
# A model with more parameters than this has sizes in fields that no rule below finds.
LIMIT = 3e7
FILE = data_beside(__file__)
SIZES: dict[str, Any] = FILE["sizes"]
ABSENT = "absent"


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
    and the value `absent` leaves a field out."""
    both = dict(fields)
    for name, value in others.items():
        is_nested = isinstance(fields.get(name), dict)
        both[name] = merged(fields[name], value) if is_nested else value
    return {name: value for name, value in both.items() if value != ABSENT}


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
    for others in FILE["variants"]:
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
    fields = merged(small_fields(defaults, others), FILE["overrides"].get(kind, {}))
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


def batch_of(model: PreTrainedModel) -> Batch:
    """A batch of rows of 20, 13, 6 and 1 tokens, with labels for the head of the model."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 110, (4, 20), generator=generator)
    mask = mask_of((20, 13, 6, 1))
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
