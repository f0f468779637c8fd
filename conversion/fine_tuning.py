"""Models for fine-tuning from checkpoints of other systems: the stack, and what a new task can use of the head."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_roformer_lite import RoFormerLiteForCausalLM

from .converter import SourceConfig, Tensors
from .hugging_face import HuggingFaceConverter
from .weight_map import WeightMap


def convert_for_fine_tuning(
    converter: HuggingFaceConverter,
    state_dict: Mapping[str, torch.Tensor],
    source_config: SourceConfig,
    model_class: type[PreTrainedModel],
    fields: Mapping[str, Any],
    keep_head: bool = True,
) -> tuple[PreTrainedModel, list[str]]:
    """A model with a head that the checkpoint may lack; new are the tensors that are new in transformers' own class.

    Args:
        converter: Of the checkpoint's family.
        state_dict: Its tensors, with any head.
        source_config: Its config.
        model_class: Our class, with a head or `RoFormerLiteModel`.
        fields: Fields of our config that shall not be the checkpoint's, such as the labels.
        keep_head: Whether to use the head that the checkpoint has. A pooler is used in any case: it belongs to the
            stack there, and is the dense layer of the classifier here.

    Returns:
        The model, in float32 because AdamW's small steps are lost in half precision; and the names of its tensors
        that are new.

    Raises:
        InputError: when names or shapes of the stack do not fit, or the family has no equivalent of `model_class`.
    """
    state_dict = converter.read(state_dict)
    source_config = converter.complete_config(source_config, state_dict) | {
        "architectures": [converter.class_name(converter.head_for(model_class))],
        "add_pooling_layer": False,
    }
    if model_class is RoFormerLiteForCausalLM:
        source_config["is_decoder"] = True
    config = converter.our_config(source_config)
    config = type(config).from_dict(merged(config.to_dict(), fields))
    model = model_class(config)
    tied = set(model.all_tied_weights_keys)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name not in tied}
    weight_map = converter.weight_map(config, source_config)
    theirs, ours = converter.stack_prefixes(converter.head(source_config))
    stack = {name for name in shapes if name.startswith(ours)}
    original_names = _names_inside(converter, state_dict, theirs)

    rules = weight_map.resolve(name for name in shapes if name in stack or weight_map.makes(name))
    present = {weight_map.current_name(name) for name in original_names}
    usable = [rule for rule in rules if keep_head or all(name.startswith(theirs) for name in rule.theirs)]
    wanted = stack.union(*(rule.ours for rule in usable if present.issuperset(rule.theirs)))
    read = {name for rule in rules if wanted.issuperset(rule.ours) for name in rule.theirs}
    needed = {
        name: state_dict[original]
        for name, original in original_names.items()
        if weight_map.current_name(name) in read or _must_be_read(name, theirs)
    }
    _load(model, weight_map, needed, {name: shapes[name] for name in wanted})
    return model, sorted(shapes.keys() - wanted)


def merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` of a configuration, updated with `overrides`; `encoder` and `decoder` are updated field by field."""
    nested = {name: merged(fields[name], value) for name, value in overrides.items() if name in ("encoder", "decoder")}
    labels = ("id2label", "label2id") if "num_labels" in overrides else ()  # those of the checkpoint
    return {**{name: value for name, value in fields.items() if name not in labels}, **overrides, **nested}


def _names_inside(
    converter: HuggingFaceConverter, state_dict: Mapping[str, torch.Tensor], theirs: str
) -> dict[str, str]:
    """The checkpoint's names by those that a class has whose stack's names begin with `theirs`; the bare stack's
    begin with nothing."""
    prefix = f"{converter.prefix}."
    of_a_head = any(name.startswith(prefix) for name in state_dict)
    if of_a_head and not theirs:
        return {name.removeprefix(prefix): name for name in state_dict if name.startswith(prefix)}
    return {name if of_a_head else theirs + name: name for name in state_dict}


def _must_be_read(name: str, theirs: str) -> bool:
    return name.startswith(theirs) and not name.startswith(f"{theirs}pooler.")


def _load(model: PreTrainedModel, weight_map: WeightMap, tensors: Tensors, shapes: Mapping[str, torch.Size]) -> None:
    model.load_state_dict(dict(weight_map.to_ours(tensors, shapes)), strict=False)  # the weight map checks the names
    model.tie_weights()
