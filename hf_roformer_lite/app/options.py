"""The options of `predict` as fields of the page."""

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import get_args, get_type_hints

import gradio
from gradio.components import Component

from ..commands.predict import AnsweringArguments

# What a visitor may ask of somebody else's machine; `predict` has higher limits.
_MOST = {"max_new_tokens": 1024, "beams": 16}
_TASKS = re.compile(r"(?:^|(?<=\. ))([a-z0-9]+(?:, [a-z0-9]+)*): ")  # stand before what an option does for them


def option_fields(task: str, names: Sequence[str]) -> list[Component]:
    """A field for each option, empty until somebody fills it in, in the order of `names`.

    Args:
        task: Of the model, which decides what is said about an option.
        names: Of options of `predict`.
    """
    helps = {option.name: option.metadata["help"] for option in fields(AnsweringArguments)}
    kinds = get_type_hints(AnsweringArguments)
    made: list[Component] = []
    for name in names:
        about = {"label": name, "info": _about(helps[name], task)}
        if kinds[name] is bool:
            made.append(gradio.Checkbox(value=False, **about))
        else:
            precision = 0 if int in get_args(kinds[name]) else None
            made.append(gradio.Number(value=None, precision=precision, maximum=_MOST.get(name), **about))
    return made


def _about(help_text: str, task: str) -> str:
    """The part of an option's help that is about one task."""
    _, *parts = _TASKS.split(help_text)
    return " ".join(
        text.strip() for tasks, text in zip(parts[::2], parts[1::2], strict=True) if task in tasks.split(", ")
    )
