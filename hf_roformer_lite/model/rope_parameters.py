"""Rejects `rope_parameters` that transformers would accept without a warning."""

from typing import Any

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
# Transformers computes these where their value is None.
COMPUTED = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def check_rope_parameters(parameters: dict[str, Any], head_dim: int) -> None:
    """Reject an unknown type, and values that are not numbers above 0. Transformers itself rejects
    missing parameters, and warns about numbers that do not suit the type.

    Args:
        head_dim: The number of channels of a head, some or all of which are rotated in pairs.

    Raises:
        ValueError: naming the parameter and its value.
    """
    rope_type = parameters.get("rope_type")
    if rope_type not in ROPE_TYPES:
        raise ValueError(
            f"rope_parameters has {rope_type=}; it must be one of {', '.join(ROPE_TYPES)}."
        )
    for name, value in parameters.items():
        if not is_valid(name, value):
            raise ValueError(
                f"rope_parameters has {name}={value!r}; it must be a number above 0 (rope_theta: "
                "above 1; short_factor and long_factor: a list of numbers above 0; truncate: True "
                "or False)."
            )
    share = parameters.get("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * share)
    for name in ("short_factor", "long_factor"):
        if name in parameters and len(parameters[name]) != rotary_dim // 2:
            raise ValueError(f"rope_parameters has {name}; it must have {rotary_dim // 2} numbers.")
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"{head_dim=} with partial_rotary_factor={share} rotates {rotary_dim} channels; "
            "this must be an even number, and at most head_dim."
        )


def is_valid(name: str, value: Any) -> bool:
    """Whether a parameter may have this value."""
    # `type` is the older name of `rope_type`, which transformers keeps and does not read.
    if name in ("rope_type", "type") or (value is None and name in COMPUTED):
        return True
    if name == "truncate":
        return isinstance(value, bool)
    if name in ("short_factor", "long_factor"):
        return isinstance(value, list) and all(is_valid("factor", factor) for factor in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    lowest = 1 if name == "rope_theta" else 0
    return is_number and lowest < value < 1e15
