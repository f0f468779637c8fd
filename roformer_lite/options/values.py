"""Converts values to the types of options: words of a command line, and values of Python or of a YAML
file."""

import json
import types
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "t", "y", "1"), True),
    **dict.fromkeys(("false", "no", "f", "n", "0"), False),
}
_DESCRIPTIONS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a mapping of names to values",
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


def assignment_of(name: str, value: Any) -> str:
    """The form `name=value`, which `--config` and `--training_arguments` accept."""
    return f"{name}={value if isinstance(value, str) else json.dumps(value)}"


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
        if isinstance(value, dict):
            value = [assignment_of(*pair) for pair in value.items()]
        items = value if isinstance(value, list | tuple) else [value]
        return [converted(each, item) for each in items]
    if plain is dict:
        return dict(value)
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
