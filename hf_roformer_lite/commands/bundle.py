"""`roformer-lite bundle`: put the package's code beside a saved model, for places where it is not installed."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..former_modules import FORMER_FILES
from ..model_name import check_directory
from ..output_directory import is_disk_full, remove_left_overs, unfinished_path
from .command_parser import CommandParser


def bundle(directory: Path) -> list[str]:
    """Write the code of a saved model and tokenizer into their directory, where they are of this package.

    config.json and tokenizer_config.json gain an `auto_map`; nothing else changes there.

    Returns:
        The names of the code files written.

    Raises:
        InputError: when the directory holds neither a model nor a tokenizer of this package, or damaged ones, and when
            the disk is full or not writable; nothing is changed then.
    """
    check_directory(directory)
    from ..model.remote_code import RemoteCodeMixin
    from ..saved_model import load_config, load_tokenizer

    maps: dict[str, Any] = {}
    with _staging(directory) as folder:
        for name, load in {"config.json": load_config, "tokenizer_config.json": load_tokenizer}.items():
            if not (directory / name).is_file():
                continue
            part = load(directory)
            if isinstance(part, RemoteCodeMixin):  # the tokenizer may be another library's
                part.save_pretrained(folder, remote_code=True)
                maps[name] = json.loads((folder / name).read_text("utf-8"))["auto_map"]
        if not maps:
            raise InputError(f"{directory} holds neither a model nor a tokenizer of RoFormer-Lite")
        for name, auto_map in maps.items():
            fields = {**json.loads((directory / name).read_text("utf-8")), "auto_map": auto_map}
            text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, "utf-8")
        code = sorted(path.name for path in folder.glob("*.py"))
        was_bundle = "auto_map" in json.loads((directory / next(iter(maps))).read_text("utf-8"))
        for name in (*code, *maps):  # all is written; renaming needs no space. The code goes before what names it.
            (folder / name).replace(directory / name)
        if was_bundle:
            for name in FORMER_FILES.difference(code):  # of version 0.1.0, which nothing imports any more
                (directory / name).unlink(missing_ok=True)
    return code


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
