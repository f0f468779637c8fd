"""The options of `predict` as fields of the page."""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import gradio
from gradio.components import Component

from ..commands.predict import AnsweringArguments
from ..errors import InputError, check_number

# What a visitor may ask of somebody else's machine; `predict` has higher limits.
_MOST = {"max_new_tokens": 1024, "beams": 16}
_TASKS = re.compile(r"(?:^|(?<=\. ))([a-z0-9]+(?:, [a-z0-9]+)*): ")  # stand before what an option does for them
_KINDS = get_type_hints(AnsweringArguments)


def option_fields(task: str, names: Sequence[str]) -> list[Component]:
    """A field for each option, empty until somebody fills it in, in the order of `names`.

    Numbers are written as text, because Gradio shows an empty field for numbers as 0.

    Args:
        task: Of the model, which decides what is said about an option.
        names: Of options of `predict`.
    """
    helps = {option.name: option.metadata["help"] for option in fields(AnsweringArguments)}
    made: list[Component] = []
    for name in names:
        about = {"label": name, "info": _about(helps[name], task)}
        made.append(gradio.Checkbox(**about) if _KINDS[name] is bool else gradio.Textbox(max_lines=1, **about))
    return made


def given_options(names: Sequence[str], values: Sequence[str | bool | None]) -> dict[str, Any]:
    """The options that are filled in, by their names. A browser that has not drawn a field yet sends None.

    Raises:
        InputError: when one is no number, or more than the page allows.
    """
    filled = {name: value for name, value in zip(names, values, strict=True) if value}
    given = {name: _value(name, value) for name, value in filled.items()}
    for name, most in _MOST.items():
        check_number(name, given.get(name), at_most=most)
    return given


def _value(name: str, text: str | bool) -> Any:
    if isinstance(text, bool):
        return text
    kind = next(kind for kind in get_args(_KINDS[name]) if kind is not type(None))
    try:
        return kind(text)
    except ValueError as error:
        raise InputError(f"--{name}={text} must be a {'whole ' if kind is int else ''}number") from error


def _about(help_text: str, task: str) -> str:
    """The part of an option's help that is about one task."""
    _, *parts = _TASKS.split(help_text)
    return " ".join(
        text.strip() for tasks, text in zip(parts[::2], parts[1::2], strict=True) if task in tasks.split(", ")
    )
