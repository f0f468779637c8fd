"""How every command parses its options: dataclasses, one option for each field. Nothing heavy is
imported for it."""

import argparse
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, Field, field, fields
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

_SWITCH = {"yes": True, "true": True, "t": True, "y": True, "1": True}
_SWITCH |= {"no": False, "false": False, "f": False, "n": False, "0": False}


def option(default: Any, help: str, *names: str) -> Any:
    """A field of a dataclass that is an option.

    Args:
        default: Its value where the option is not given.
        help: What `--help` says of it.
        names: How it is typed, where that is not `--` and the field's name.
    """
    return field(default=default, metadata={"help": help, "aliases": list(names)})


def switch(text: str) -> bool:
    """The value of a yes-or-no option.

    Raises:
        argparse.ArgumentTypeError: for any other word.
    """
    if text.lower() not in _SWITCH:
        raise argparse.ArgumentTypeError(
            f"{text!r}: yes or no is needed, also as true, false, 1 or 0"
        )
    return _SWITCH[text.lower()]


class CommandParser(argparse.ArgumentParser):
    """The parser of one command. An option may be typed with hyphens in place of its underscores.

    Args:
        command: The command's name, as it is typed after `roformer-lite`.
        description: What `--help` says before the options.
        options: Dataclasses, every field of which is an option, with `help` in its metadata,
            `aliases` where it is typed otherwise, and `adds_up` where the values of a list add up
            when it is given several times. A dataclass with `_argument_group_name` is a group of
            the help.
        **positionals: Help of the positional arguments by their names in capitals, as `DIR="the
            model's directory"`.
    """

    def __init__(
        self, command: str, description: str, options: Iterable[type] = (), **positionals: str
    ):
        prog = f"roformer-lite {command}"
        super().__init__(
            prog=prog,
            usage=" ".join([prog, *positionals, "[--OPTION VALUE ...]"]),
            description=description,
            allow_abbrev=False,
        )
        self.option_classes, self.positionals, self._names, self._source = (
            tuple(options),
            tuple(positionals),
            [],
            "",
        )
        for option_class in self.option_classes:
            title = getattr(option_class, "_argument_group_name", None)
            group, hints = (
                self.add_argument_group(title) if title else self,
                get_type_hints(option_class),
            )
            for each in fields(option_class):
                self._add_option(group, each, hints[each.name])
        for name, text in positionals.items():
            self.add_argument(name.lower(), metavar=name, help=text)

    def _add_option(self, group: Any, each: Field, hint: Any) -> None:
        settings, default = _settings_of(hint), each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        settings |= {"required": True} if default is MISSING else {"default": default}
        settings |= {"action": "extend"} if each.metadata.get("adds_up") else {}
        names = each.metadata.get("aliases") or [f"--{each.name}"]
        shown = (
            ""
            if default in (MISSING, None, [], "")
            else f" (default: {default})".replace("%", "%%")
        )
        group.add_argument(*names, dest=each.name, help=each.metadata["help"] + shown, **settings)
        self._names += names

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As in argparse; `--text-column` is `--text_column`."""
        args = [self._with_underscores(argument) for argument in args] if args is not None else None
        return super().parse_known_args(args, namespace)

    def parse(
        self, argv: Sequence[str], before: Sequence[str] = (), source: str | None = None
    ) -> tuple[Any, ...]:
        """Objects of the dataclasses, followed by a namespace of the positional arguments if the
        command has any.

        A mistake ends the process with a message and status 2, as in argparse.

        Args:
            argv: The options that were typed.
            before: Others, which these override.
            source: Where those come from, for messages.

        Raises:
            InputError: when the dataclasses refuse a value.
        """
        namespace = None
        for words, self._source in ((before, f"{source}: "), (argv, "")):
            if words or not self._source:
                namespace, unknown = self.parse_known_args(list(words), namespace)
                if unknown:
                    self.error(
                        f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}"
                    )
        values = vars(namespace)
        found = [
            option_class(**{each.name: values.pop(each.name) for each in fields(option_class)})
            for option_class in self.option_classes
        ]
        return (*found, namespace) if self.positionals else tuple(found)

    def error(self, message: str) -> NoReturn:
        """End the process with `message`, without the usage that argparse would print before it."""
        self.exit(
            2,
            f"{self.prog}: error: {self._source}{message}\n`{self.prog} --help` lists the options.\n",
        )

    def _with_underscores(self, argument: str) -> str:
        name, equals, value = argument.partition("=")
        known = f"--{name[2:].replace('-', '_')}"
        return (
            f"{known}{equals}{value}"
            if name.startswith("--") and known in self._names
            else argument
        )

    def _suggestion(self, unknown: list[str]) -> str:
        for argument in unknown:
            option = "--" + argument.partition("=")[0][2:].replace("-", "_")
            close = (
                difflib.get_close_matches(option, self._names, n=2)
                if argument.startswith("--")
                else []
            )
            if close:
                return f"; did you mean {' or '.join(close)}?"
        return ""


def _settings_of(hint: Any) -> dict[str, Any]:
    """What `add_argument` needs to know of a field's type, which may be one or None."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]
    (kind,) = [kind for kind in kinds if kind is not NoneType]
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if kind is bool:
        return {"type": switch, "nargs": "?", "const": True, "metavar": "BOOL"}
    is_list = get_origin(kind) is list
    kind = get_args(kind)[0] if is_list else kind
    name = "TEXT" if kind is str else getattr(kind, "__name__", "value").upper()
    return {"type": kind, "metavar": name, **({"nargs": "+"} if is_list else {})}
