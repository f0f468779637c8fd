"""A model directory is complete or absent, and an old one is lost only when it is replaced."""

import errno
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from datasets import Dataset
from program import TINY, run, write_rows

from roformer_lite.errors import InputError
from roformer_lite.options.run import parse_run
from roformer_lite.output import (
    check_output_dir,
    check_place,
    complete_directory,
    is_disk_full,
)
from roformer_lite.recipes.tag import Tag
from roformer_lite.training.training_directory import TrainingDirectory


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def model(tmp_path):
    target = tmp_path / "model"
    with complete_directory(target) as folder:
        (folder / "config.json").write_text("old")
        (folder / "results.json").write_text("old")
    return target


def test_replaced_as_a_whole(model):
    with complete_directory(model, overwrite=True) as folder:
        assert contents(model)["config.json"] == "old"
        (folder / "config.json").write_text("new")
    assert contents(model.parent) == {"model/config.json": "new"}


@pytest.mark.parametrize("came", [["mine.txt"], ["config.json", "results.json"]])
def test_what_came_in_the_meantime_stays(came, tmp_path):
    target = tmp_path / "prepared"
    with pytest.raises(InputError, match="something else was written there"):
        with complete_directory(target) as folder:
            (folder / "ours").write_text("hours of work")
            target.mkdir()
            for name in came:
                (target / name).write_text("x")
    assert contents(target) == dict.fromkeys(came, "x") and [*tmp_path.iterdir()] == [target]


def test_failure_changes_nothing(model):
    before = contents(model.parent)
    with pytest.raises(KeyboardInterrupt), complete_directory(model, overwrite=True) as folder:
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt
    assert contents(model.parent) == before


@pytest.mark.parametrize(
    "error", [PermissionError(errno.EACCES, "not allowed"), KeyboardInterrupt("not allowed")]
)
def test_failed_rename_puts_the_old_model_back(error, model, monkeypatch):
    before = contents(model.parent)
    rename = Path.rename

    def failing(self, target):
        if (self / "config.json").read_text() == "new":
            raise error
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with (
        pytest.raises((InputError, KeyboardInterrupt), match="not allowed"),
        complete_directory(model, overwrite=True) as folder,
    ):
        (folder / "config.json").write_text("new")
    assert contents(model.parent) == before


def test_a_clearing_that_is_cut_short_leaves_nothing_that_seems_complete(tmp_path, monkeypatch):
    left = tmp_path / "m.training"
    proofs = ["seed-1/results.json", "checkpoint-2/trainer_state.json"]
    for name in ("description.json", *proofs, "seed-1/config.json"):
        (left / name).parent.mkdir(parents=True, exist_ok=True)
        (left / name).write_text("{}")
    words = f"--dataset_name x --output_dir {tmp_path / 'm'}"
    directory = TrainingDirectory(parse_run("classify", words.split()))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", Mock(side_effect=KeyboardInterrupt))
        directory.clear()
    assert set(contents(left)) == {"description.json", "seed-1/config.json"}
    with directory.held():
        assert not (left / "seed-1").exists()


def test_what_may_be_overwritten(model, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("")
    for target, overwrite, message in (
        (model, False, "a finished model"),
        (tmp_path / "photos", True, "other files"),
    ):
        with pytest.raises(InputError, match=message):
            check_output_dir(target, overwrite)
    check_output_dir(model, overwrite=True)


@pytest.mark.parametrize("more", ["--seeds 1 2", "--training_arguments save_strategy=no"])
def test_what_cannot_be_measured_is_not_lost(tmp_path, capsys, monkeypatch, more):
    """If the metrics of test data raise an error, the trained weights are kept, and the same
    command may be given other test data."""
    evaluate = Tag.evaluate

    def evaluate_few(recipe: Tag, saved: Any, rows: Dataset, *args: Any, **kwargs: Any) -> Any:
        if len(rows) > 8:
            raise ZeroDivisionError
        return evaluate(recipe, saved, rows, *args, **kwargs)

    monkeypatch.setattr(Tag, "evaluate", evaluate_few)
    rows = [{"tokens": ["a", f"b{n}"], "tags": ["O", "B-X"]} for n in range(8)]
    few = write_rows(tmp_path / "few.jsonl", rows)
    many = write_rows(tmp_path / "many.jsonl", rows * 2)
    command = f"train tag {TINY} --max_steps 2 {more}"
    files = {"train_file": few, "validation_file": few, "output_dir": tmp_path / "model"}
    with pytest.raises(ZeroDivisionError):
        run(command, **files, test_file=many)
    folder = tmp_path / "model.training"
    if "seeds" in more:
        folder = folder / "seed-1.training"
    kept = folder / "checkpoint-2"
    assert kept.is_dir() and not (tmp_path / "model").exists()
    run(command, **files, test_file=few)
    assert "Resuming from step 2" in capsys.readouterr().err
    assert not (tmp_path / "model.training").exists()


def test_a_full_disk_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.save(torch.zeros(9999), "/dev/full")
    assert is_disk_full(caught.value) and not is_disk_full(RuntimeError("a bug"))


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_link_to_a_directory_is_followed(slash, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    place = check_place("output_dir", f"{tmp_path}/link{slash}")
    with complete_directory(Path(place)) as folder:
        (folder / "config.json").write_text("{}")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "model" / "config.json").read_text() == "{}"
