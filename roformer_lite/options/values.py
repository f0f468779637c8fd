"""Options as the words of a command line, into which the values of Python and of YAML files are
converted."""

import json
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any


def command_words(options: Mapping[str, Any]) -> list[str]:
    """Options by name as words of a command line. None and an empty list stand for the default."""
    words = []
    for name, value in options.items():
        texts = words_of(value)
        if len(texts) == 1 and texts[0].startswith("-"):
            # A word of its own would look like an option.
            words.append(f"--{name}={texts[0]}")
        elif texts:
            words += [f"--{name}", *texts]
    return words


def words_of(value: Any) -> list[str]:
    """A value as the words that are typed after its option."""
    if value is None:
        return []
    if isinstance(value, dict):
        return [f"{name}={assigned_text(each)}" for name, each in value.items()]
    if isinstance(value, list | tuple):
        return list(map(str, value))
    return [json.dumps(value) if isinstance(value, bool) else str(value)]


def assigned_text(value: Any) -> str:
    """The text that `assignment` reads as this value. Text such as 1.10 is quoted, so that it does
    not become a number; a path or a date becomes text."""
    text = json.dumps(value, default=str)
    read = json.loads(text)
    return str(read) if assignment(f"={read}")[1] == read else text


def boolean(text: str) -> bool:
    """The value of `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ArgumentTypeError(f"{text}: true or false is needed")
    return text.lower() == "true"


def assignment(text: str) -> tuple[str, Any]:
    """The name and the value of a text such as `name=value`, whose value is JSON or text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{text}: name=value is needed")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
