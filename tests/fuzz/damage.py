"""Ways to damage files. A random generator chooses among them, so that a seed repeats a damage."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
# Editors, spreadsheets and programs leave such pieces in files.
PIECES = [
    *(bytes([byte]) for byte in b"\x00\x0b\x1a\x1c\x80\"'\t,\n\r\\{} "),
    *(character.encode() for character in "\ufeff\u2028\u0085\u00a0\U0001f600"),
    *b'\xff\xfe "" \\ud800 NaN null 1e999 [] {} -DOCSTART- # =1+1'.split(b" "),
    b"\n\n\n",
    b"9" * 5000,
    b"[" * 100_000,
    b"x" * 100_000,
]
WRONG_VALUES: list[Any] = [
    None,
    "x",
    -1,
    0,
    10**12,
    10**30,
    1.5,
    float("nan"),
    [[]],
    {"a": 1},
    True,
]


def cut(content: bytes, chance: random.Random) -> bytes:
    """Lose the end of a file, as a download that stops early does."""
    return content[: chance.randrange(len(content))]


def flip_a_bit(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def insert_a_piece(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content) + 1)
    return content[:place] + chance.choice(PIECES) + content[place:]


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    return chance.choice((cut, flip_a_bit, insert_a_piece))(content, chance)


def damaged_header(content: bytes, chance: random.Random) -> bytes:
    """Damage the header of a safetensors file, where every change can be noticed."""
    end = 8 + int.from_bytes(content[:8], "little")
    return damaged_bytes(content[:end], chance) + content[end:]


def damaged_fields(content: bytes, chance: random.Random) -> bytes:
    """Remove a field of a JSON file at any depth, or give it a value of a wrong type or size.

    The whole content may also get such a value."""
    fields = json.loads(content)
    place, name = chance.choice([(None, None), *places_in(fields)])
    value = chance.choice(WRONG_VALUES)
    if place is None:
        fields = value
    elif isinstance(place, dict) and chance.random() < 0.25:
        del place[name]
    else:
        place[name] = value
    return json.dumps(fields).encode()


def places_in(fields: Any) -> list[tuple[Any, Any]]:
    """The containers and keys of all values of a JSON file, but of only a few in each
    vocabulary."""
    items = []
    if isinstance(fields, dict):
        items = list(fields.items())
    elif isinstance(fields, list):
        items = list(enumerate(fields))
    places = []
    for name, value in items[:50]:
        places += [(fields, name), *places_in(value)]
    return places


def damaged_tensors(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    """Change the tensors, so that the file can be read but does not fit the model."""
    name = chance.choice(sorted(name for name in tensors if tensors[name].is_floating_point()))
    tensor = tensors.pop(name)
    flat = tensor.view(-1)
    match chance.randrange(7):
        case 0:
            tensors.clear()
        case 1:
            tensors |= {name: tensor, "strange": torch.zeros(2)}
        case 2:
            tensors[f"{name}x"] = tensor
        case 3:
            flat[chance.randrange(len(flat))] = chance.choice([float("nan"), float("inf")])
            tensors[name] = tensor
        case 4:
            tensors[name] = tensor[None]
        case 5:
            tensors[name] = tensor[:-1]


def change_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, path, metadata={"format": "pt"})


def damage_file(folder: Path, name: str, seed: int) -> None:
    """Damage a file of a saved model, or put a directory or nothing in its place."""
    path = folder / name
    chance = random.Random(f"{seed} {path.name}")
    is_weights = path.suffix == ".safetensors"
    kind = chance.randrange(10)
    if kind == 0:
        path.unlink()
        if chance.random() < 0.5:
            path.mkdir()
    elif is_weights and kind < 5:
        change_tensors(path, lambda tensors: damaged_tensors(tensors, chance))
    elif is_weights:
        path.write_bytes(damaged_header(path.read_bytes(), chance))
    elif path.suffix == ".json" and kind < 7:
        path.write_bytes(damaged_fields(path.read_bytes(), chance))
    else:
        path.write_bytes(damaged_bytes(path.read_bytes(), chance))
