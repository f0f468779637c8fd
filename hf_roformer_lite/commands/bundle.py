"""`roformer-lite bundle`: put the package's code beside a saved model, for places where it is not installed."""

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import InputError
from .command_parser import CommandParser


def bundle(directory: Path) -> list[str]:
    """Write the code of a saved model and tokenizer into their directory, where they are of this package.

    config.json and tokenizer_config.json gain an `auto_map`; nothing else changes there.

    Returns:
        The names of the code files written.

    Raises:
        InputError: when the directory holds neither a model nor a tokenizer of this package, or one of their files is
            damaged.
    """
    from ..model.remote_code import RemoteCodeMixin
    from ..saved_model import load_config, load_tokenizer

    maps: dict[str, Any] = {}
    with TemporaryDirectory(prefix="roformer-lite-bundle-") as folder:
        for name, load in {"config.json": load_config, "tokenizer_config.json": load_tokenizer}.items():
            if not (directory / name).is_file():
                continue
            part = load(directory)
            if isinstance(part, RemoteCodeMixin):  # the tokenizer may be another library's
                part.save_pretrained(folder, remote_code=True)
                maps[name] = json.loads((Path(folder) / name).read_text("utf-8"))["auto_map"]
        if not maps:
            raise InputError(f"{directory} holds neither a model nor a tokenizer of RoFormer-Lite")
        code = sorted(Path(folder).glob("*.py"))
        for path in code:
            shutil.copyfile(path, directory / path.name)
    for name, auto_map in maps.items():  # after the code that they name
        fields = {**json.loads((directory / name).read_text("utf-8")), "auto_map": auto_map}
        unfinished = directory / f".{name}.unfinished"
        unfinished.write_text(json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
        os.replace(unfinished, directory / name)
    return [path.name for path in code]


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
