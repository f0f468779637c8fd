"""`rope_parameters` of our config in the words of other configs."""

from collections.abc import Sequence
from typing import Any

from hf_roformer_lite import RoFormerLiteConfig


def plain_rope(ours: RoFormerLiteConfig) -> dict[str, Any] | None:
    """The parameters for a config that has one set for all layers, without entries that say nothing; of several sets
    the first, which is then not the same."""
    return None if ours.rope_parameters is None else _short(next(iter(ours.rope_parameters_of_layers().values())))


def rope_by_layer_type(ours: RoFormerLiteConfig, kinds: Sequence[str]) -> dict[str, Any] | None:
    """The parameters for a config that has a set for each of `kinds`; those that no layer reads repeat the others."""
    if ours.rope_parameters is None:
        return None
    of_layers = ours.rope_parameters_of_layers()
    any_of_them = next(iter(of_layers.values()))
    return {kind: _short(of_layers.get(kind, any_of_them)) for kind in kinds}


def own_rope(parameters: dict[str, Any], layer_types: Sequence[str]) -> dict[str, Any]:
    """Parameters by the type of layer, of those types alone that a stack has."""
    return {kind: parameters[kind] for kind in parameters if kind in layer_types}


def _short(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if (name, value) != ("partial_rotary_factor", 1.0)}
