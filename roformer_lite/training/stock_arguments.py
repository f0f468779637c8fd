"""The fields of transformers' `TrainingArguments`, read from the source text of the installed transformers.

Importing the class loads torch and, where they are installed, peft and torchao, which takes seconds. A parser that
answers `--help` and misspelled options needs only the declarations of the fields, and this module reads those. Options
without a mistake are then parsed again, into the class itself.
"""

import ast
import builtins
import dataclasses
import typing
from collections.abc import Container
from copy import copy
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .stock_limits import check_stock_values

_GROUP = "transformers' TrainingArguments"
_MODULES = {
    "TrainingArguments": "transformers.training_args",
    "Seq2SeqTrainingArguments": "transformers.training_args_seq2seq",
}
COMPUTED_DEFAULT = "computed by transformers"
_COMPUTED = object()


def stock_arguments(name: str, leave_out: Container[str]) -> type:
    """A dataclass with the fields of `TrainingArguments` or `Seq2SeqTrainingArguments`, except those in `leave_out`.

    Names, types, defaults and help texts are those of the class, with two exceptions: a default that is no literal is
    `COMPUTED_DEFAULT`, and a type that is a class of transformers is `str`. If the source cannot be read in this way,
    the fields are taken from the class.
    """
    try:
        fields = _class_fields(_MODULES[name], name)
    except Exception:  # whatever a source in another form may cause; the class is slower, but always right
        import transformers

        hints = typing.get_type_hints(getattr(transformers, name))
        real = dataclasses.fields(getattr(transformers, name))
        fields = {field.name: (hints[field.name], copy(field)) for field in real}
    chosen = [(field, kind, default) for field, (kind, default) in fields.items() if field not in leave_out]
    namespace = {"_argument_group_name": _GROUP, "__post_init__": check_stock_values}
    return dataclasses.make_dataclass(name, chosen, namespace=namespace)


def _class_fields(module: str, name: str) -> dict[str, tuple[Any, Any]]:
    """Type and default of each field of a dataclass and of its bases, without importing their modules."""
    source = _Source(module)
    fields: dict[str, tuple[Any, Any]] = {}
    for base in source.classes[name].bases:
        fields |= _class_fields(source.imports[base.id], base.id)
    for statement in source.classes[name].body:
        if isinstance(statement, ast.AnnAssign):
            fields[statement.target.id] = source.type_of(statement.annotation), _field(statement.value)
    return fields


class _Source:
    """The source text of one module of transformers: its classes, and where its other names come from."""

    def __init__(self, module: str):
        tree = ast.parse(Path(find_spec(module).origin).read_text("utf-8"))
        package = module.rpartition(".")[0]
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.imports = {
            alias.name: f"{package}.{node.module}"
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.level == 1
            for alias in node.names
        }

    def type_of(self, node: ast.expr) -> Any:
        """The type that an annotation means, with `str` for classes of transformers other than enumerations."""
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        known = {**vars(typing), **vars(builtins)}
        values = {name: known.get(name) or self._enumeration(name) for name in names}
        return eval(compile(ast.Expression(node), "<annotation>", "eval"), values)

    def _enumeration(self, name: str) -> type:
        source = _Source(self.imports[name]) if name in self.imports else self
        declaration = source.classes.get(name)
        if declaration is None or "ExplicitEnum" not in map(ast.unparse, declaration.bases):
            return str
        members = [node for node in declaration.body if isinstance(node, ast.Assign)]
        return Enum(name, {member.targets[0].id: ast.literal_eval(member.value) for member in members}, type=str)


def _field(node: ast.Call) -> dataclasses.Field:
    """The field that a call of `dataclasses.field` declares. Metadata that are no literals are left out."""
    parts = {keyword.arg: keyword.value for keyword in node.keywords}
    metadata = parts["metadata"]
    literals = {
        ast.literal_eval(key): _literal(value) for key, value in zip(metadata.keys, metadata.values, strict=True)
    }
    known = {key: value for key, value in literals.items() if value is not _COMPUTED}
    if "default_factory" in parts:
        return dataclasses.field(default_factory=getattr(builtins, parts["default_factory"].id), metadata=known)
    default = _literal(parts["default"])
    return dataclasses.field(default=COMPUTED_DEFAULT if default is _COMPUTED else default, metadata=known)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _COMPUTED
