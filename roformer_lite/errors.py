"""The error of everything that a user gives to the commands and to conversion, and what they all refuse."""

import math
import os

LARGEST_BATCH = 2**20  # rows; the Trainer and the search keep numbers for every place in a batch, also an empty one
MOST_BEAMS = 1000  # each with its own keys and values
_LARGEST = 2**31 - 1  # of whole numbers; the libraries below count with fewer digits than Python


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
    """Refuse a number outside its limits, and one that is infinite or no number at all. Without `at_most` a whole
    number is at most 2,147,483,647. None, an option that was not given, is always right.

    Raises:
        InputError: naming option, value and limits.
    """
    if value is None:
        return
    is_whole = isinstance(value, int)
    if is_whole and at_most is None and value > _LARGEST:
        at_most = _LARGEST
    limits = {
        "finite": is_whole or math.isfinite(value),
        f"at least {at_least}": at_least is None or value >= at_least,
        f"above {above}": above is None or value > above,
        f"at most {at_most}": at_most is None or value <= at_most,
        f"below {below}": below is None or value < below,
    }
    if not all(limits.values()):
        given = [text for text in limits if not text.endswith("None") and (text != "finite" or not limits["finite"])]
        raise InputError(f"--{option}={value} must be {' and '.join(given)}")


def check_file(option: str, path: str) -> None:
    """Refuse what is no file. Pipes and other special files are right; whether it can be read shows when it is opened.

    Raises:
        InputError: naming option, path and reason.
    """
    if not os.path.exists(path):
        raise InputError(f"--{option} {path}: No such file or directory")
    if os.path.isdir(path):
        raise InputError(f"--{option} {path}: Is a directory; give the name of a file")
