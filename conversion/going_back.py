"""Export of a RoFormerLite model to a class of transformers: whether a family has a config for
it, and which one.

Families have no separate tables for this direction. Their config is made from ours with the table
that is used for conversion, and is then converted back. If the resulting config differs from the
original, the family has no equivalent. Some differences can be bridged without changing the
outputs: a bias or a segment embedding that we lack is filled with zeros there, and the scale of the
embeddings can be multiplied into their table.
"""

import copy
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from hf_roformer_lite import RoFormerLiteConfig

from .checkpoint_files import without_warnings
from .hugging_face import OUR_PREFIX, WORDS, HuggingFaceConverter
from .weight_map import ConversionError

# If we lack a tensor for one of these fields, theirs is filled with zeros and has no effect.
BRIDGED_BY_ZEROS = {
    "attention_bias",
    "mlp_bias",
    "norm_bias",
    "head_bias",
    "lm_head_bias",
    "type_vocab_size",
}
# These fields do not change the outputs of a forward pass in evaluation mode.
WITHOUT_EFFECT = {
    *PreTrainedConfig.__dataclass_fields__,
    "use_cache",
    "initializer_range",
    "skip_logits",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "hidden_dropout",
    "attention_dropout",
    "mlp_dropout",
    "classifier_dropout",
    "qkv_dropout",
    "hidden_dropout_places",
    "classifier_input_dropout",
}
FIELDS_OF_CLASSIFIERS = {
    "classifier_activation",
    "classifier_norm",
}
FIELDS_OF_LANGUAGE_MODELS = {"lm_head_transform", "lm_head_bias", "tie_word_embeddings"}
FIELDS_OF_PAIRS = ("share_embeddings", "tie_word_embeddings")
POOLING_HEADS = ("ForSequenceClassification", "ForMultipleChoice")


@dataclass
class Route:
    """The export of a model to one family.

    Args:
        converter: The family.
        head: The name of their head.
        ours: Our config. The scale of the embeddings is off in it if it is multiplied into their
            table.
        theirs: Their config.
        back: Our config to which `theirs` is converted; None if the family has no such model.
        target: A model that is made from `back`, without data: its tensors have only shapes. None
            if `back` is None.
        scales: Whether the scale is multiplied into their tables of embeddings.
        faults: The fields of ours without an equivalent, as messages.
        zeros: The tensors that they have and we lack.
    """

    converter: HuggingFaceConverter
    head: str
    ours: PreTrainedConfig
    theirs: PreTrainedConfig | None = None
    back: PreTrainedConfig | None = None
    target: PreTrainedModel | None = None
    scales: bool = False
    faults: list[str] = field(default_factory=list)
    zeros: list[str] = field(default_factory=list)


def carry_back(
    converter: HuggingFaceConverter, model: PreTrainedModel
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the config of their class for `model`.

    Raises:
        ConversionError: naming every field that has no equivalent in the family.
    """
    route = find_route(converter, model)
    if route.faults:
        raise ConversionError(f"{converter.name} has no equivalent of {', '.join(route.faults)}")
    weights = _weights(route, model)
    if route.scales:
        _scale_tables(weights, model.config)
    tensors = route.target.state_dict()
    for name in route.zeros:
        weights[name] = torch.zeros(tensors[name].shape, dtype=model.dtype)
    converter.settle(route.theirs, weights)
    source_config = _source_config(route)
    state_dict = converter.weight_map(route.back, source_config).to_theirs(weights)
    prefix, _ = converter.stack_prefixes(source_config)
    for name, tensor in converter.computed_tensors(model, route.theirs).items():
        state_dict[prefix + name] = tensor
    return state_dict, route.theirs.to_dict()


def _scale_tables(weights: dict[str, torch.Tensor], config: PreTrainedConfig) -> None:
    """Multiply the tables of embeddings by the scale of the stacks that have one."""
    for prefix, stack in stacks_of(config).items():
        if not stack.scale_embeddings:
            continue
        for name, tensor in weights.items():
            if name.endswith(prefix + WORDS):
                weights[name] = tensor * math.sqrt(stack.embedding_size)


def fitting(
    converters: Iterable[HuggingFaceConverter], model: PreTrainedModel
) -> list[HuggingFaceConverter]:
    """The converters of the families that have an equivalent of `model`. The one that needs the
    fewest additions comes first.

    Raises:
        ConversionError: if there are none, naming the nearest family and the fields in the way.
    """
    routes = []
    # A family may warn about ids outside its vocabulary.
    with without_warnings():
        for converter in converters:
            # A family without such a head is skipped.
            with suppress(ConversionError):
                routes.append(find_route(converter, model))
    if not routes:
        raise ConversionError(f"no family has an equivalent of {type(model).__name__}")
    routes.sort(key=_distance)
    best = routes[0]
    if best.faults:
        faults = ", ".join(best.faults)
        nearest = f"the nearest is {best.converter.name}, which has no equivalent of {faults}"
        raise ConversionError(f"no family has an equivalent of this model; {nearest}")
    return [route.converter for route in routes if not route.faults]


def _distance(route: Route) -> tuple[bool, int, int]:
    """The sort key of routes; the best one has the smallest."""
    num_additions = route.scales + len(route.zeros)
    return route.back is None, len(route.faults), num_additions


def find_route(converter: HuggingFaceConverter, model: PreTrainedModel) -> Route:
    """The route from `model` to the family of `converter`, with the fields that have no equivalent.

    Raises:
        ConversionError: if the family has no class with the head of `model`.
    """
    routes = [_route_to(converter, head, model) for head in converter.heads_for(type(model))]
    return min(routes, key=lambda route: len(route.faults))


def _route_to(converter: HuggingFaceConverter, head: str, model: PreTrainedModel) -> Route:
    route = Route(converter, head, copy.deepcopy(model.config))
    _fill_configs(route, type(model))
    if route.back is not None and _must_scale(route):
        route.scales = True
        for stack in stacks_of(route.ours).values():
            stack.scale_embeddings = False
            if hasattr(model, "lm_head"):
                # The scaled table no longer serves as the output matrix, which has no scale.
                stack.tie_word_embeddings = False
                route.ours.tie_word_embeddings = False
        _fill_configs(route, type(model))
    if route.back is not None:
        _compare(route, model)
    scales = {stack.scale_embeddings for stack in stacks_of(model.config).values()}
    if route.scales and len(scales) > 1 and model.config.share_embeddings:
        route.faults.append("one table of embeddings for two stacks, of which only one scales it")
    return route


def _must_scale(route: Route) -> bool:
    """Whether a stack of ours scales its embeddings and theirs does not."""
    backs = stacks_of(route.back)
    return any(
        stack.scale_embeddings and stack.vocab_size > 0 and not backs[prefix].scale_embeddings
        for prefix, stack in stacks_of(route.ours).items()
    )


def stacks_of(config: PreTrainedConfig) -> dict[str, RoFormerLiteConfig]:
    """The config of each stack, by the prefix of its fields in messages."""
    if config.is_encoder_decoder:
        return {"encoder.": config.encoder, "decoder.": config.decoder}
    return {"": config}


def _fill_configs(route: Route, model_class: type[PreTrainedModel]) -> None:
    """Fill in their config, and our config and model to which it is converted."""
    route.faults = []
    try:
        route.theirs = route.converter.their_config(route.ours, route.head)
        route.back = route.converter.our_config(_source_config(route))
        route.target = _without_memory(model_class, route.back)
    except (StrictDataclassError, ValueError, TypeError, ArithmeticError) as error:
        # Their classes and ours refuse some values, or cannot compute with them.
        route.back = None
        route.faults = [" ".join(str(error.__cause__ or error).split())]


def _source_config(route: Route) -> dict[str, Any]:
    fields = route.theirs.to_dict()
    fields["add_pooling_layer"] = getattr(route.ours, "add_pooling_layer", False)
    fields["architectures"] = [route.converter.class_name(route.head)]
    return fields


def _compare(route: Route, model: PreTrainedModel) -> None:
    """Fill in `faults`, and `zeros`, the tensors that bridge the other differences."""
    theirs = route.target.state_dict()
    for name in route.target.all_tied_weights_keys:
        theirs.pop(name, None)
    ours = _weights(route, model)
    route.zeros = sorted(theirs.keys() - ours.keys())
    unknown = sorted(ours.keys() - theirs.keys())
    unknown += [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]
    is_bridged = not unknown and all(map(_may_be_zero, route.zeros))
    for name, value, value_back in _differences(route, model):
        field_name = name.rpartition(".")[2]
        if not (is_bridged and field_name in BRIDGED_BY_ZEROS):
            route.faults.append(f"{name}={value!r} (must be {value_back!r})")
    if not route.faults and not is_bridged:
        route.faults.append(f"its tensors {', '.join(unknown or route.zeros)}")


def _without_memory(
    model_class: type[PreTrainedModel], config: PreTrainedConfig
) -> PreTrainedModel:
    """A model whose tensors have only shapes."""
    with torch.device("meta"), no_init_weights():
        return model_class(config)


def _may_be_zero(name: str) -> bool:
    return name.endswith(".bias") or "token_type_embeddings" in name


def _differences(route: Route, model: PreTrainedModel) -> Iterator[tuple[str, Any, Any]]:
    """The fields that have another value after the conversion back: name, our value, the other
    value."""
    if route.ours.is_encoder_decoder:
        for name in FIELDS_OF_PAIRS:
            value = getattr(route.ours, name)
            value_back = getattr(route.back, name)
            if value != value_back:
                yield name, value, value_back
    backs = stacks_of(route.back)
    for prefix, stack in stacks_of(route.ours).items():
        fields_back = fields_with_effect(backs[prefix], model)
        for name, value in fields_with_effect(stack, model).items():
            if value != fields_back[name]:
                yield prefix + name, value, fields_back[name]


def fields_with_effect(config: RoFormerLiteConfig, model: PreTrainedModel) -> dict[str, Any]:
    """The fields that determine what `model` computes, in a normal form, so that configurations of
    equal effect are equal."""
    ignored = _fields_of_other_heads(model)
    fields = {
        name: getattr(config, name)
        for name in config.__dataclass_fields__
        if name not in WITHOUT_EFFECT and name not in ignored
    }
    if not _has_dense_layer(config, model):
        fields["head_bias"] = True
    if config.norm_type != "layernorm":
        fields["norm_bias"] = False
    if not config.embedding_norm:
        fields["embedding_norm_eps"] = None
    elif config.embedding_norm_eps is None:
        fields["embedding_norm_eps"] = config.norm_eps
    if "sliding_attention" not in config.layer_types:
        fields["sliding_window"] = None
    if not _is_bound_to_length(config):
        fields["max_position_embeddings"] = None
    if not config.vocab_size:
        fields["scale_embeddings"] = False
    if config.add_cross_attention and config.cross_attention_hidden_size is None:
        fields["cross_attention_hidden_size"] = config.hidden_size
    return fields


def _fields_of_other_heads(model: PreTrainedModel) -> set[str]:
    """The fields that the class of `model` does not read."""
    head = type(model).__name__.removeprefix(OUR_PREFIX)
    fields: set[str] = set()
    if not hasattr(model, "lm_head"):
        fields |= FIELDS_OF_LANGUAGE_MODELS
    if not hasattr(model, "classifier"):
        fields |= FIELDS_OF_CLASSIFIERS
    if head not in POOLING_HEADS:
        fields.add("classifier_pooling")
    if head != "Model":
        fields.add("add_pooling_layer")
    return fields


def _has_dense_layer(config: RoFormerLiteConfig, model: PreTrainedModel) -> bool:
    """Whether the head of `model` has a dense layer before its last one."""
    if hasattr(model, "classifier"):
        return config.classifier_activation is not None
    return hasattr(model, "lm_head") and config.lm_head_transform


def _is_bound_to_length(config: RoFormerLiteConfig) -> bool:
    """Whether `max_position_embeddings` has an effect on the outputs."""
    if config.position_embedding_type == "learned":
        return True
    rope = config.rope_parameters or {}
    return rope.get("rope_type", "default") != "default"


def _weights(route: Route, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Our tensors, without the copies of tied ones if the weights are tied in `route.ours`."""
    weights = dict(model.state_dict())
    if route.ours.tie_word_embeddings:
        for name in model.all_tied_weights_keys:
            weights.pop(name, None)
    return weights
