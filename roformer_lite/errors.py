"""`InputError`, which is raised for all invalid input, and the checks that run before anything
heavy is imported."""

import difflib
import math
import os
from collections.abc import Collection, Iterable
from importlib.util import find_spec


class InputError(ValueError):
    """Raised for invalid input. The message names the input, the place and the remedy."""


def did_you_mean(name: str, known: Collection[str], prefix: str = "") -> str:
    """A suggestion to append to a message about an unknown name; empty if no known name is similar.

    Args:
        name: The name that the user typed.
        known: The valid names.
        prefix: Text before a name, such as `--`.
    """
    by_lower_case = {each.lower(): each for each in known}
    name = name.lower().replace("-", "_")
    close = difflib.get_close_matches(name, by_lower_case, n=1, cutoff=0.7)
    if not close:
        return ""
    meant = by_lower_case[close[0]]
    # Characters that cannot be seen are shown as escape sequences.
    shown = meant if meant.isprintable() else repr(meant)
    return f"; did you mean {prefix}{shown}?"


def check_number(
    option: str,
    value: float | None,
    minimum: float = -math.inf,
    above: float = -math.inf,
    maximum: float = math.inf,
    below: float = math.inf,
) -> None:
    """Reject a number that is outside its limits or not finite. None stands for an option that was
    not given, and is accepted.

    Raises:
        InputError: with the option, the value and the limits.
    """
    if value is None or (minimum <= value <= maximum and above < value < below):
        return
    named = {"at least": minimum, "above": above, "at most": maximum, "below": below}
    limits = [f"{name} {limit}" for name, limit in named.items() if math.isfinite(limit)]
    raise InputError(f"--{option}={value} must be finite, {' and '.join(limits)}")


def check_file(option: str, path: str, may_be_pipe: bool = False) -> None:
    """Reject a path that is not a file. Whether it is readable is only known when it is opened.

    Args:
        option: The option that was given.
        path: Its value.
        may_be_pipe: Whether a pipe, such as `<(...)` of the shell, is accepted, because the file is
            read only once. Training and evaluation data are read again when a training continues,
            and reading a pipe without a writer never ends.

    Raises:
        InputError: with the option, the path and the reason.
    """
    is_pipe = os.path.exists(path) and not os.path.isdir(path)
    if not os.path.isfile(path) and not (may_be_pipe and is_pipe):
        raise InputError(
            f"--{option} {path}: there is no such file, and a directory, a pipe or a device cannot "
            "be read"
        )


# The packages of the extra `train`. Some of them are only needed at the end of a training.
TRAINING_PACKAGES = (
    "accelerate",
    "datasets",
    "jinja2",
    "matplotlib",
    "pandas",
    "pycrfsuite",
    "sacrebleu",
    "scipy",
    "sklearn",
    "seqeval",
)
# The names for `pip install`, if they are not those for `import`.
_NAMES_FOR_PIP = {
    "pycrfsuite": "python-crfsuite",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
}


def require_packages(doing: str, packages: Iterable[str]) -> None:
    """Raise an error if packages are missing.

    Args:
        doing: The activity that needs the packages, for the message.
        packages: The names of the packages, as they are imported.

    Raises:
        InputError: with the command that installs the missing packages.
    """
    missing = [_NAMES_FOR_PIP.get(name, name) for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{doing} needs packages that are not installed; install them with `pip install "
            f"{' '.join(missing)}`"
        )
