"""The error of everything that a user gives, and the checks that come before anything heavy is
imported."""

import difflib
import math
import operator
import os
from collections.abc import Collection, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# The Trainer and the search keep numbers for every row of a batch, also for an empty one.
MAX_BATCH_SIZE = 2**20
MAX_BEAMS = 1000  # Each has its own keys and values.
_HUB_TIMEOUT = 5.0  # In seconds.
# What people type who know other programs, and the options that may be meant.
_SYNONYMS = {
    "batch_size": ["per_device_train_batch_size"],
    "train_batch_size": ["per_device_train_batch_size"],
    "eval_batch_size": ["per_device_eval_batch_size", "batch_size"],
    "per_device_eval_batch_size": ["batch_size"],
    "lr": ["learning_rate"],
    "epochs": ["num_train_epochs"],
    "num_epochs": ["num_train_epochs"],
    "steps": ["max_steps"],
    "patience": ["early_stopping_patience"],
    "data": ["train_file", "test_file", "input_file"],
    "dataset": ["dataset_name", "train_file"],
    "model": ["model_name_or_path"],
    "input": ["input_file"],
    "output": ["output_dir", "output_file"],
    "num_beams": ["beams"],
    "temp": ["temperature"],
}


class InputError(ValueError):
    """What the user gave cannot be used; the message says what, where and what would be right."""


def did_you_mean(name: str, known: Collection[str], prefix: str = "") -> str:
    """The end of a message about an unknown name; empty if no known name is similar.

    Args:
        name: As it was typed.
        known: The names that there are.
        prefix: What is typed before a name, such as `--`.
    """
    name = name.replace("-", "_")
    meant = [synonym for synonym in _SYNONYMS.get(name, []) if synonym in known]
    meant += difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    return f"; did you mean {prefix}{meant[0]}?" if meant else ""


def check_number(
    option: str,
    value: float | None,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> None:
    """Refuse a number outside its limits, and one that is not finite. None, an option that was not
    given, is always right.

    Raises:
        InputError: naming option, value and limits.
    """
    if value is None:
        return
    bounds = [
        ("at least", at_least, operator.ge),
        ("above", above, operator.gt),
        ("at most", at_most, operator.le),
        ("below", below, operator.lt),
    ]
    given = [bound for bound in bounds if bound[1] is not None]
    limits = [f"{name} {limit}" for name, limit, _ in given]
    is_right = all(holds(value, limit) for _, limit, holds in given)
    # A whole number may be too large for a test of finiteness.
    if isinstance(value, float) and not math.isfinite(value):
        limits.insert(0, "finite")
        is_right = False
    if not is_right:
        raise InputError(f"--{option}={value} must be {' and '.join(limits)}")


def check_file(option: str, path: str, may_be_pipe: bool = False) -> None:
    """Refuse what is no file; whether it can be read shows when it is opened.

    Args:
        option: The option that named it.
        path: The file.
        may_be_pipe: Whether it is read only once, so that a pipe will do, as of the shell's
            `<(...)`. Data to learn from or to measure on are read again where a training continues,
            and a pipe that nobody writes to never ends.

    Raises:
        InputError: naming option, path and reason.
    """
    if not os.path.exists(path):
        raise InputError(f"--{option} {path}: No such file or directory")
    if os.path.isdir(path):
        raise InputError(f"--{option} {path}: Is a directory; give the name of a file")
    if not may_be_pipe and not os.path.isfile(path):
        raise InputError(
            f"--{option} {path}: is a pipe or a device, and no file; write its text into a file and give that"
        )


def check_directory(name: str | Path, given: str = "") -> None:
    """Refuse what is no directory.

    Args:
        name: What the user typed.
        given: How an error begins. Default: with the name.

    Raises:
        InputError: naming a directory of a similar name.
    """
    if os.path.isdir(name):
        return
    given = given or str(name)
    if os.path.exists(name):
        raise InputError(f"{given}: is a file; the directory of a model is needed")
    raise InputError(f"{given}: there is no such directory{_similar(Path(name))}")


def is_hub_name(name: str | Path) -> bool:
    """Whether a name, which is no directory, can be one on the Hub: `name` or `owner/name`, with no
    directory `owner` here."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    name = str(name)
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    parent = os.path.dirname(name)
    return not os.path.exists(name) and not (parent and os.path.isdir(parent))


def check_model_name(name: str | Path, given: str = "") -> None:
    """Refuse what is neither a directory nor a repository that the Hub, or the cache of its files,
    has. A name that can only be a path is never looked up.

    Args:
        name: What the user typed.
        given: How an error begins. Default: with the name.

    Raises:
        InputError: saying what is known.
    """
    if os.path.isdir(name):
        return
    if not is_hub_name(name):
        check_directory(name, given)
    refusal = _refusal_of_hub(str(name))
    if refusal:
        raise InputError(
            f"{given or name}: there is no such directory here{_similar(Path(name))}, and {refusal}"
        )


@cache
def _refusal_of_hub(name: str) -> str:
    """Why no repository can be loaded, after one attempt (transformers itself would try for half a
    minute); empty where the Hub or the cache has it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import (
        EntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=_HUB_TIMEOUT)
    except EntryNotFoundError:
        return ""  # The error of loading it says what the repository lacks.
    except RepositoryNotFoundError:
        return "the Hub has no repository of this name that is open to you"
    # The errors are those of the HTTP library, which differs between versions of huggingface_hub.
    except Exception as error:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return ""
        if isinstance(error, OfflineModeIsEnabled):
            return "the Hub was not asked, as HF_HUB_OFFLINE is set"
        return f"the Hub can't be reached: {' '.join(str(error).split()) or type(error).__name__}"
    return ""


def _similar(path: Path) -> str:
    """The directory that was probably meant, as the end of a sentence."""
    try:
        siblings = [sibling.name for sibling in path.parent.iterdir() if sibling.is_dir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, siblings, n=1, cutoff=0.75)
    return f" (did you mean {path.with_name(close[0])}?)" if close else ""


# Those of the extra `train`, some of which are needed only when the training is over.
TRAINING_PACKAGES = dict.fromkeys(
    "accelerate datasets jinja2 matplotlib pycrfsuite rich sacrebleu scipy sklearn seqeval".split(),
    "train",
)


def require_packages(doing: str, packages: Mapping[str, str]) -> None:
    """Refuse to begin what needs packages that are not installed.

    Args:
        doing: What needs them, for the message.
        packages: Their names, and the extra that has each.

    Raises:
        InputError: naming the packages that are missing.
    """
    missing = {name: extra for name, extra in packages.items() if find_spec(name) is None}
    if missing:
        extras = ",".join(dict.fromkeys(missing.values()))
        raise InputError(
            f'{doing} needs {", ".join(missing)}; install them with pip install "hf_roformer_lite[{extras}]"'
        )
