"""`roformer-lite bundle`: put the package's code beside a saved model, for places where it is not installed."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_imports

from hf_roformer_lite.model.configuration_roformer_lite import RemoteCode

from ..errors import InputError
from ..model_name import check_directory
from ..output_directory import is_disk_full, remove_left_overs, unfinished_path
from ..saved_model import load_config, load_tokenizer
from .command_parser import CommandParser

# What may have an `auto_map`, and what makes a part of it that can write one.
_LOADERS = {"config.json": load_config, "tokenizer_config.json": load_tokenizer}


def bundle(directory: Path) -> list[str]:
    """Write the code of a saved model and tokenizer into their directory, where they are of this package.

    config.json and tokenizer_config.json gain an `auto_map`, and files of code that an older bundle needed, and this
    one does not, are removed. Nothing else changes there.

    Returns:
        The names of the code files written.

    Raises:
        InputError: when the directory holds neither a model nor a tokenizer of this package, or damaged ones, and when
            the disk is full or not writable; nothing is changed then.
    """
    check_directory(directory)
    maps: dict[str, Any] = {}
    with _staging(directory) as folder:
        for name, load in _LOADERS.items():
            if not (directory / name).is_file():
                continue
            part = load(directory)
            if isinstance(part, RemoteCode):  # the tokenizer may be another library's
                part.save_pretrained(folder, remote_code=True)
                maps[name] = json.loads((folder / name).read_text("utf-8"))["auto_map"]
        if not maps:
            raise InputError(f"{directory} holds neither a model nor a tokenizer of RoFormer-Lite")
        for name, auto_map in maps.items():
            fields = {**json.loads((directory / name).read_text("utf-8")), "auto_map": auto_map}
            text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, "utf-8")
        code = sorted(path.name for path in folder.glob("*.py"))
        former = _code_of(directory)
        for name in (*code, *maps):  # all is written; renaming needs no space. The code goes before what names it.
            (folder / name).replace(directory / name)
        for path in former - _code_of(directory):
            path.unlink()
    return code


def _code_of(directory: Path) -> set[Path]:
    """The files of `directory` that its `auto_map`s name, with those that they import."""
    waiting: list[str] = []
    found: set[Path] = set()
    for path in (directory / name for name in _LOADERS):
        auto_map = json.loads(path.read_text("utf-8")).get("auto_map", {}) if path.is_file() else {}
        for reference in auto_map.values():
            # A tokenizer has two places, for a slow and a fast class, of which one may be empty.
            classes = reference if isinstance(reference, list) else [reference]
            waiting += [name.rpartition(".")[0] for name in classes if name]
    while waiting:
        path = directory / f"{waiting.pop()}.py"
        if path.parent == directory and path.is_file() and path not in found:
            found.add(path)
            waiting += get_relative_imports(path)
    return found


@contextmanager
def _staging(directory: Path) -> Iterator[Path]:
    """A new folder in `directory`, on the same disk, removed at the end.

    Raises:
        InputError: when the disk is full or the directory cannot be written.
    """
    name = directory / "bundle"
    remove_left_overs(name)
    folder = unfinished_path(name)
    try:
        folder.mkdir()
        yield folder
    except OSError as error:
        reason = "no space left on the disk" if is_disk_full(error, directory) else str(error)
        raise InputError(f"{directory}: the code cannot be written: {reason}; nothing was changed there") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(argv: list[str]) -> None:
    """Run `roformer-lite bundle DIR`."""
    parser = CommandParser(
        "bundle",
        "Put the code of the package beside the weights of a saved model. The directory can then be loaded where the "
        "package is not installed: AutoModel.from_pretrained(DIR, trust_remote_code=True).",
        DIR="a directory with a saved model, tokenizer, or both",
    )
    (paths,) = parser.parse(argv)
    directory = Path(paths.dir)
    names = bundle(directory)
    print(f"{directory}: {len(names)} files of code written; load it anywhere with trust_remote_code=True")
