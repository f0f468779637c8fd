"""From a model of this package to a class of transformers: whether a family can say what our config
says, and how.

No family has a table for this way of its own. Their config is made of ours by the same table that
is read on the way in, and then read again: where the config that comes back differs from the one
that went, the family lacks a word. Few of these differences are bridged, all of them without any
change of what is computed: a bias or a segment that we do not have is one of zeros there, and the
scale of the embeddings can be a part of their table.
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
from transformers.utils import logging

from hf_roformer_lite import RoFormerLiteConfig

from .hugging_face import HuggingFaceConverter
from .weight_map import ConversionError

TABLE = "embeddings.word_embeddings.weight"
# Where we have less than they, zeros say the same.
_BRIDGED_BY_ZEROS = {
    "attention_bias",
    "mlp_bias",
    "norm_bias",
    "head_bias",
    "lm_head_bias",
    "type_vocab_size",
}
# What changes no number of a forward pass in evaluation.
_WITHOUT_EFFECT = {
    *PreTrainedConfig.__dataclass_fields__,
    *(
        "use_cache",
        "initializer_range",
        "skip_logits",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
    ),
    *("hidden_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout", "qkv_dropout"),
    *("hidden_dropout_places", "classifier_input_dropout"),
    *("classifier_text_counts", "classifier_token_bytes"),
}
_OF_CLASSIFIERS = {
    "classifier_activation",
    "classifier_norm",
    "classifier_text_features",
    "decode_tags",
}
_OF_POOLING = {"ForSequenceClassification", "ForMultipleChoice"}
_OF_LANGUAGE_MODELS = {"lm_head_transform", "lm_head_bias", "tie_word_embeddings"}


@dataclass
class Route:
    """How a model goes back to one family."""

    converter: HuggingFaceConverter
    head: str  # the name of theirs
    ours: PreTrainedConfig  # after the scale of the embeddings has gone into their table if it must
    theirs: PreTrainedConfig | None = None
    # what theirs is read as; None where theirs cannot be made at all
    back: PreTrainedConfig | None = None
    scales: bool = False  # whether the tables take the scale of the embeddings
    # fields of ours without an equivalent, as messages
    faults: list[str] = field(default_factory=list)
    zeros: list[str] = field(default_factory=list)  # tensors that they have and we do not


def carry_back(
    converter: HuggingFaceConverter, model: PreTrainedModel
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and config of their class for `model`.

    Raises:
        ConversionError: naming every field without an equivalent there.
    """
    route = find_route(converter, model)
    if route.faults:
        raise ConversionError(f"{converter.name} has no equivalent of {', '.join(route.faults)}")
    weights = _weights(route, model)
    for prefix, stack in stacks_of(model.config).items() if route.scales else ():
        for name in [
            name for name in weights if name.endswith(prefix + TABLE) and stack.scale_embeddings
        ]:
            weights[name] = weights[name] * math.sqrt(stack.embedding_size)
    with torch.device("meta"):
        shapes = {
            name: tensor.shape for name, tensor in type(model)(route.back).state_dict().items()
        }
    weights |= {name: torch.zeros(shapes[name], dtype=model.dtype) for name in route.zeros}
    converter.settle(route.theirs, weights)
    source_config = _source_config(route)
    state_dict = converter.weight_map(route.back, source_config).to_theirs(weights)
    prefix = converter.stack_prefixes(source_config)[0]
    computed = converter.computed_tensors(model, route.theirs)
    return state_dict | {
        prefix + name: tensor for name, tensor in computed.items()
    }, route.theirs.to_dict()


def fitting(
    converters: Iterable[HuggingFaceConverter], model: PreTrainedModel
) -> HuggingFaceConverter:
    """Of `converters` the one of a family with an equivalent of `model` that needs the fewest
    additions.

    Raises:
        ConversionError: when there is none, naming the nearest one and the fields in the way.
    """
    routes, level = [], logging.get_verbosity()
    # no warnings of ids that are outside the vocabulary of a family tried
    logging.set_verbosity_error()
    try:
        for converter in converters:
            with suppress(ConversionError):  # the family has no such head
                routes.append(find_route(converter, model))
    finally:
        logging.set_verbosity(level)
    if not routes:
        raise ConversionError(f"no family has an equivalent of {type(model).__name__}")
    best = min(
        routes,
        key=lambda route: (route.back is None, len(route.faults), route.scales + len(route.zeros)),
    )
    if best.faults:
        nearest = f"the nearest is {best.converter.name}, without {', '.join(best.faults)}"
        raise ConversionError(f"no family has an equivalent of this model; {nearest}")
    return best.converter


def find_route(converter: HuggingFaceConverter, model: PreTrainedModel) -> Route:
    """How `model` goes back to the family of `converter`, or what is in the way.

    Raises:
        ConversionError: when the family has no class with the head of `model`.
    """
    routes = [_route_to(converter, head, model) for head in converter.heads_for(type(model))]
    return min(routes, key=lambda route: len(route.faults))


def _route_to(converter: HuggingFaceConverter, head: str, model: PreTrainedModel) -> Route:
    route = Route(converter, head, copy.deepcopy(model.config))
    stacks = stacks_of(route.ours).values()
    _ask(route)
    if route.back is not None:
        pairs = zip(stacks, stacks_of(route.back).values(), strict=True)
        route.scales = any(
            one.scale_embeddings and one.vocab_size and not back.scale_embeddings
            for one, back in pairs
        )
    if route.scales:
        for stack in stacks:
            stack.scale_embeddings = False
        for config in (route.ours, *stacks) if hasattr(model, "lm_head") else ():
            # what reads the states is not scaled with what embeds the tokens
            config.tie_word_embeddings = False
        _ask(route)
    if route.back is not None:
        _compare(route, model)
    return route


def stacks_of(config: PreTrainedConfig) -> dict[str, RoFormerLiteConfig]:
    """The config of each stack, by what stands before its fields in messages."""
    if config.is_encoder_decoder:
        return {"encoder.": config.encoder, "decoder.": config.decoder}
    return {"": config}


def _ask(route: Route) -> None:
    """Fill in their config, and what it is read as here."""
    route.faults = []
    try:
        route.theirs = route.converter.their_config(route.ours, route.head)
        route.back = route.converter.our_config(_source_config(route))
    # their classes and ours refuse values of their own
    except (StrictDataclassError, ValueError, TypeError) as error:
        route.back, route.faults = None, [" ".join(str(error.__cause__ or error).split())]


def _source_config(route: Route) -> dict[str, Any]:
    pooler = {"add_pooling_layer": getattr(route.ours, "add_pooling_layer", False)}
    return (
        route.theirs.to_dict()
        | pooler
        | {"architectures": [route.converter.class_name(route.head)]}
    )


def _compare(route: Route, model: PreTrainedModel) -> None:
    """Fill in `faults`, and the names of tensors of zeros that bridge the rest."""
    with torch.device("meta"):
        target = type(model)(route.back)
    tensors, given = target.state_dict(), _weights(route, model)
    wanted = tensors.keys() - set(target.all_tied_weights_keys)
    route.zeros, unknown = sorted(wanted - given.keys()), sorted(given.keys() - wanted)
    unknown += [
        name for name in given if name in wanted and given[name].shape != tensors[name].shape
    ]
    are_zeros = all(
        name.endswith(".bias") or "token_type_embeddings" in name for name in route.zeros
    )
    is_bridged = are_zeros and not unknown
    for prefix, name, ours, back in _differences(route, model):
        if not (is_bridged and name in _BRIDGED_BY_ZEROS):
            route.faults.append(f"{prefix}{name}={ours!r} (must be {back!r})")
    if not route.faults and not is_bridged:
        route.faults.append(f"its tensors {', '.join(unknown or route.zeros)}")


def _differences(route: Route, model: PreTrainedModel) -> Iterator[tuple[str, str, Any, Any]]:
    of_pair = ("share_embeddings", "tie_word_embeddings") if route.ours.is_encoder_decoder else ()
    ours, back = (
        {name: getattr(config, name) for name in of_pair} for config in (route.ours, route.back)
    )
    fields, backs = [("", ours, back)], stacks_of(route.back)
    for prefix, stack in stacks_of(route.ours).items():
        fields.append(
            (prefix, _fields_with_effect(stack, model), _fields_with_effect(backs[prefix], model))
        )
    for prefix, ours, back in fields:
        yield from (
            (prefix, name, value, back[name]) for name, value in ours.items() if value != back[name]
        )


def _fields_with_effect(config: RoFormerLiteConfig, model: PreTrainedModel) -> dict[str, Any]:
    """The fields that decide what `model` computes, each in one form for one meaning."""
    kind = type(model).__name__.removeprefix("RoFormerLite")
    is_language_model, is_classifier = hasattr(model, "lm_head"), hasattr(model, "classifier")
    without = _WITHOUT_EFFECT.union(
        () if is_language_model else _OF_LANGUAGE_MODELS,
        () if is_classifier else _OF_CLASSIFIERS,
        () if kind in _OF_POOLING else ("classifier_pooling",),
        () if kind == "Model" else ("add_pooling_layer",),
    )
    fields = {
        name: getattr(config, name) for name in config.__dataclass_fields__ if name not in without
    }
    has_dense = (
        is_classifier
        and config.classifier_activation
        or is_language_model
        and config.lm_head_transform
    )
    rope = config.rope_parameters or {}
    is_long = (
        config.position_embedding_type == "learned" or rope.get("rope_type", "default") != "default"
    )
    forms = {
        "tie_word_embeddings": config.tie_word_embeddings,
        "head_bias": config.head_bias if has_dense else True,
        "norm_bias": config.norm_bias and config.norm_type == "layernorm",
        "embedding_norm_eps": (config.embedding_norm_eps or config.norm_eps)
        if config.embedding_norm
        else None,
        "sliding_window": config.sliding_window
        if "sliding_attention" in config.layer_types
        else None,
        "max_position_embeddings": config.max_position_embeddings if is_long else None,
        "scale_embeddings": config.scale_embeddings and config.vocab_size > 0,
    }
    if config.add_cross_attention:
        forms["cross_attention_hidden_size"] = (
            config.cross_attention_hidden_size or config.hidden_size
        )
    return fields | {name: value for name, value in forms.items() if name in fields}


def _weights(route: Route, model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Our tensors without copies of tied ones, where tied means what `route.ours` says."""
    tied = set(model.all_tied_weights_keys) if route.ours.tie_word_embeddings else set()
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
