"""Parses the command line of every command into objects of plain dataclasses."""

import argparse
import inspect
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, NoReturn, get_type_hints

from ..errors import InputError, did_you_mean
from .values import choices_of, converted, kinds_of, shown_value

# The options of a command: the words of a command line, or values by name.
Given = Sequence[str] | Mapping[str, Any]
# An entry of the section `Args` of a docstring, including its continuation lines.
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
# What stands for the value in `--help`, by the end of the option's name or by its type. All other
# options have their own names there.
_METAVARS: dict[Any, str] = {"file": "FILE", "dir": "DIR", "column": "COLUMN", int: "N", float: "X"}


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
        options: Dataclasses. Every field is an option, whose help text is in the docstring. Its
            metadata may have `name`, the name of the option if it is not that of the field, `help`
            and `metavar`.
        example: The words of an example after the name of the command, for `--help`.
        usual: The options that `--help` shows; `--help-all` shows all. Default: all.
        epilog: The text that `--help` shows after the options.
        advice: A sentence for unknown options, if no similar option exists.
        **positionals: The help texts of the positional arguments by their names in capitals, for
            example `DIR="the model's directory"`.

    Attributes:
        hints: The type hint of each option by its name.
    """

    def __init__(
        self,
        command: str,
        description: str,
        options: Sequence[type] = (),
        example: str = "",
        usual: Collection[str] = (),
        epilog: str | None = None,
        advice: str = "",
        **positionals: str,
    ):
        prog = f"roformer-lite {command}"
        usage = " ".join([prog, *positionals, "[--OPTION VALUE ...]"])
        if example:
            usage += f"\nexample: {prog} {example}"
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            add_help=False,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        self.options = options
        self.usual = usual
        self.advice = advice
        self.positionals = [name.lower() for name in positionals]
        self.hints: dict[str, Any] = {}
        for name, text in positionals.items():
            self.add_argument(name.lower(), metavar=name, help=text)
        self.add_argument("-h", "--help", action="help", help="Show this text.")
        all_options = "Show all options." if usual else argparse.SUPPRESS
        self.add_argument("--help_all", action="help", help=all_options)
        for kind in options:
            self._add_options(kind)

    def _add_options(self, kind: type) -> None:
        title = getattr(kind, "group", None)
        group = self.add_argument_group(title) if title else self
        hints = get_type_hints(kind)
        texts = help_texts(kind)
        for option in fields(kind):
            name = option_name(option)
            self.hints[name] = hints[option.name]
            text = option.metadata.get("help") or texts[option.name]
            if option.default not in (None, "", MISSING):
                text += f" (default: {option.default})"
            if self.usual and name not in self.usual:
                text = argparse.SUPPRESS
            form = _form(name, hints[option.name])
            if "metavar" in option.metadata:
                form["metavar"] = option.metadata["metavar"]
            group.add_argument(f"--{name}", dest=option.name, help=text.replace("%", "%%"), **form)

    def parse(self, options: Given) -> tuple[Any, ...]:
        """Objects of the dataclasses, followed by the positional arguments.

        Raises:
            InputError: for an unknown option, and for a value that is not valid.
        """
        given = self.given(options)
        positionals = [given[name] for name in self.positionals]
        return (*self.objects(given), *positionals)

    def given(self, options: Given) -> dict[str, Any]:
        """The options by name. The words of a command line have no types yet, and a value of None
        counts as missing.

        Raises:
            InputError: for an unknown option, and for an option without a value.
        """
        if isinstance(options, Mapping):
            self.check_names(options)
            return {name: value for name, value in options.items() if value is not None}
        namespace, unknown = self.parse_known_args(list(map(_with_underscores, options)))
        if unknown:
            raise InputError(self.unknown_message(unknown[0]))
        return vars(namespace)

    def objects(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Objects of the dataclasses.

        Args:
            values: Words of a command line, and values of Python or of a YAML file, by the names of
                the fields. An option that is missing, None or an empty list has its default.

        Raises:
            InputError: for a value of another type, and if the dataclasses reject a value.
        """
        return tuple(typed_options(kind, values) for kind in self.options)

    def check_names(self, names: Iterable[str]) -> None:
        """Reject names that are neither options nor positional arguments.

        Raises:
            InputError: naming a similar option, if there is one.
        """
        for name in names:
            if name not in self.hints and name not in self.positionals:
                raise InputError(self.unknown_message(f"--{name}"))

    def unknown_message(self, word: str) -> str:
        """The message about a word that is not an option."""
        if not word.startswith("--"):
            return f"unexpected argument {word}; `{self.prog} --help` lists the options"
        name = word[2:].partition("=")[0]
        hint = did_you_mean(name, self.hints, prefix="--")
        if not hint:
            hint = f"; `{self.prog} --help` lists them{self.advice}"
        return f"there is no option --{name}{hint}"

    def error(self, message: str) -> NoReturn:
        """Report a mistake that argparse has found in the same way as all other mistakes."""
        raise InputError(f"{message}; `{self.prog} --help` lists the options")


def option_name(option: Field) -> str:
    """The name of the option that sets a field."""
    return option.metadata.get("name", option.name)


def _form(name: str, hint: Any) -> dict[str, Any]:
    """The arguments of argparse that say how many words an option has, and how `--help` shows
    them."""
    kind = kinds_of(hint)[0]
    choices = choices_of(kind)
    if choices:
        return {"metavar": f"{{{','.join(map(str, choices))}}}"}
    if kind is bool:
        # Every yes-or-no option may be given without a value.
        return {"nargs": "?", "const": True, "metavar": "true|false"}
    form: dict[str, Any] = {}
    ending = name.rpartition("_")[2]
    metavar = _METAVARS.get(ending) or _METAVARS.get(kind)
    if metavar:
        form["metavar"] = metavar
    origin = getattr(kind, "__origin__", None)
    if origin is list:
        form["nargs"] = "+"
    elif origin is dict:
        form |= {"nargs": "+", "action": "extend", "metavar": "NAME=VALUE"}
    return form


def typed_options(kind: type, values: Mapping[str, Any]) -> Any:
    """An object of a dataclass of options, as `CommandParser.objects` makes it."""
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for option in fields(kind):
        value = values.get(option.name)
        if value is None or value == []:
            continue
        try:
            found[option.name] = converted(value, hints[option.name])
        except ValueError as error:
            raise InputError(f"--{option_name(option)} {shown_value(value)}: {error}") from error
    return kind(**found)


def _with_underscores(word: str) -> str:
    """A word in whose option name hyphens stand for underscores."""
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"
