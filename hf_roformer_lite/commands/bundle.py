"""`roformer-lite bundle`: put the package's code beside a saved model, for places where it is not installed."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import InputError
from ..output_file import write_texts
from .command_parser import CommandParser


def bundle(directory: Path) -> list[str]:
    """Write the code of a saved model and tokenizer into their directory, where they are of this package.

    config.json and tokenizer_config.json gain an `auto_map`; nothing else changes there.

    Returns:
        The names of the code files written.

    Raises:
        InputError: when the directory holds neither a model nor a tokenizer of this package.
    """
    from transformers import AutoConfig, AutoTokenizer

    from ..model.remote_code import RemoteCodeMixin

    maps: dict[str, Any] = {}
    with TemporaryDirectory(prefix="roformer-lite-bundle-") as folder:
        for name, auto_class in {"config.json": AutoConfig, "tokenizer_config.json": AutoTokenizer}.items():
            if not (directory / name).is_file():
                continue
            try:
                part = auto_class.from_pretrained(directory)
            except (OSError, ValueError) as error:
                raise InputError(f"{directory / name} cannot be read: {error}") from error
            if isinstance(part, RemoteCodeMixin):  # the tokenizer may be another library's
                part.save_pretrained(folder, remote_code=True)
                maps[name] = json.loads((Path(folder) / name).read_text("utf-8"))["auto_map"]
        if not maps:
            raise InputError(f"{directory} holds neither a model nor a tokenizer of RoFormer-Lite")
        code = sorted(Path(folder).glob("*.py"))
        texts: dict[Path, str] = {}
        for name, auto_map in maps.items():  # first, to be replaced after the code that they name
            fields = {**json.loads((directory / name).read_text("utf-8")), "auto_map": auto_map}
            texts[directory / name] = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        write_texts(texts | {directory / path.name: path.read_text("utf-8") for path in code})
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
