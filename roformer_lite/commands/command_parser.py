"""How every command parses its options: dataclasses, by transformers' own `HfArgumentParser`."""

import difflib
from argparse import Action, ArgumentDefaultsHelpFormatter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, NoReturn

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool


class _HelpFormatter(ArgumentDefaultsHelpFormatter):
    """Shows every option in one spelling, and its default unless that is None or empty.

    These methods of argparse's formatters are not documented. Without them the help is longer, and no less right.
    """

    def _format_action_invocation(self, action: Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        values = self._format_args(action, self._get_default_metavar_for_optional(action))
        spellings = [option for option in action.option_strings if "-" not in option[2:]]
        return f"{spellings[-1]} {values}"  # an alias, such as --from, is the better name

    def _get_default_metavar_for_optional(self, action: Action) -> str:
        name = getattr(action.type, "__name__", "value")
        return {"str": "TEXT", "string_to_bool": "BOOL"}.get(name, name.upper())

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default in (None, [], "") else super()._get_help_string(action)


class CommandParser(HfArgumentParser):
    """The parser of one command.

    Args:
        command: The command's name, as it is typed after `roformer-lite`.
        description: What `--help` says before the options.
        options: Dataclasses, every field of which is an option. A dataclass with `_argument_group_name` is a group of
            the help.
        **positionals: Help of the positional arguments by their names in capitals, as `DIR="the model's directory"`.
    """

    def __init__(self, command: str, description: str, options: Iterable[type] = (), **positionals: str):
        prog = f"roformer-lite {command}"
        super().__init__(
            list(options),
            prog=prog,
            usage=" ".join([prog, *positionals, "[--OPTION VALUE ...]"]),
            description=description,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )
        for action in self._actions:
            if action.type is string_to_bool:
                action.nargs, action.const = "?", True  # a flag, also where the default is neither yes nor no
            if action.option_strings[:1] == [f"--no_{action.dest}"]:
                action.help, action.default = f"The same as --{action.dest} false.", None
        for name, text in positionals.items():
            self.add_argument(name.lower(), metavar=name, help=text)

    def parse(self, argv: Sequence[str]) -> tuple[Any, ...]:
        """Objects of the dataclasses, followed by a namespace of the positional arguments if the command has any.

        A mistake ends the process with a message and status 2, as in argparse.

        Raises:
            InputError: when the dataclasses refuse a value.
        """
        _, unknown = self.parse_known_args(list(argv))
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return self.parse_args_into_dataclasses(list(argv), look_for_args_file=False)

    def error(self, message: str) -> NoReturn:
        """End the process with `message`, without the usage that argparse would print before it."""
        self.exit(2, f"{self.prog}: error: {message}\n`{self.prog} --help` lists the options.\n")

    def _suggestion(self, unknown: list[str]) -> str:
        known = [f"--{field.name}" for options in self.dataclass_types for field in fields(options)]
        for argument in unknown:
            option = argument.partition("=")[0].replace("-", "_").replace("__", "--", 1)
            close = difflib.get_close_matches(option, known, n=2) if argument.startswith("--") else []
            if close:
                return f"; did you mean {' or '.join(close)}?"
        return ""
