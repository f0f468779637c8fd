"""Ways to damage the files of a saved model. They are the same in every run.

Each way is a description and a function that damages a file in the folder of the model.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], object]
WEIGHTS = "model.safetensors"
WRONG_VALUES: list[Any] = [
    None,
    "x",
    "",
    -1,
    0,
    1,
    10**12,
    10**30,
    1.5,
    float("nan"),
    [],
    [[]],
    {},
    {"a": 1},
    True,
]
NESTED_FIELDS = ("encoder", "decoder", "settings", "rope_parameters", "model")
NOT_JSON = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"5",
    b'""',
    b"\xff\xfe\x00",
    b"\x00" * 64,
    b"[" * 100_000,
    b'{"a": 1} {"b"',
]


def header_size(path: Path) -> int:
    """Return the place in a safetensors file where its tensors begin."""
    with open(path, "rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def truncations(file: str) -> Iterator[tuple[str, Damage]]:
    """Cut off the end of a file, as a download that stops early does."""
    for part in (0.0, 0.001, 0.1, 0.5, 0.9):
        yield (
            f"{file} cut at {part:.1%}",
            lambda folder, part=part: _cut(folder / file, lambda size: int(part * size)),
        )
    yield f"{file} without its last byte", lambda folder: _cut(folder / file, lambda size: size - 1)


def _cut(path: Path, length: Callable[[int], int]) -> None:
    path.write_bytes(path.read_bytes()[: length(path.stat().st_size)])


def header_damage(flips: int, seed: int) -> Iterator[tuple[str, Damage]]:
    """Flip bits in the header of a safetensors file, and cut the file in or after its header."""
    for number in range(flips):
        yield (
            f"bit flip {number} in the header",
            lambda folder, number=number: _flip(
                folder / WEIGHTS, header_size(folder / WEIGHTS), seed + number
            ),
        )
    for place in (1, 7, 8, 9, 100):
        yield (
            f"{WEIGHTS} cut at byte {place}",
            lambda folder, place=place: _cut(folder / WEIGHTS, lambda _: place),
        )
    yield (
        "cut behind the header",
        lambda folder: _cut(folder / WEIGHTS, lambda _: header_size(folder / WEIGHTS)),
    )
    yield (
        "a byte too many",
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes() + b"\0"),
    )


def bit_flips(file: str, number: int, seed: int) -> Iterator[tuple[str, Damage]]:
    """Flip one bit of a file, in `number` different ways."""
    for flip in range(seed, seed + number):

        def damage(folder: Path, flip: int = flip) -> None:
            _flip(folder / file, (folder / file).stat().st_size, flip)

        yield f"bit flip {flip} in {file}", damage


def _flip(path: Path, size: int, seed: int) -> None:
    """Flip one bit of the first `size` bytes."""
    content = bytearray(path.read_bytes())
    generator = random.Random(seed)
    content[generator.randrange(size)] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def tensor_damage(seed: int) -> Iterator[tuple[str, Damage]]:
    """Change the tensors, so that the file can be read but does not fit the model."""

    def changed(change: Callable[[dict[str, torch.Tensor], str], object]) -> Damage:
        def damage(folder: Path) -> None:
            tensors = load_file(folder / WEIGHTS)
            names = sorted(name for name, tensor in tensors.items() if tensor.is_floating_point())
            change(tensors, random.Random(seed).choice(names))
            tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
            save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

        return damage

    yield "one tensor missing", changed(lambda tensors, name: tensors.pop(name))
    yield "all tensors missing", changed(lambda tensors, name: tensors.clear())
    yield "one tensor more", changed(lambda tensors, name: tensors.update(strange=torch.zeros(2)))
    yield (
        "one tensor renamed",
        changed(lambda tensors, name: tensors.update({name + "x": tensors.pop(name)})),
    )
    yield (
        "one value NaN",
        changed(lambda tensors, name: tensors[name].view(-1).__setitem__(-1, float("nan"))),
    )
    yield (
        "one value infinite",
        changed(lambda tensors, name: tensors[name].view(-1).__setitem__(0, float("inf"))),
    )
    yield "a tensor of NaN", changed(lambda tensors, name: tensors[name].fill_(float("nan")))
    yield (
        "another shape",
        changed(lambda tensors, name: tensors.update({name: tensors[name][None]})),
    )
    yield "one row less", changed(lambda tensors, name: tensors.update({name: tensors[name][:-1]}))


def field_damage(
    file: str, fields: dict[str, Any], each: int, seed: int
) -> Iterator[tuple[str, Damage]]:
    """Remove each field of a JSON file, and set it to `each` values of wrong types and sizes."""
    for path in field_paths(fields):
        generator = random.Random(f"{seed} {path}")
        shown = ".".join(path)
        yield (
            f"{file} without {shown}",
            lambda folder, path=path: _set_field(folder / file, path, remove=True),
        )
        for value in generator.sample(WRONG_VALUES, each):
            name = f"{file} with {shown}={value!r}"
            yield (
                name,
                lambda folder, path=path, value=value: _set_field(folder / file, path, value),
            )


def field_paths(fields: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead to each field, also within the groups of `NESTED_FIELDS`."""
    for name, value in fields.items():
        yield (name,)
        if isinstance(value, dict) and name in NESTED_FIELDS:
            yield from ((name, *path) for path in field_paths(value))


def _set_field(path: Path, names: tuple[str, ...], value: Any = None, remove: bool = False) -> None:
    fields = json.loads(path.read_text("utf-8"))
    place = fields
    for name in names[:-1]:
        place = place[name]
    if remove:
        del place[names[-1]]
    else:
        place[names[-1]] = value
    path.write_text(json.dumps(fields), "utf-8")


def not_json(file: str) -> Iterator[tuple[str, Damage]]:
    """Replace a file by one that does not contain a JSON object."""
    for content in NOT_JSON:
        yield (
            f"{file} is {content[:12]!r}",
            lambda folder, content=content: (folder / file).write_bytes(content),
        )
