"""Checks of `rope_parameters` that transformers accepts, or only warns about."""

from typing import Any

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")


def check_rope_parameters(parameters: dict[str, Any], head_dim: int) -> None:
    """Reject an unknown type, and values of the wrong kind or range. transformers itself rejects
    missing parameters.

    Args:
        head_dim: The number of channels of a head, some or all of which are rotated in pairs.

    Raises:
        ValueError: naming the parameter and its value.
    """
    share = parameters.get("partial_rotary_factor", 1.0)
    rotary_dim = int(head_dim * share) if is_number(share) else 0
    # `type` is the older name of `rope_type`, which transformers keeps and does not read.
    checked = {"rope_type": None, **parameters}
    checked.pop("type", None)
    for name, value in checked.items():
        is_right, what = check_value(name, value, num_pairs=rotary_dim // 2)
        if not is_right:
            raise ValueError(f"rope_parameters has {name}={value!r}; it must be {what}.")
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise ValueError(
            f"{head_dim=} with partial_rotary_factor={share} rotates {rotary_dim} channels; "
            "this must be an even number, and at most head_dim."
        )


def check_value(name: str, value: Any, num_pairs: int) -> tuple[bool, str]:
    """Whether a parameter may have this value, and a description of the valid values.

    Args:
        num_pairs: The number of pairs of rotated channels, each of which needs a factor.
    """
    is_positive = is_number(value) and value > 0
    if name == "rope_type":
        return value in ROPE_TYPES, f"one of {', '.join(ROPE_TYPES)}"
    if name == "rope_theta":
        return is_positive and value > 1, "a number above 1"
    if name == "truncate":
        return isinstance(value, bool), "True or False"
    if name in ("short_factor", "long_factor"):
        is_list = isinstance(value, list) and len(value) == num_pairs
        are_positive = is_list and all(is_number(factor) and factor > 0 for factor in value)
        return are_positive, f"{num_pairs} numbers above 0"
    # Transformers computes these where their value is None.
    if name in ("mscale", "mscale_all_dim"):
        return value is None or is_number(value), "a number from 0 on"
    if name in ("attention_factor", "beta_fast", "beta_slow"):
        return value is None or is_positive, "a number above 0"
    return is_positive, "a number above 0"


def is_number(value: Any) -> bool:
    """Whether `value` is a number from 0 to 1e15, and not True or False."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < 1e15
