"""A folder for the Hub's Spaces: the page of a model, the model, and the code of both packages,
which no index has."""

import os
import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from huggingface_hub import SpaceCardData
from packaging.requirements import Requirement

import hf_roformer_lite
import roformer_lite
from hf_roformer_lite import conversion

from ..output import complete_directory, new_directory
from ..predict.predictor import Predictor

# States, logs and pickled arguments that trainings leave beside a model.
_LEFT_OUT = shutil.ignore_patterns(
    "checkpoint-*", "runs", "training_args.bin", "*.pt", "*.pth", ".*", "__pycache__"
)
_APP = '''"""The page of a model: `python app.py` opens it here, and a Space opens it by itself."""

from pathlib import Path

from roformer_lite.app.page import open_page

open_page({model}, title={title!r}, texts={texts!r}).block_thread()
'''
_README = """---
{data}
---

A page to try a model, written by `roformer-lite app --space`. `hf_roformer_lite/` and `roformer_lite/` are the code of
that package, version {version}, under the licence [Apache-2.0](https://www.apache.org/licenses/LICENSE-2.0).
"""


def write_space(name: str, out: str, texts: Sequence[str] = ()) -> Path:
    """Write the folder of a Space, which the Hub runs, and `python app.py` too.

    Args:
        name: A directory, which is copied, or a name on the Hub, from which the Space loads the
            model.
        out: Where to write; must not exist yet, or be empty.
        texts: As for `Page`.

    Raises:
        InputError: when `out` exists, or the model cannot be loaded.
    """
    target, title, is_directory = (
        new_directory(out),
        " ".join(Path(name).resolve().name.split()),
        os.path.isdir(name),
    )
    predictor = Predictor.load(name, "cpu")  # a Space that can't load its model helps nobody
    with complete_directory(target, "the Space") as folder:
        # `conversion` may lie elsewhere
        for package in (hf_roformer_lite, conversion, roformer_lite):
            place = folder.joinpath(*package.__name__.split("."))
            shutil.copytree(
                Path(package.__file__).parent, place, ignore=_LEFT_OUT, dirs_exist_ok=True
            )
        if is_directory:
            shutil.copytree(name, folder / "model", ignore=_LEFT_OUT)
        model = 'str(Path(__file__).with_name("model"))' if is_directory else repr(name)
        (folder / "app.py").write_text(
            _APP.format(model=model, title=title, texts=list(texts)), "utf-8"
        )
        extras = (
            "",
            "app",
            "train",
            "jieba",
            "embed" if predictor.task.name in ("embed", "rerank") else "",
        )
        (folder / "requirements.txt").write_text("\n".join(_pins(extras)) + "\n", "utf-8")
        card = SpaceCardData(
            title=title,
            sdk="gradio",
            sdk_version=version("gradio"),
            python_version=".".join(platform.python_version_tuple()[:2]),
            app_file="app.py",
            models=None if is_directory else [name],
        )
        readme = _README.format(data=card.to_yaml(), version=hf_roformer_lite.__version__)
        (folder / "README.md").write_text(readme, "utf-8")
    return target


def _pins(extras: Sequence[str]) -> list[str]:
    """What `hf_roformer_lite` and some of its extras need, each with the version that is installed
    here."""
    pins = []
    for need in map(Requirement, requires("hf_roformer_lite") or ()):
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
            try:
                pins.append(f"{need.name}=={version(need.name).partition('+')[0]}")
            except PackageNotFoundError:  # what was not needed here is not needed there
                continue
    return [pin for pin in pins if not pin.startswith("hf_roformer_lite")]
