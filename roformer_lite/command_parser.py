"""Parses the options of every command: transformers' `HfArgumentParser` on plain dataclasses."""

import argparse
import copy
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from transformers.hf_argparser import HfArgumentParser, string_to_bool

from .errors import InputError, did_you_mean

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


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows one spelling of each option, and only defaults that have a value."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        action = copy.copy(action)
        action.option_strings = action.option_strings[:1]
        return super()._format_action_invocation(action)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, [], ""):
            return action.help
        return super()._get_help_string(action)


class Value(str):
    """A word of the command line that is the value of an option, even if it begins with hyphens."""


class CommandParser(HfArgumentParser):
    """The parser of one command.

    Args:
        command: The name of the command, as it is typed after `roformer-lite`.
        description: The text that `--help` shows before the options.
        options: Dataclasses. Every field is an option, whose help text is in the docstring.
        **positionals: The help texts of the positional arguments by their names in capitals, for
            example `DIR="the model's directory"`.
    """

    def __init__(
        self, command: str, description: str, options: Iterable[type] = (), **positionals: str
    ):
        prog = f"roformer-lite {command}"
        super().__init__(
            dataclass_types=list(options),
            prog=prog,
            usage=" ".join([prog, *positionals, "[--OPTION VALUE ...]"]),
            description=description,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        texts: dict[str, str] = {}
        for kind in self.dataclass_types:
            texts |= help_texts(kind)
        for action in self._actions:
            action.help = action.help or texts.get(action.dest)
            if action.type is string_to_bool:
                # Every yes-or-no option may be given without a value.
                action.nargs = "?"
                action.const = True
            if action.option_strings and action.option_strings[0].startswith("--no_"):
                # HfArgumentParser adds these options, which negate others.
                action.help = argparse.SUPPRESS
        for name, text in positionals.items():
            self.add_argument(name.lower(), metavar=name, help=text)

    @property
    def names(self) -> list[str]:
        """The names of all options, without the two hyphens."""
        return [action.option_strings[0][2:] for action in self._actions if action.option_strings]

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Objects of the dataclasses, followed by a namespace of the other arguments if the command
        has any.

        Raises:
            InputError: for an unknown option, and if the dataclasses refuse a value.
        """
        _, unknown = self.parse_known_args(list(argv))
        if unknown:
            raise InputError(self.unknown_message(unknown[0]))
        return self.parse_args_into_dataclasses(args=list(argv), look_for_args_file=False)

    def _parse_optional(self, arg_string: str) -> Any:
        """Tell argparse whether a word is an option. All options except `-h` begin with two
        hyphens, so a column may be called `-x`."""
        is_value = isinstance(arg_string, Value) or not arg_string.startswith("--")
        if is_value and arg_string != "-h":
            return None
        return super()._parse_optional(arg_string)

    def unknown_message(self, word: str) -> str:
        """The message about a word that is not an option."""
        if not word.startswith("--"):
            return f"unexpected argument {word}; `{self.prog} --help` lists the options"
        name = word[2:].partition("=")[0]
        hint = did_you_mean(name, self.names, prefix="--")
        if not hint:
            hint = f"; `{self.prog} --help` lists them"
        return f"there is no option --{name}{hint}"

    def error(self, message: str) -> NoReturn:
        """Report a mistake that argparse has found in the same way as all other mistakes."""
        raise InputError(f"{message}; `{self.prog} --help` lists the options")
