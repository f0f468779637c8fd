"""`roformer-lite bundle`: a saved model together with the package's code, for places where the
package is not installed."""

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from transformers.pipelines import SUPPORTED_TASKS

from hf_roformer_lite.model.hub import RemoteCode

from ..errors import InputError
from ..output import complete_directory, write_json
from ..saved_model import load_config, load_tokenizer, model_class_of, naming, read_object

_NOT_COPIED = shutil.ignore_patterns(".git", ".cache", "__pycache__")
_CARD = """
## Use without the package

The code of this model is stored next to its weights, so that transformers can open it without
further packages. `trust_remote_code=True` runs that code on your machine: read it first, and name
the revision that you have read.

```python
from transformers import {names}

{lines}
```
"""


def bundle(directory: Path, out: Path) -> list[str]:
    """Copy a saved model and its tokenizer to `out`, and add the code of the package's classes.

    config.json and tokenizer_config.json get an `auto_map`, and the card says how to use
    `trust_remote_code`. Nothing else differs from `directory`, which is not changed.

    Args:
        directory: A directory with a model, a tokenizer or both.
        out: A directory that is new or empty.

    Returns:
        The names of the code files.

    Raises:
        InputError: if the directory contains neither a model nor a tokenizer of this package, or if
            they are damaged, or if the disk is full.
    """
    if out.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{out} lies in {directory}, which is copied; choose another directory")
    parts: dict[str, Any] = {}
    if (directory / "config.json").is_file():
        config = load_config(directory)
        if isinstance(config, RemoteCode) and config.architectures is not None:
            model_class_of(config, directory)
        parts["config.json"] = config
    if (directory / "tokenizer_config.json").is_file():
        parts["tokenizer_config.json"] = load_tokenizer(directory)
    parts = {name: part for name, part in parts.items() if isinstance(part, RemoteCode)}
    if not parts:
        raise InputError(f"{directory} holds neither a model nor a tokenizer of RoFormer-Lite")
    with complete_directory(out, "the bundle") as folder:
        with naming(directory, "cannot be copied"):
            shutil.copytree(directory, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
        for name, part in parts.items():
            part.write_code(folder)
            part.remote_code = True
            fields = read_object(folder / name)
            fields["auto_map"] = part.auto_map_holder()["auto_map"]
            with naming(directory / name, "cannot be copied"):
                write_json(folder / name, fields)
        auto_classes = [_auto_class(part) for part in parts.values()]
        _complete_card(folder / "README.md", auto_classes, out.name)
        return [path.name for path in folder.glob("*.py")]


def _auto_class(part: RemoteCode) -> str:
    """The Auto class that loads a tokenizer, or the model of a configuration."""
    auto_map = part.auto_map_holder()["auto_map"]
    if "AutoTokenizer" in auto_map:
        return "AutoTokenizer"
    architectures = part.configuration().architectures or [""]
    for auto, place in auto_map.items():
        if place.rpartition(".")[2] == architectures[0]:
            return auto
    return "AutoModel"


def _pipeline_tag(auto_class: str) -> str | None:
    """The task of a model on the Hub, from which transformers chooses a pipeline."""
    tasks: dict[str, Any] = SUPPORTED_TASKS
    for tag, task in tasks.items():
        if auto_class in [each.__name__ for each in task["pt"]]:
            return tag
    return None


def _complete_card(path: Path, auto_classes: list[str], name: str) -> None:
    """Explain the use of `trust_remote_code` in the card, or in a new one, unless it does so
    already."""
    if path.is_file():
        card = path.read_text("utf-8")
    else:
        metadata = ModelCardData(
            library_name="transformers", pipeline_tag=_pipeline_tag(auto_classes[0])
        )
        card = f"---\n{metadata.to_yaml()}\n---\n\n# {name}\n"
    if "trust_remote_code=True" in card:
        return
    lines = []
    for auto in auto_classes:
        variable = "tokenizer" if auto == "AutoTokenizer" else "model"
        lines.append(f'{variable} = {auto}.from_pretrained("{name}", trust_remote_code=True)')
    section = _CARD.format(names=", ".join(auto_classes), lines="\n".join(lines))
    path.write_text(card.rstrip("\n") + "\n" + section, "utf-8")


def main(directory: Path, out: Path) -> None:
    """Run `roformer-lite bundle DIR OUT`."""
    names = bundle(directory, out)
    print(
        f"{out}: the model and {len(names)} files of code; load it anywhere with "
        "trust_remote_code=True"
    )
