"""The files of a baseline that joins the answer of an encoder: its arrays in a file of safetensors,
and all else in a file of JSON."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from ..errors import require_packages
from ..output import RESULTS_FILE
from ..saved.saved_model import directory_of, naming, read_object
from .crf import WordTagger
from .join import Join
from .ngrams import NgramClassifier

BaselineModel = NgramClassifier | WordTagger
# The folder of the baseline in the directory of a model.
FOLDER = "baseline"
ARRAYS_FILE = "baseline.safetensors"
TEXTS_FILE = "baseline.json"


@dataclass(frozen=True)
class JoinedBaseline:
    """A fitted baseline, and how its scores join those of the encoder."""

    model: BaselineModel
    join: Join


def save_joined(directory: Path, joined: JoinedBaseline) -> None:
    """Write a baseline into a folder of the directory of its model, instead of one that is
    there."""
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    save_file(joined.model.arrays(), folder / ARRAYS_FILE)
    content = {"join": asdict(joined.join), "texts": joined.model.texts()}
    (folder / TEXTS_FILE).write_text(json.dumps(content), "utf-8")


def load_joined(name: str | Path, model_class: type[BaselineModel]) -> JoinedBaseline | None:
    """The baseline that joins the answer of a saved model; None if there is none.

    Args:
        name: The directory of the model, or its name on the Hub.
        model_class: The class of the baseline.

    Raises:
        InputError: if a file is missing or wrong.
    """
    folder = directory_of(name, weights=[f"{FOLDER}/{ARRAYS_FILE}"]) / FOLDER
    if not folder.is_dir():
        return None
    require_packages(f"the baseline of {name}", model_class.packages)
    with naming(f"{name}/{FOLDER}"):
        content = read_object(folder / TEXTS_FILE)
        tensors = load_file(folder / ARRAYS_FILE)
        for key, array in tensors.items():
            if not np.isfinite(array).all():
                raise ValueError(f"{ARRAYS_FILE} has NaN or infinite numbers in {key}")
        join = Join(**content["join"])
        return JoinedBaseline(model_class.from_saved(content["texts"], tensors), join)


def copy_answer_files(name: str | Path, directory: Path) -> None:
    """Copy what `predict` and `evaluate` read in addition to a saved model: the results of its
    training, with the task and its settings, and the baseline that joins its answer."""
    source = directory_of(name, weights=[f"{FOLDER}/{ARRAYS_FILE}"])
    if (source / RESULTS_FILE).is_file():
        shutil.copy(source / RESULTS_FILE, directory)
    if (source / FOLDER).is_dir():
        shutil.copytree(source / FOLDER, directory / FOLDER, dirs_exist_ok=True)
