"""What the `rope_parameters` of a configuration may be. transformers only warns of most mistakes."""

from collections.abc import Sequence
from typing import Any

LAYER_TYPES = ("full_attention", "sliding_attention")

# What each RoPE scaling of transformers needs and may carry, besides rope_type, rope_theta and partial_rotary_factor.
_ROPE_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, {"original_max_position_embeddings"}),
    "yarn": (
        {"factor", "original_max_position_embeddings"},
        {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    ),
    "longrope": (
        {"short_factor", "long_factor", "original_max_position_embeddings"},
        {"factor", "attention_factor"},
    ),
    "llama3": ({"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}, set()),
}


# What each number must be above, and whether it may be that itself. None of them has a use beyond _LARGEST.
_LIMITS: dict[str, tuple[float, bool]] = {
    "rope_theta": (1, False),
    "partial_rotary_factor": (0, False),
    "factor": (1, True),
    "original_max_position_embeddings": (1, True),
    "attention_factor": (0, False),
    "beta_fast": (0, False),
    "beta_slow": (0, False),
    "mscale": (0, True),
    "mscale_all_dim": (0, True),
    "low_freq_factor": (0, False),
    "high_freq_factor": (0, False),
}
_LARGEST = 1e15
_ALWAYS_NUMBERS = ("rope_theta", "partial_rotary_factor")


def check_rope_numbers(parameters: dict[str, Any]) -> None:
    """Check the type and range of every single entry, before transformers computes with them.

    Raises:
        ValueError: naming the entry, its value and what would be right.
    """
    for key, (limit, may_be_equal) in _LIMITS.items():
        value = parameters.get(key)
        if value is None and not (key in _ALWAYS_NUMBERS and key in parameters):
            continue
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not limit <= value <= _LARGEST or (value == limit and not may_be_equal):
            bound = f"of at least {limit}" if may_be_equal else f"above {limit}"
            raise ValueError(f"rope_parameters has {key}={value!r}; it must be a number {bound}.")
    if not isinstance(parameters.get("truncate", True), bool):
        raise ValueError(f"rope_parameters has truncate={parameters['truncate']!r}; it must be True or False.")
    for key in ("short_factor", "long_factor"):
        values = parameters.get(key)
        if values is not None and not (isinstance(values, list | tuple) and all(map(_is_positive, values))):
            raise ValueError(f"rope_parameters has {key}={values!r}; it must be a list of positive numbers.")


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= _LARGEST


def is_by_layer_type(parameters: dict[str, Any] | None) -> bool:
    """Whether parameters are given for each type of layer apart."""
    return bool(parameters) and any(kind in parameters for kind in LAYER_TYPES)


def in_short_form(parameters: dict[str, Any], layer_types: Sequence[str]) -> dict[str, Any]:
    """`parameters`, without types of layers where they are alike for all layers that there are."""
    if not is_by_layer_type(parameters) or not layer_types or not set(layer_types) <= set(parameters):
        return parameters  # what is wrong is refused with all other mistakes
    first, *others = (parameters[kind] for kind in sorted(set(layer_types)))
    return first if all(own == first for own in others) and isinstance(first, dict) else parameters


def check_rope_parameters(parameters: dict[str, Any], head_dim: int, layer_types: Sequence[str]) -> None:
    """Check standardised parameters for heads of `head_dim` channels.

    Args:
        parameters: Of all layers, or by the type of layer.
        head_dim: Channels of a head.
        layer_types: The type of each layer.

    Raises:
        ValueError: as `_check_rotation`, and when a type of layer has no parameters of its own.
    """
    if not is_by_layer_type(parameters):
        _check_rotation(parameters, head_dim)
        return
    kinds, given = set(layer_types), {kind for kind, own in parameters.items() if isinstance(own, dict)}
    if given != kinds or len(parameters) != len(given):
        raise ValueError(
            f"rope_parameters={parameters} must be one dictionary for all layers, or one for each of their types, "
            f"{', '.join(sorted(kinds))}."
        )
    for own in parameters.values():
        _check_rotation(own, head_dim)


def _check_rotation(parameters: dict[str, Any], head_dim: int) -> None:
    """Check the parameters of layers that rotate alike.

    Raises:
        ValueError: for an unknown type, missing or unknown entries, impossible numbers, or an odd rotary width.
    """
    rope_type = parameters.get("rope_type")
    if not isinstance(rope_type, str) or rope_type not in _ROPE_KEYS:
        raise ValueError(f"rope_parameters has rope_type={rope_type!r}; it must be one of {', '.join(_ROPE_KEYS)}.")
    required, optional = _ROPE_KEYS[rope_type]
    present = {key for key, value in parameters.items() if value is not None}
    if missing := required - present:
        raise ValueError(f"rope_parameters={parameters} lacks {sorted(missing)}, which rope_type={rope_type} needs.")
    known = required | optional | {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
    if unknown := set(parameters) - known:
        raise ValueError(f"rope_parameters has {sorted(unknown)}, which rope_type={rope_type} does not know.")
    if rope_type == "llama3" and parameters["high_freq_factor"] <= parameters["low_freq_factor"]:
        raise ValueError(
            f"rope_parameters has high_freq_factor={parameters['high_freq_factor']}; it must be above low_freq_factor="
            f"{parameters['low_freq_factor']}."
        )
    rotary_dim = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"head_dim={head_dim} with partial_rotary_factor={parameters.get('partial_rotary_factor', 1.0)} "
            f"rotates {rotary_dim} channels; it must be an even number up to head_dim."
        )
    for key in ("short_factor", "long_factor"):
        if key in required and len(parameters[key]) != rotary_dim // 2:
            raise ValueError(f"rope_parameters has {len(parameters[key])} entries in {key}, not {rotary_dim // 2}.")
