"""The values of options: read in the types of their fields, and as words of a command line."""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from inspect import formatannotation
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import InputError, did_you_mean

# The errors of `_typed` for a value that its type does not allow.
_UNREADABLE = (KeyError, TypeError, ValueError)


def typed_values(values: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The given values of options in the types of their fields. This is the only check of types,
    whether values come from the command line, from a YAML file or from Python.

    Args:
        values: A text, or a value of any type, by the name of its option. A single value can stand
            for a list, and texts such as `name=value` for a mapping. None and an empty list stand
            for the default, and are left out.
        hints: A basic type, a Literal, a list, a mapping, or a union of these, by the name of each
            option.

    Raises:
        InputError: for an option that does not exist, and for a value that its type does not allow.
    """
    found = {}
    for name, value in values.items():
        if name not in hints:
            raise unexpected(f"--{name}", hints)
        if value is None or (isinstance(value, list | tuple) and not value):
            continue
        try:
            found[name] = _typed(value, hints[name])
        except _UNREADABLE as error:
            needed = f"a value of the type {formatannotation(hints[name])} is needed"
            raise InputError(f"--{name} {value}: {needed}") from error
    return found


def unexpected(word: str, known: Collection[str]) -> InputError:
    """The error about a word of a command line that is not one of the `known` options."""
    name = word.lstrip("-").partition("=")[0]
    return InputError(f"unexpected argument {word}{did_you_mean(name, known, prefix='--')}")


def _typed(value: Any, hint: Any) -> Any:
    """The value in the type of a hint."""
    if get_origin(hint) in (Union, UnionType):
        if type(value) in get_args(hint):
            return value
        for kind in get_args(hint):
            with suppress(*_UNREADABLE):
                return _typed(value, kind)
    origin = get_origin(hint) or hint
    if origin is list:
        elements = value if isinstance(value, list | tuple) else [value]
        return [_typed(element, *get_args(hint)) for element in elements]
    if origin is dict:
        pairs = value if isinstance(value, Mapping) else map(assignment, _typed(value, list[str]))
        # `run.yaml` can hold what JSON can hold. A path or a date becomes text.
        return json.loads(json.dumps(dict(pairs), default=str))
    if origin in (bool, Literal):
        choices = {str(each).lower(): each for each in get_args(hint) or (True, False)}
        return choices[str(value).lower()]
    # A path or a device has a text, too, and that of a number with a fraction is no whole number.
    if hint in (int, float, str) and not isinstance(value, bool | list | tuple | Mapping | None):
        return hint(str(value))
    raise TypeError


def command_words(options: Mapping[str, Any]) -> list[str]:
    """Typed values by the names of their options, as words of a command line."""
    words = []
    for name, value in options.items():
        if isinstance(value, dict):
            value = [f"{key}={assigned_text(each)}" for key, each in value.items()]
        if isinstance(value, bool):
            value = json.dumps(value)
        texts = list(map(str, value)) if isinstance(value, list) else [str(value)]
        if len(texts) == 1 and texts[0].startswith("-"):
            # A word of its own would look like an option.
            words.append(f"--{name}={texts[0]}")
        else:
            words += [f"--{name}", *texts]
    return words


def assigned_text(value: Any) -> str:
    """The text that `assignment` reads as this value. Text such as 1.10 is quoted, so that it does
    not become a number."""
    return str(value) if assignment(f"={value}")[1] == value else json.dumps(value)


def assignment(text: str) -> tuple[str, Any]:
    """The name and the value of a text such as `name=value`, whose value is JSON or text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
