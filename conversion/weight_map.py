"""Tables that define which tensor of a checkpoint becomes which tensor of our model, and how.

"Theirs" are the names and tensors of the checkpoint, "ours" those of the RoFormerLite model, in
both directions of a conversion. A table is data, one `WeightRule` per line. Every tensor on either
side must be accounted for: it is an error if no rule makes one of our tensors, if a rule needs a
tensor that the checkpoint lacks, or if no rule reads a tensor that the checkpoint has.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

import torch
from torch.nn import functional as F

from .checkpoint_files import ConversionError, LazyTensors, listed

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """The operation on the tensors of a rule.

    Args:
        to_ours: Makes ours from theirs when a checkpoint is converted; the second argument is the
            number of ours.
        to_theirs: Makes theirs from ours when a model is exported; the second argument is the
            number of theirs.
    """

    to_ours: Callable[[Tensors, int], Tensors]
    to_theirs: Callable[[Tensors, int], Tensors]


UNCHANGED = Operation(lambda theirs, count: theirs, lambda ours, count: ours)
# Several of their tensors are concatenated into one of ours, along the first dimension.
CONCATENATE = Operation(
    lambda theirs, count: [torch.cat(list(theirs))], lambda ours, count: ours[0].chunk(count)
)
# The same along a new first dimension.
STACK = Operation(
    lambda theirs, count: [torch.stack(list(theirs))], lambda ours, count: ours[0].unbind()
)
# One of their tensors, cut into equal parts along the first dimension, makes several of ours.
CHUNK = Operation(CONCATENATE.to_theirs, CONCATENATE.to_ours)
# Their tensors are equal: the first one is read, and an export writes it under every name.
DUPLICATES = Operation(lambda theirs, count: theirs[:1], lambda ours, count: [ours[0]] * count)
# Their matrix is stored as (in, out), ours as (out, in).
TRANSPOSE = Operation(lambda theirs, count: [theirs[0].T], lambda ours, count: [ours[0].T])
# Their vector is a matrix of one row.
ONE_ROW = Operation(
    lambda theirs, count: [theirs[0].squeeze(0)], lambda ours, count: [ours[0].unsqueeze(0)]
)


def _copies(ours: Tensors, count: int) -> Tensors:
    if not all(torch.equal(tensor, ours[0]) for tensor in ours):
        raise ConversionError(
            "layers that share their weights in the other system differ here, as after training"
        )
    return ours[:1]


def _no_way_back(ours: Tensors, count: int) -> Tensors:
    raise ConversionError("a table that was added to another cannot be separated from it again")


# One of their tensors serves several layers, each of which has a copy here.
REPEAT = Operation(lambda theirs, count: [theirs[0].clone() for _ in range(count)], _copies)
# The first row of their second table, which applies to every token, is added to every row of the
# first.
SUM_OF_ROWS = Operation(lambda theirs, count: [theirs[0] + theirs[1][:1]], _no_way_back)


def scale(factor: float) -> Operation:
    """Our tensor is theirs times `factor`."""
    return Operation(
        lambda theirs, count: [theirs[0] * factor], lambda ours, count: [ours[0] / factor]
    )


def constant(value: float, size: int) -> Operation:
    """Our tensor is a vector of `size` times `value`, which the checkpoint does not store."""

    def check(ours: Tensors, count: int) -> Tensors:
        if bool((ours[0] != value).any()):
            raise ConversionError(
                f"a vector that the other system does not have must be {value:g} in every entry"
            )
        return []

    return Operation(lambda theirs, count: [torch.full((size,), value, dtype=torch.float64)], check)


def drop_rows(rows: int) -> Operation:
    """Their table begins with `rows` rows that no token uses; an export writes zeros there."""
    return Operation(
        lambda theirs, count: [theirs[0][rows:]],
        lambda ours, count: [F.pad(ours[0], (0, 0, rows, 0))],
    )


def split_heads(num_heads: int) -> Operation:
    """Their matrix holds queries, keys and values head by head: for each of `num_heads`, the rows
    of all three."""

    def to_ours(theirs: Tensors, count: int) -> Tensors:
        by_head = theirs[0].unflatten(0, (num_heads, count, -1))
        return [part.flatten(0, 1) for part in by_head.unbind(1)]

    def to_theirs(ours: Tensors, count: int) -> Tensors:
        return [torch.stack([part.unflatten(0, (num_heads, -1)) for part in ours], 1).flatten(0, 2)]

    return Operation(to_ours, to_theirs)


def permute_for_rope(num_heads: int, dim: int = 0) -> Operation:
    """Their rotation pairs the channels (2j, 2j + 1) of each of `num_heads` heads, ours pairs (j, j
    + head_dim / 2).

    The rows of a projection (`dim` 0), or the columns that read its output (`dim` 1), are permuted;
    no number changes.
    """

    def exchange(tensor: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
        return tensor.unflatten(dim, shape).transpose(dim + 1, dim + 2).flatten(dim, dim + 2)

    return Operation(
        lambda theirs, count: [exchange(theirs[0], (num_heads, -1, 2))],
        lambda ours, count: [exchange(ours[0], (num_heads, 2, -1))],
    )


def in_turn(first: Operation, *parts: Operation) -> Operation:
    """`first` makes our tensors; then each of `parts` changes one of them."""

    def to_ours(theirs: Tensors, count: int) -> Tensors:
        made = first.to_ours(theirs, count)
        return [part.to_ours([one], 1)[0] for part, one in zip(parts, made, strict=True)]

    def to_theirs(ours: Tensors, count: int) -> Tensors:
        return first.to_theirs(
            [part.to_theirs([one], 1)[0] for part, one in zip(parts, ours, strict=True)], count
        )

    return Operation(to_ours, to_theirs)


@dataclass(frozen=True)
class WeightRule:
    """Their names, our names, and the operation between them.

    `{i}` and `{j}` stand for numbers, and `*` for the last part of a name (weight, bias …); each is
    the same on both sides. One of their names with `{h}` stands for one tensor per head.
    """

    theirs: str | tuple[str, ...]
    ours: str | tuple[str, ...]
    operation: Operation = UNCHANGED

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Theirs and ours, as tuples."""
        return _as_tuple(self.theirs), _as_tuple(self.ours)

    def prefixed(self, theirs: str, ours: str) -> "WeightRule":
        """The same rule for modules inside others: `theirs` is put before all their names, `ours`
        before ours."""
        their_names, our_names = self.names()
        return WeightRule(
            theirs=tuple(theirs + name for name in their_names),
            ours=tuple(ours + name for name in our_names),
            operation=self.operation,
        )

    def filled(self, values: Mapping[str, str]) -> "WeightRule":
        """The same rule with `values` instead of `{i}`, `{j}` and `*`."""
        theirs, ours = self.names()
        return WeightRule(
            theirs=tuple(_fill(name, values) for name in theirs),
            ours=tuple(_fill(name, values) for name in ours),
            operation=self.operation,
        )

    def for_heads(self, num_heads: int) -> "WeightRule":
        """The same rule with one of their tensors per head instead of each name with `{h}`."""
        theirs: list[str] = []
        for name in self.names()[0]:
            if "{h}" in name:
                theirs += [name.replace("{h}", str(head)) for head in range(num_heads)]
            else:
                theirs.append(name)
        return WeightRule(theirs=tuple(theirs), ours=self.ours, operation=self.operation)


Rules = tuple[WeightRule, ...]


def renamed(names: Mapping[str, str], theirs: str = "", ours: str = "") -> Rules:
    """Rules that change only names: theirs and ours, with the prefixes `theirs` and `ours`."""
    return tuple(
        WeightRule(theirs + their_name, ours + our_name) for their_name, our_name in names.items()
    )


def in_layers(names: Mapping[str, str], theirs: str = "layers.{i}.") -> Rules:
    """Like `renamed`, for names inside each layer; `theirs` is their name of a layer."""
    return renamed(names, theirs, "layers.{i}.")


def projections(
    query: str, key: str, value: str, output: str, ours: str = "self_attn"
) -> dict[str, str]:
    """Their and our names of the four matrices of an attention, for `in_layers`."""
    names = zip((query, key, value, output), "qkvo", strict=True)
    return {f"{theirs}.*": f"{ours}.{side}_proj.*" for theirs, side in names}


@dataclass
class WeightMap:
    """The complete table of a source.

    Args:
        rules: Its rules.
        ignored: The names of their tensors that the model does not need: tables that are computed
            here, and other heads.
        num_heads: The number of heads, for `{h}`.
        copies: The names of their tensors that a checkpoint may hold although they are tied to
            others, and the names of these others.
    """

    rules: Sequence[WeightRule]
    ignored: Sequence[str] = ()
    num_heads: int = 0
    copies: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, our_names: Iterable[str]) -> list[WeightRule]:
        """The rules for a model whose tensors have the names `our_names`, each of which is made
        exactly once. Placeholders are replaced, so there is one rule for each set of tensors.

        Raises:
            ConversionError: if a tensor of ours is made by no rule, or if a tensor of either side
                is in two rules.
        """
        our_names = sorted(our_names)
        resolved: list[WeightRule] = []
        made: set[str] = set()
        read: set[str] = set()
        for rule in self.rules:
            rule = rule.for_heads(self.num_heads)
            pattern = _pattern(rule.names()[1][0])
            for match in filter(None, map(pattern.fullmatch, our_names)):
                filled = rule.filled(match.groupdict())
                theirs, ours = filled.names()
                if not made.isdisjoint(ours) or not read.isdisjoint(theirs):
                    raise ConversionError(
                        f"the table has {', '.join(theirs)} or {', '.join(ours)} twice"
                    )
                resolved.append(filled)
                made.update(ours)
                read.update(theirs)
        missing = [name for name in our_names if name not in made]
        if missing:
            raise ConversionError(f"this source has nothing for {listed(missing)} of the model")
        return resolved

    def to_ours(
        self, state_dict: Mapping[str, torch.Tensor], our_shapes: Mapping[str, torch.Size]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield our names and tensors for a model with the tensors `our_shapes`. Each of theirs is
        read once.

        Raises:
            ConversionError: for names that are missing or unknown, before any tensor is read, for
                tied tensors that differ, and for a tensor whose shape does not fit the config.
        """
        resolved = self.resolve(our_shapes)
        self._check_names(state_dict, resolved)
        self._check_copies(state_dict)
        # Constants come last, in the dtype of all other tensors.
        resolved.sort(key=lambda rule: not rule.theirs)
        dtypes = set()
        for rule in resolved:
            theirs = [state_dict[name] for name in rule.theirs]
            dtypes |= {tensor.dtype for tensor in theirs}
            tensors = rule.operation.to_ours(theirs, len(rule.ours))
            if not theirs:
                dtype = reduce(torch.promote_types, dtypes)
                tensors = [tensor.to(dtype) for tensor in tensors]
            for name, tensor in zip(rule.ours, tensors, strict=True):
                if tensor.shape != our_shapes[name]:
                    raise ConversionError(
                        f"{', '.join(rule.theirs)}: gives {name} the shape {tuple(tensor.shape)}, "
                        f"but the config says {tuple(our_shapes[name])}"
                    )
                yield name, _with_own_storage(tensor.contiguous())

    def _check_names(
        self, state_dict: Mapping[str, torch.Tensor], resolved: Sequence[WeightRule]
    ) -> None:
        """Reject a checkpoint with missing or unknown tensors."""
        needed = {name for rule in resolved for name in rule.theirs}
        missing = sorted(needed - set(state_dict))
        unknown = [name for name in state_dict if name not in needed and not self.ignores(name)]
        faults = []
        if missing:
            faults.append(f"lacks {listed(missing)}")
        if unknown:
            faults.append(f"has unknown {listed(unknown)}")
        if faults:
            raise ConversionError(
                f"the checkpoint {' and '.join(faults)}; is it of this source, and does its config "
                "match?"
            )

    def _check_copies(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Reject a checkpoint whose tied tensors differ: transformers does not tie these."""
        for copy, original in self.copies.items():
            if copy in state_dict and not torch.equal(state_dict[copy], state_dict[original]):
                raise ConversionError(
                    f"{copy} differs from {original}, but with tie_word_embeddings=True they are "
                    f"the same; set it to false in config.json, or remove {copy} from the file"
                )

    def to_theirs(self, state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Their names and tensors, made from ours."""
        theirs = {}
        for rule in self.resolve(state_dict):
            ours = [state_dict[name] for name in rule.ours]
            tensors = rule.operation.to_theirs(ours, len(rule.theirs))
            for name, tensor in zip(rule.theirs, tensors, strict=True):
                theirs[name] = tensor.clone(memory_format=torch.contiguous_format)
        return theirs

    def ignores(self, name: str) -> bool:
        """Whether the model does not need their tensor `name`."""
        return name in self.copies or any(
            _pattern(ignored).fullmatch(name) for ignored in self.ignored
        )


@dataclass(frozen=True)
class StoredNames:
    """The older names of tensors in files. When transformers loads a file, it renames such tensors,
    and splits those that hold several matrices.

    Args:
        renamed: Regular expressions and their replacements, which give the names of the table. They
            are applied in order.
        fused: Parts of names whose tensor holds several matrices along dimension 0, and the parts
            of the names of these matrices.
    """

    renamed: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def read(self, state_dict: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The same tensors under the names of the table. Each is read from `state_dict` when it is
        needed.

        Raises:
            ConversionError: if two names in the file stand for the same name of the table.
        """
        found: dict[str, Callable[[], torch.Tensor]] = {}
        for stored in state_dict:
            names = self._current_names(stored)
            for index, name in enumerate(names):
                if name in found:
                    raise ConversionError(
                        f"the checkpoint has {name} under an older and a newer name"
                    )
                found[name] = partial(_part_of, state_dict, stored, index, len(names))
        return LazyTensors(found)

    def _current_names(self, stored: str) -> list[str]:
        """The names in the table of the tensors that a file stores as `stored`."""
        name = stored
        for pattern, replacement in self.renamed.items():
            name = re.sub(pattern, replacement, name)
        for whole, parts in self.fused.items():
            if f"{whole}." in name:
                return [name.replace(f"{whole}.", f"{part}.") for part in parts]
        return [name]


def _part_of(
    state_dict: Mapping[str, torch.Tensor], name: str, index: int, parts: int
) -> torch.Tensor:
    tensor = state_dict[name]
    if parts > 1:
        return tensor.chunk(parts)[index]
    return tensor


def _with_own_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The same contiguous tensor on a storage of its own, without a copy, even if its storage is
    part of a larger one.

    `save_pretrained` copies all tensors that share a storage, so it would need twice the memory for
    a model whose matrices were stored as one.
    """
    storage = tensor.untyped_storage()
    if storage.nbytes() == tensor.nbytes or tensor.is_meta:
        return tensor
    start = tensor.storage_offset() * tensor.element_size()
    part = storage[start : start + tensor.nbytes]
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        part, 0, tensor.shape, tensor.stride()
    )


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return names


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
