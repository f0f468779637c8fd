"""Tables that say which tensor of a checkpoint becomes which tensor of our model.

"Theirs" are the names and tensors of the checkpoint, "ours" those of the model of this package, in whichever direction
they are converted. A table is data, one `WeightRule` per line. Every tensor on either side must be accounted for: it
is an error when no rule makes one of our tensors, when a rule needs a tensor that the checkpoint lacks, and when no
rule reads a tensor that the checkpoint has.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

import torch

from roformer_lite.errors import InputError

from .weight_operations import UNCHANGED, Operation

_MAX_LISTED = 6  # names in an error message


@dataclass(frozen=True)
class WeightRule:
    """Their names, our names, and the operation between them.

    `{i}` and `{j}` stand for numbers, `*` for the last part of a name (weight, bias …), all the same on both sides.
    One of their names with `{h}` stands for one tensor per head.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    operation: Operation = UNCHANGED

    @property
    def their_names(self) -> tuple[str, ...]:
        return self.theirs if isinstance(self.theirs, tuple) else (self.theirs,)

    @property
    def our_names(self) -> tuple[str, ...]:
        return self.ours if isinstance(self.ours, tuple) else (self.ours,)

    def prefixed(self, theirs: str, ours: str) -> "WeightRule":
        """The same rule for modules that stand inside others: `theirs` before all their names, `ours` before ours."""
        return WeightRule(
            tuple(theirs + name for name in self.their_names),
            tuple(ours + name for name in self.our_names),
            self.operation,
        )


@dataclass(frozen=True)
class ResolvedRule:
    """A rule for one set of tensors, with every placeholder replaced."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    operation: Operation


@dataclass
class WeightMap:
    """The complete table of a source.

    Args:
        rules: One line of the table each.
        ignored: Their names of tensors that the model does not need: tables that are computed here, copies of tied
            weights, heads that the requested model does not have.
        current_names: Regular expressions for parts of names that older checkpoints use, and what `rules` calls them.
        num_heads: Number of heads, for `{h}`.
    """

    rules: Sequence[WeightRule]
    ignored: Sequence[str] = ()
    current_names: Mapping[str, str] = field(default_factory=dict)
    num_heads: int = 0

    def resolve(self, our_names: Iterable[str]) -> list[ResolvedRule]:
        """The rules for a model whose tensors are called `our_names`, each of which is made exactly once.

        Raises:
            InputError: when a tensor of ours is made by no rule, or a tensor of either side stands in two rules.
        """
        resolved, made, read = [], set(), set()
        our_names = sorted(our_names)
        for rule in self.rules:
            pattern = _pattern(rule.our_names[0])
            for match in filter(None, map(pattern.fullmatch, our_names)):
                values = match.groupdict()
                theirs = tuple(name for part in rule.their_names for name in self._their_names(part, values))
                one = ResolvedRule(theirs, tuple(_fill(part, values) for part in rule.our_names), rule.operation)
                if not made.isdisjoint(one.ours) or not read.isdisjoint(one.theirs):
                    raise InputError(f"the table has {', '.join(one.theirs)} or {', '.join(one.ours)} twice")
                resolved.append(one)
                made.update(one.ours)
                read.update(one.theirs)
        missing = [name for name in our_names if name not in made]
        if missing:
            raise InputError(f"this source has nothing for {_listed(missing)} of the model")
        return resolved

    def _their_names(self, name: str, values: Mapping[str, str]) -> Iterator[str]:
        for head in range(self.num_heads) if "{h}" in name else ("",):
            yield _fill(name.replace("{h}", str(head)), values)

    def to_ours(
        self, state_dict: Mapping[str, torch.Tensor], our_shapes: Mapping[str, torch.Size]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Our names and tensors, one after the other.

        Args:
            state_dict: Tensors of the checkpoint; each is read once.
            our_shapes: Names and shapes of the model's tensors.

        Raises:
            InputError: for names that are missing or unknown, before any tensor is read; and for a tensor whose shape
                does not fit the config.
        """
        originals = {self.current_name(name): name for name in state_dict}
        if len(originals) < len(state_dict):
            twice = sorted(name for name in state_dict if originals[self.current_name(name)] != name)
            raise InputError(f"the checkpoint has {_listed(twice)} under an older and a newer name")
        rules = self.resolve(our_shapes)
        self._require_all_and_no_other(originals, {name for rule in rules for name in rule.theirs})
        dtypes = set()
        for rule in sorted(rules, key=lambda rule: not rule.theirs):  # constants last, in the dtype of all others
            theirs = [state_dict[originals[name]] for name in rule.theirs]
            dtypes |= {tensor.dtype for tensor in theirs}
            tensors = rule.operation.to_ours(theirs, len(rule.ours))
            if not theirs:
                tensors = [tensor.to(reduce(torch.promote_types, dtypes)) for tensor in tensors]
            for name, tensor in zip(rule.ours, tensors, strict=True):
                if tensor.shape != our_shapes[name]:
                    raise InputError(
                        f"{', '.join(rule.theirs)}: gives {name} the shape {tuple(tensor.shape)}, but the config "
                        f"says {tuple(our_shapes[name])}"
                    )
                yield name, _with_own_storage(tensor.contiguous())

    def _require_all_and_no_other(self, originals: Mapping[str, str], needed: set[str]) -> None:
        """An error unless the checkpoint has all tensors that are `needed` and no other; `originals` gives the name in
        the checkpoint for each current name."""
        missing = sorted(needed - originals.keys())
        unknown = [original for name, original in originals.items() if name not in needed and not self.ignores(name)]
        if missing or unknown:
            faults = [f"lacks {_listed(missing)}"] if missing else []
            faults += [f"has unknown {_listed(unknown)}"] if unknown else []
            raise InputError(
                f"the checkpoint {' and '.join(faults)}; is it a checkpoint of this source, and does its config match?"
            )

    def to_theirs(self, state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Their names and tensors, from ours."""
        theirs = {}
        for rule in self.resolve(state_dict):
            tensors = rule.operation.to_theirs([state_dict[name] for name in rule.ours], len(rule.theirs))
            copies = (tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors)
            theirs.update(zip(rule.theirs, copies, strict=True))
        return theirs

    def ignores(self, name: str) -> bool:
        """Whether the model does not need their tensor `name`."""
        return any(_pattern(ignored).fullmatch(name) for ignored in self.ignored)

    def current_name(self, name: str) -> str:
        """One of their names, perhaps an older one, as `rules` spells it."""
        for old, new in self.current_names.items():
            name = re.sub(rf"(?<=\.){old}(?=\.|$)", new, name)
        return name


def _with_own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor that may be a part of another's storage, on a storage that is this part, without a copy.

    `save_pretrained` copies all tensors that share a storage, and so would hold a model twice whose matrices were
    stored as one.
    """
    storage, start = tensor.untyped_storage(), tensor.storage_offset() * tensor.element_size()
    if storage.nbytes() == tensor.nbytes or tensor.is_meta:
        return tensor
    part = storage[start : start + tensor.nbytes]
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(part, 0, tensor.shape, tensor.stride())


def _pattern(name: str) -> re.Pattern:
    escaped = re.escape(name)
    for placeholder in ("i", "j"):
        escaped = escaped.replace(rf"\{{{placeholder}\}}", rf"(?P<{placeholder}>\d+)", 1)
        escaped = escaped.replace(rf"\{{{placeholder}\}}", rf"(?P={placeholder})")
    return re.compile(escaped.replace(r"\*", r"(?P<last>[^.]+)"))


def _fill(name: str, values: Mapping[str, str]) -> str:
    for placeholder in ("i", "j"):
        name = name.replace(f"{{{placeholder}}}", values.get(placeholder, ""))
    return name.replace("*", values.get("last", ""))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
