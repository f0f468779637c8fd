"""Turns the options of every command into objects of plain dataclasses."""

import argparse
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from ..errors import InputError
from .values import typed_values, unexpected

# An entry of the section `Args` of a docstring, including its continuation lines.
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def help_texts(options: type) -> dict[str, str]:
    """The help texts of the fields of a dataclass: the section `Args` of its docstring and those of
    its base classes."""
    found: dict[str, str] = {}
    for base in reversed(options.__mro__):
        for name, text in _ARGUMENT.findall(inspect.getdoc(base) or ""):
            found[name] = " ".join(text.split())
    return found


class CommandParser(argparse.ArgumentParser):
    """The parser of one command.

    Args:
        command: The name of the command, as it is typed after `roformer-lite`.
        description: The text that `--help` shows before the options.
        options: Dataclasses. Every field is an option, whose help text is in the docstring.
        **positionals: The help texts of the positional arguments by their names in capitals, for
            example `DIR="the model's directory"`.

    Attributes:
        hints: The type hint of each option by its name.
    """

    def __init__(
        self,
        command: str,
        description: str,
        options: Sequence[Any] = (),
        **positionals: str,
    ):
        prog = f"roformer-lite {command}"
        usage = " ".join([prog, *positionals, "[--OPTION VALUE ...]"])
        super().__init__(prog=prog, usage=usage, description=description, allow_abbrev=False)
        self.options = options
        self.positionals = [name.lower() for name in positionals]
        self.hints: dict[str, Any] = {}
        for name, text in positionals.items():
            self.add_argument(name.lower(), metavar=name, help=text)
        for kind in options:
            self._add_options(kind)

    def _add_options(self, kind: type) -> None:
        title = getattr(kind, "group", None)
        group = self.add_argument_group(title) if title else self
        texts = help_texts(kind)
        hints = get_type_hints(kind)
        for option in fields(kind):
            name = option.name
            self.hints[name] = hints[name]
            text = texts[name]
            if option.default not in (None, "", MISSING):
                text += f" (default: {option.default})"
            group.add_argument(f"--{name}", help=text.replace("%", "%%"), **_form(hints[name]))

    def parse(self, words: Sequence[str], *others: Mapping[str, Any]) -> tuple[Any, ...]:
        """Objects of the dataclasses, followed by the positional arguments.

        Args:
            words: The words of the command line.
            *others: Further values by the names of their options. Later ones replace earlier ones,
                and the words replace all of them; mappings add to them.

        Raises:
            InputError: for an unknown option, and for a value that is not valid.
        """
        if any(re.fullmatch(r"--\w+=--", word) for word in words):
            self.error("an option cannot have the value --")  # argparse would leave it out.
        namespace, unknown = self.parse_known_args(words)
        texts = vars(namespace)
        positionals = [texts.pop(name) for name in self.positionals]
        values: dict[str, Any] = {}
        try:
            for word in unknown:
                raise unexpected(word, self.hints)
            for given in (*others, texts):
                for name, value in typed_values(given, self.hints).items():
                    if isinstance(value, dict):
                        value = values.get(name, {}) | value
                    values[name] = value
        except InputError as error:
            self.error(str(error))
        objects = []
        for kind in self.options:
            names = values.keys() & kind.__dataclass_fields__
            objects.append(kind(**{name: values[name] for name in names}))
        return (*objects, *positionals)

    def error(self, message: str) -> NoReturn:
        """Report a mistake that argparse has found in the same way as all other mistakes."""
        raise InputError(f"{message}; `{self.prog} --help` lists the options")


def _form(hint: Any) -> dict[str, Any]:
    """The arguments of argparse for an option with a type hint. Values remain texts."""
    kind = get_args(hint)[0] if NoneType in get_args(hint) else hint
    origin = get_origin(kind)
    if origin is Literal:
        return {"metavar": "|".join(get_args(kind))}
    if origin is list:
        return {"nargs": "+", "action": "extend"}
    if origin is dict:
        return {"nargs": "+", "action": "extend", "metavar": "NAME=VALUE"}
    if kind is bool:
        # Every yes-or-no option may be given without a value.
        return {"nargs": "?", "const": True, "metavar": "true|false"}
    return {}
