"""`roformer-lite bundle`: a saved directory gets the code that it needs where this package is not installed."""

import json
import os
import shutil
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from ..errors import InputError
from ..model.remote_code import RemoteCodeMixin

_LOADERS: dict[str, type] = {"config.json": AutoConfig, "tokenizer_config.json": AutoTokenizer}


def bundle(directory: Path) -> list[str]:
    """Write code and `auto_map` into `directory`, for its config and its tokenizer where they are of this package.

    Nothing else changes there: `auto_map` is all that config.json and tokenizer_config.json gain.

    Returns:
        The names of the code files written.

    Raises:
        InputError: when the directory holds neither a model nor a tokenizer of this package.
    """
    maps: dict[str, Any] = {}
    with TemporaryDirectory(prefix="roformer-lite-bundle-") as folder:
        for name, auto_class in _LOADERS.items():
            if not (directory / name).is_file():
                continue
            try:
                part = auto_class.from_pretrained(directory)
            except (OSError, ValueError) as error:
                raise InputError(f"{directory / name} cannot be read: {error}") from error
            if isinstance(part, RemoteCodeMixin):  # a model of this package may have another's tokenizer
                part.save_pretrained(folder, remote_code=True)
                maps[name] = json.loads((Path(folder) / name).read_text("utf-8"))["auto_map"]
        if not maps:
            raise InputError(f"{directory} holds neither a model nor a tokenizer of RoFormer-Lite")
        code = sorted(Path(folder).glob("*.py"))
        for path in code:
            shutil.copyfile(path, directory / path.name)
    for name, auto_map in maps.items():  # after the code that they speak of
        fields = {**json.loads((directory / name).read_text("utf-8")), "auto_map": auto_map}
        unfinished = directory / f".{name}.unfinished"
        unfinished.write_text(json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
        os.replace(unfinished, directory / name)
    return [path.name for path in code]


def main(argv: list[str]) -> None:
    """Run `roformer-lite bundle DIR`."""
    parser = ArgumentParser(
        prog="roformer-lite bundle",
        description="Put the code of the package beside the weights of a saved model, so that it opens where the "
        "package is not installed: AutoModel.from_pretrained(DIR, trust_remote_code=True).",
        allow_abbrev=False,
    )
    parser.add_argument("directory", metavar="DIR", help="a directory with a saved model, tokenizer, or both")
    directory = Path(parser.parse_args(argv).directory)
    names = bundle(directory)
    print(f"{directory}: {len(names)} files of code; it opens anywhere with trust_remote_code=True")
