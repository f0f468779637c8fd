"""Packages that a command needs beside those that this package brings, looked for before anything is begun."""

from collections.abc import Mapping
from importlib.util import find_spec

from ..errors import InputError

# Those of the extra `train`, some of which are needed only when the training is over.
TRAINING_PACKAGES = dict.fromkeys(
    "accelerate datasets jinja2 matplotlib pyarrow pycrfsuite pyppmd rich sacrebleu scipy sklearn seqeval".split(),
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
