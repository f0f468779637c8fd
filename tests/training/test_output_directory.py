"""A model directory is complete or absent, and an old one is lost only when it is replaced."""

import errno
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from program import config_of, refused, run, write_rows

from roformer_lite.errors import InputError
from roformer_lite.output import (
    check_output_dir,
    check_place,
    complete_directory,
)
from roformer_lite.recipes.tag import Tag


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


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt()])
def test_failure_changes_nothing(model, error):
    before = contents(model.parent)
    with pytest.raises(type(error)), complete_directory(model, overwrite=True) as folder:
        (folder / "config.json").write_text("half")
        raise error
    assert contents(model.parent) == before


def test_failed_rename_puts_the_old_model_back(model, monkeypatch):
    before = contents(model.parent)
    rename = Path.rename

    def failing(self, target):
        if (self / "config.json").read_text() == "new":
            raise PermissionError(errno.EACCES, "not allowed", str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with (
        pytest.raises(PermissionError, match="not allowed"),
        complete_directory(model, overwrite=True) as folder,
    ):
        (folder / "config.json").write_text("new")
    assert contents(model.parent) == before


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


def sentences(path: Path, words: int) -> Path:
    """Write tagged sentences with this number of words."""
    rows = []
    for row in range(8):
        tags = ["O" if (number + row) % 3 else "B-X" for number in range(words)]
        rows.append({"tokens": [f"w{number}" for number in range(words)], "tags": tags})
    return write_rows(path, rows)


@pytest.mark.parametrize("more", ["--seeds 1 2", "--training_arguments save_strategy=no"])
def test_what_cannot_be_measured_is_not_lost(tmp_path, capsys, monkeypatch, more):
    """If the metrics of test data raise an error, the trained weights are kept, and the same command
    may be given other test data."""
    evaluate = Tag.evaluate

    def evaluate_short(recipe: Tag, saved: Any, rows: Dataset, *args: Any, **kwargs: Any) -> Any:
        if len(rows[0]["tokens"]) == 40:
            raise ZeroDivisionError
        return evaluate(recipe, saved, rows, *args, **kwargs)

    monkeypatch.setattr(Tag, "evaluate", evaluate_short)
    short = sentences(tmp_path / "short.jsonl", words=6)
    long = sentences(tmp_path / "long.jsonl", words=40)
    command = (
        "train tag --size tiny --max_length 16 --vocab_size 300 --max_steps 2 "
        f"--config position_embedding_type=learned max_position_embeddings=16 {more}"
    )
    files = {"train_file": short, "validation_file": short, "output_dir": tmp_path / "model"}
    with pytest.raises(ZeroDivisionError):
        run(command, **files, test_file=long)
    folder = tmp_path / "model.training"
    if "seeds" in more:
        folder = folder / "seed-1.training"
    kept = folder / "checkpoint-2"
    assert not (tmp_path / "model").exists()
    assert config_of(kept)["max_position_embeddings"] == 16
    run(command, **files, test_file=short)
    assert "Resuming from step 2" in capsys.readouterr().err
    assert not (tmp_path / "model.training").exists()


def test_a_refused_training_leaves_nothing(tmp_path):
    # These data have only one label, so that there is nothing to learn.
    data = write_rows(tmp_path / "rows.jsonl", [{"text": text, "label": "x"} for text in "ab"])
    refused("train classify", train_file=data, output_dir=tmp_path / "model")
    assert [*tmp_path.iterdir()] == [data]


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_link_to_a_directory_is_followed(slash, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    place = check_place("output_dir", f"{tmp_path}/link{slash}")
    with complete_directory(Path(place)) as folder:
        (folder / "config.json").write_text("{}")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "model" / "config.json").read_text() == "{}"
