"""Converts values to the types of options: words of a command line, and values of Python or of a YAML
file."""

import json
import types
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import InputError

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}
_DESCRIPTIONS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "name=value",
}


def converted(value: Any, hint: Any) -> Any:
    """The same value with the type that a type hint names.

    A value of a YAML file may have the right type or be a text, because YAML reads `1e-3` as text.

    Args:
        value: A text, or any value of Python or of a YAML file except None.
        hint: The type hint of an option or of a field of transformers' `TrainingArguments`.

    Raises:
        ValueError: if this is impossible. The message says what is needed.
    """
    kinds = kinds_of(hint)
    # A value that has one of the types already keeps it.
    for kind in sorted(kinds, key=lambda kind: _plain(kind) is not type(value)):
        try:
            return _converted_to(kind, value)
        except (KeyError, TypeError, ValueError):
            continue
    surplus = ", not several" if isinstance(value, list | tuple | dict) else ""
    raise ValueError(f"{' or '.join(map(_description, kinds))} is needed{surplus}")


def assignments(given: Any) -> dict[str, Any]:
    """Values by name.

    Args:
        given: Texts such as `name=value`, whose values are JSON or text, or a mapping.

    Raises:
        InputError: for a text of another form.
    """
    if not isinstance(given, dict):
        texts = given if isinstance(given, list | tuple) else [given]
        pairs = [str(text).partition("=") for text in texts]
        if not all(equals for _, equals, _ in pairs):
            raise InputError(f"{shown_value(given)}: name=value is needed")
        given = {name: _json_or_text(value) for name, _, value in pairs}
    found = {str(name): value for name, value in given.items()}
    for name, value in found.items():
        if value is False and name.endswith("_strategy"):
            # In YAML, the `no` of `eval_strategy: no` means false.
            found[name] = "no"
    return found


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def words_of(value: Any) -> list[str]:
    """A value as the words that are typed on a command line after its option."""
    if isinstance(value, dict):
        return [
            f"{name}={each if isinstance(each, str) else json.dumps(each)}"
            for name, each in value.items()
        ]
    if isinstance(value, list):
        return list(map(str, value))
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def shown_value(value: Any) -> str:
    """A value as it is typed on a command line."""
    return " ".join(words_of(value))


def kinds_of(hint: Any) -> list[Any]:
    """The types of a type hint, without None, and without `str` if an enumeration has the texts."""
    is_union = get_origin(hint) in (Union, types.UnionType)
    kinds = [kind for kind in (get_args(hint) if is_union else (hint,)) if kind is not type(None)]
    if any(_is_enumeration(kind) for kind in kinds):
        kinds.remove(str)
    return kinds


def choices_of(kind: Any) -> list[Any]:
    """The values of a `Literal` or an enumeration; empty for other types."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [member.value for member in kind] if _is_enumeration(kind) else []


def _converted_to(kind: Any, value: Any) -> Any:
    plain = _plain(kind)
    if plain is list:
        (item,) = get_args(kind)
        items = value if isinstance(value, list | tuple) else [value]
        return [converted(each, item) for each in items]
    if plain is dict:
        return assignments(value)
    if isinstance(value, list | tuple | dict):
        raise ValueError("a single value is needed")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    choices = choices_of(kind)
    if choices:
        return {str(choice): choice for choice in choices}[text]
    if kind is bool:
        return _BOOLEANS[text.lower()]
    if kind not in (int, float, str):
        raise TypeError(f"there are no values of {kind} in a file")
    return kind(text)


def _plain(kind: Any) -> Any:
    """The type without its parameters: `list` for `list[str]`."""
    return get_origin(kind) or kind


def _is_enumeration(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _description(kind: Any) -> str:
    choices = choices_of(kind)
    if choices:
        return f"one of {', '.join(map(str, choices))}"
    if _plain(kind) is list:
        return " or ".join(map(_description, kinds_of(get_args(kind)[0])))
    return _DESCRIPTIONS.get(_plain(kind), getattr(kind, "__name__", str(kind)))
