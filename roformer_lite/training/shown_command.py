"""The command as a public card may show it: neither secrets nor where files lie on a machine."""

import shlex
from collections.abc import Sequence
from pathlib import Path

_SECRETS = ("--hub_token", "--hub-token")


def shown_command(command: str, argv: Sequence[str]) -> str:
    """The command line without the token of the Hub, and with only the last part of absolute paths."""
    shown, is_secret = [], False
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name in _SECRETS and not is_secret:
            shown.append(name)
        elif not is_secret:
            is_option = equals and name.startswith("--")
            shown.append(f"{name}={_without_directory(value)}" if is_option else _without_directory(argument))
        is_secret = name in _SECRETS and not equals
    return shlex.join(["roformer-lite", *command.split(), *shown])


def _without_directory(argument: str) -> str:
    path = Path(argument)
    is_path = path.is_absolute() or argument.startswith("~")
    return path.name if is_path and path.name.strip() else argument
