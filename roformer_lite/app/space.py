"""A folder for the Hub's Spaces: the page of a model, the model, and the code that both need.

The Hub installs what `requirements.txt` names. This package is on no index from which it could be installed, so its
code lies in the folder, where `app.py` imports it.
"""

import os
import platform
import re
import shutil
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files, packages_distributions, requires, version
from pathlib import Path

from huggingface_hub import ModelCard, SpaceCardData
from huggingface_hub.errors import HFValidationError
from packaging.requirements import Requirement

import hf_roformer_lite
import roformer_lite
from hf_roformer_lite import conversion
from hf_roformer_lite.model.tokenization_jieba import RoFormerLiteJiebaTokenizer

from ..commands.predictor import Predictor
from ..errors import InputError
from ..output_directory import complete_directory
from ..output_place import new_directory
from ..saved_files import find_file
from .launch import check_texts, load_trial, read_texts

_PACKAGE = hf_roformer_lite.__name__
_MODEL, _TEXTS, _LICENCE = "model", "texts.txt", "LICENSE"
# What trainings leave beside a model: states, logs, and arguments that are pickled.
_NOT_OF_THE_MODEL = shutil.ignore_patterns(
    "checkpoint-*", "runs", "training_args.bin", "*.pt", "*.pth", ".*", "__pycache__"
)

_APP = '''"""The page of a model: `python app.py` opens it here, and a Space opens it by itself."""

from pathlib import Path

from roformer_lite.app.launch import open_page

open_page({arguments})
'''
_README = """
# {title}

A page to try {model}, written by `roformer-lite app --space`. `{package}/` and `roformer_lite/` are the code of that
package (version {version}), which no package index has. It is under the licence Apache-2.0: {licence}
"""


def write_space(name: str, out: str | Path, texts: str | None = None) -> Path:
    """Write the folder of a Space.

    Args:
        name: A directory, which is copied, or a name on the Hub, from which the Space loads the model.
        out: Where to write; must not exist yet.
        texts: A file of texts that the page compares with a query.

    Returns:
        The folder.

    Raises:
        InputError: when `out` exists or cannot be written, the model cannot be loaded or compares no texts, or a link
            leads out of its directory.
    """
    target = new_directory(out)
    lines = read_texts(texts)
    trial = load_trial(name, "cpu")  # a Space that cannot load its model helps nobody
    check_texts(texts, trial)
    is_directory = os.path.isdir(name)
    if is_directory:
        _check_links(Path(name))
    title = _on_one_line(Path(name).resolve().name)
    arguments = f'str(Path(__file__).with_name("{_MODEL}"))' if is_directory else repr(name)
    arguments += f", title={title!r}"
    with complete_directory(target, "the Space") as folder:
        if lines:
            (folder / _TEXTS).write_text(lines + "\n", "utf-8")
            arguments += f', texts=str(Path(__file__).with_name("{_TEXTS}"))'
        if is_directory:
            shutil.copytree(name, folder / _MODEL, ignore=_NOT_OF_THE_MODEL)
        has_licence = _copy_package(folder)
        app = _APP.format(package=_PACKAGE, arguments=arguments)
        (folder / "app.py").write_text(app, "utf-8")
        (folder / "requirements.txt").write_text("".join(f"{pin}\n" for pin in requirements(trial.predictor)), "utf-8")
        (folder / "README.md").write_text(_readme(name, title, has_licence), "utf-8")
    return target


def requirements(predictor: Predictor) -> list[str]:
    """What the page of a model needs besides this package, each with the version that is installed here."""
    needed = [Requirement(line) for line in requires(_PACKAGE) or ()]
    names = [need.name for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    modules = ["gradio", *predictor.task.arguments.packages]
    if isinstance(predictor.saved.tokenizer, RoFormerLiteJiebaTokenizer):
        modules.append("rjieba")
    distributions = packages_distributions()
    names += [distributions[module][0] for module in modules]
    return [f"{name}=={version(name).partition('+')[0]}" for name in dict.fromkeys(names)]


def _on_one_line(text: str) -> str:
    """A name without what breaks a line or cannot be shown; a directory may have any."""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def _check_links(directory: Path) -> None:
    """Refuse links that lead out of a model's directory: what lies there would be published as well.

    In the cache of the Hub's files, all files of a model are links to its `blobs`, which are of the model.
    """
    home = directory.resolve()
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append((home.parent.parent / "blobs").resolve())

    def check(folder: Path) -> None:
        names = os.listdir(folder)
        for path in (folder / name for name in sorted({*names} - _NOT_OF_THE_MODEL(str(folder), names))):
            if path.is_symlink():
                target = Path(os.path.realpath(path))
                if not target.is_file() or not any(map(target.is_relative_to, homes)):
                    raise InputError(
                        f"{path}: a link to {target}, which is no file of the model; a Space takes none that lies "
                        "elsewhere: put a copy in place of the link, or remove it"
                    )
            elif path.is_dir():
                check(path)

    check(directory)


def _copy_package(folder: Path) -> bool:
    """The packages as they are imported here, and whether their licence was found; `conversion` may lie elsewhere, in
    a checkout of the repository."""
    ignored = shutil.ignore_patterns("__pycache__")
    for module in (hf_roformer_lite, conversion, roformer_lite):
        place = folder.joinpath(*module.__name__.split("."))
        shutil.copytree(Path(module.__file__).parent, place, ignore=ignored, dirs_exist_ok=True)
    licence = _text_of_licence()
    if licence is not None:
        (folder / _PACKAGE / _LICENCE).write_text(licence, "utf-8")
    return licence is not None


def _text_of_licence() -> str | None:
    """Of this package: from a checkout of the repository, or from what pip installed."""
    root = Path(hf_roformer_lite.__file__).parent.parent
    places = [root / _LICENCE] if (root / "pyproject.toml").exists() else []
    with suppress(PackageNotFoundError):
        places += [Path(file.locate()) for file in files(_PACKAGE) or () if file.name == _LICENCE]
    return next((place.read_text("utf-8") for place in places if place.is_file()), None)


def _readme(name: str, title: str, has_licence: bool) -> str:
    """What a Space must say of itself, in front, and a sentence for people."""
    major, minor, _ = platform.python_version_tuple()
    data = SpaceCardData(
        title=title,
        sdk="gradio",
        sdk_version=version("gradio"),
        python_version=f"{major}.{minor}",
        app_file="app.py",
        license=_licence(name),
        models=None if os.path.isdir(name) else [name],
    )
    model = f"the model in `{_MODEL}/`" if os.path.isdir(name) else f"the model `{name}`"
    text = _README.format(
        title=re.sub(r"([\\`*_\[\]<>#|!&~$])", r"\\\1", title),  # Markdown takes a sign behind a backslash as it is
        model=model,
        package=_PACKAGE,
        version=hf_roformer_lite.__version__,
        licence=f"`{_PACKAGE}/{_LICENCE}`." if has_licence else "<https://www.apache.org/licenses/LICENSE-2.0>.",
    )
    return f"---\n{data.to_yaml()}\n---\n{text}"


def _licence(name: str) -> str | None:
    """That of the model's card, if it has one that names it."""
    card = find_file(name, "README.md")
    if card is None:
        return None
    try:
        return ModelCard.load(card).data.license
    except (HFValidationError, ValueError, OSError):
        return None
