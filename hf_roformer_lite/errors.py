"""The error of everything that a user gives to the commands and to conversion."""

import math


class InputError(ValueError):
    """What the user gave cannot be used; the message says what, where and what would be right."""


def check_number(
    option: str,
    value: float | None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse a number outside its limits, and one that is infinite or no number at all. None, an option that was not
    given, is always right.

    Raises:
        InputError: naming option, value and limits.
    """
    if value is None:
        return
    limits = {
        "finite": math.isfinite(value),
        f"at least {at_least}": at_least is None or value >= at_least,
        f"above {above}": above is None or value > above,
        f"at most {at_most}": at_most is None or value <= at_most,
        f"below {below}": below is None or value < below,
    }
    if not all(limits.values()):
        given = [text for text in limits if not text.endswith("None") and (text != "finite" or not limits["finite"])]
        raise InputError(f"--{option}={value} must be {' and '.join(given)}")
