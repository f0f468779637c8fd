"""`roformer-lite bundle`: a saved model with the package's code beside it, for places where it is
not installed."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import ModelCardData
from transformers.pipelines import SUPPORTED_TASKS

from hf_roformer_lite.model.hub import RemoteCode

from ..errors import InputError
from ..output import complete_directory
from ..saved_model import load_config, load_tokenizer, model_class_of, naming

_NOT_COPIED = shutil.ignore_patterns(".git", ".cache", "__pycache__")
_CARD = """
## Use without the package

The code of this model lies beside its weights, so that transformers alone opens it. `trust_remote_code=True` runs that
code on your machine: read it first, and name the revision that you have read.

```python
from transformers import {names}

{lines}
```
"""


def bundle(directory: Path, out: Path) -> list[str]:
    """Copy a saved model and tokenizer to `out`, with the code of those that are of this package.

    config.json and tokenizer_config.json gain an `auto_map`, and the card says how to use
    `trust_remote_code`; nothing else differs from `directory`, which stays as it is.

    Args:
        directory: With a model, a tokenizer or both.
        out: A directory that is new or empty.

    Returns:
        The names of the code files written.

    Raises:
        InputError: when the directory holds neither a model nor a tokenizer of this package, or
            damaged ones, and when the disk is full.
    """
    if out.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{out} lies in {directory}, which is copied; choose another directory")
    loaders = {"config.json": load_config, "tokenizer_config.json": load_tokenizer}
    parts = {
        name: load(directory) for name, load in loaders.items() if (directory / name).is_file()
    }
    parts = {name: part for name, part in parts.items() if isinstance(part, RemoteCode)}
    if not parts:
        raise InputError(f"{directory} holds neither a model nor a tokenizer of RoFormer-Lite")
    if "config.json" in parts and parts["config.json"].architectures is not None:
        model_class_of(parts["config.json"], directory)
    with complete_directory(out, "the bundle") as folder, TemporaryDirectory() as made:
        with naming(directory, "cannot be copied"):
            shutil.copytree(directory, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
        loading = []
        for name, part in parts.items():
            part.save_pretrained(made, remote_code=True)
            auto_map = json.loads((Path(made) / name).read_text("utf-8"))["auto_map"]
            fields = {**json.loads((folder / name).read_text("utf-8")), "auto_map": auto_map}
            text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, "utf-8")
            loading.append("AutoTokenizer" if "tokenizer" in name else _auto_class(fields))
        code = sorted(Path(made).glob("*.py"))
        for path in code:
            shutil.copy(path, folder)
        _complete_card(folder / "README.md", loading, out.name)
    return [path.name for path in code]


def _auto_class(fields: dict[str, Any]) -> str:
    """The Auto class of a configuration's model."""
    architecture = (fields.get("architectures") or [""])[0]
    named = [
        auto
        for auto, place in fields["auto_map"].items()
        if place.rpartition(".")[2] == architecture
    ]
    return named[0] if named else "AutoModel"


def _complete_card(path: Path, auto_classes: list[str], name: str) -> None:
    """Add to the card, or to a new one, how `trust_remote_code` is used, unless it says so
    already."""
    if path.is_file():
        card = path.read_text("utf-8")
    else:
        auto = auto_classes[0]
        tags = [
            tag
            for tag, task in SUPPORTED_TASKS.items()
            if auto in [each.__name__ for each in task["pt"]]
        ]
        metadata = ModelCardData(
            library_name="transformers", pipeline_tag=tags[0] if tags else None
        )
        card = f"---\n{metadata.to_yaml()}\n---\n\n# {name}\n"
    if "trust_remote_code=True" in card:
        return
    lines = []
    for auto in auto_classes:
        variable = "tokenizer" if auto == "AutoTokenizer" else "model"
        lines.append(f'{variable} = {auto}.from_pretrained("{name}", trust_remote_code=True)')
    path.write_text(
        card.rstrip("\n")
        + "\n"
        + _CARD.format(names=", ".join(auto_classes), lines="\n".join(lines)),
        "utf-8",
    )


def main(directory: Path, out: Path) -> None:
    """Run `roformer-lite bundle DIR OUT`."""
    names = bundle(directory, out)
    print(
        f"{out}: the model and {len(names)} files of code; load it anywhere with "
        "trust_remote_code=True"
    )
