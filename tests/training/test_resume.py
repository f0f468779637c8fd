"""An unfinished training is continued by the same command only, from its last complete checkpoint."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as sharded
from transformers import TrainingArguments

from roformer_lite.errors import InputError
from roformer_lite.training.resume import (
    check_checkpoint,
    last_complete_checkpoint,
    open_training_directory,
    training_directory,
)
from roformer_lite.training.sharded_files import check_nothing_but_data


def test_an_unfinished_training_belongs_to_its_options(tmp_path):
    folder = training_directory(tmp_path / "model")
    open_training_directory(folder, {"size": "tiny", "train_file": ["a.tsv"]}, overwrite=False)
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "trainer_state.json").write_text("{}")
    open_training_directory(folder, {"size": "tiny", "train_file": ["a.tsv"]}, overwrite=False)
    with pytest.raises(InputError, match="with other options .--size was tiny and is mini.; give the same command"):
        open_training_directory(folder, {"size": "mini", "train_file": ["a.tsv"]}, overwrite=False)
    assert (folder / "checkpoint-5").exists()
    open_training_directory(folder, {"size": "mini", "train_file": ["a.tsv"]}, overwrite=True)
    assert not (folder / "checkpoint-5").exists()
    (tmp_path / "photos.training").mkdir()
    (tmp_path / "photos.training" / "cat.png").write_text("")
    with pytest.raises(InputError, match="needed for the checkpoints, but holds other files"):
        open_training_directory(tmp_path / "photos.training", {}, overwrite=True)


def test_half_written_checkpoints_do_not_count(tmp_path):
    for step, state in ((9, "{}"), (10, "{}"), (100, '{"half'), (101, None)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    assert last_complete_checkpoint(tmp_path, averaged=False) == str(tmp_path / "checkpoint-10")
    assert last_complete_checkpoint(tmp_path, averaged=True) is None
    (tmp_path / "checkpoint-9" / "averaged_weights.safetensors").write_text("")
    assert last_complete_checkpoint(tmp_path, averaged=True) == str(tmp_path / "checkpoint-9")
    open_training_directory(tmp_path / "other", {}, overwrite=False)
    assert last_complete_checkpoint(tmp_path / "other", averaged=False) is None


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("place", ["description", "value"])
def test_what_a_checkpoint_hides_is_not_unpickled(place, tmp_path):
    folder, mark = tmp_path / "optimizer_0", tmp_path / "it ran"
    sharded.save(
        {"weight": torch.ones(5), "rate": Hostile(mark) if place == "value" else 0.1},
        checkpoint_id=folder,
        no_dist=True,
    )
    if place == "description":
        (folder / ".metadata").write_bytes(pickle.dumps(Hostile(mark)))
    with pytest.raises(ValueError, match="touch|Hostile|posix|WeightsUnpickler|Unsupported"):
        check_nothing_but_data(folder)
    assert not mark.exists()
    harmless = tmp_path / "harmless"
    sharded.save({"weight": torch.ones(5), "rates": (0.1, None, [True])}, checkpoint_id=harmless, no_dist=True)
    check_nothing_but_data(harmless)


def fsdp_in_parts(checkpoint: Path) -> None:
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        sharded.save({"weight": torch.ones(50)}, checkpoint_id=checkpoint / name, no_dist=True)


def fsdp_whole(checkpoint: Path) -> None:
    for name in ("pytorch_model_fsdp.bin", "optimizer.bin"):
        torch.save({"weight": torch.ones(50)}, checkpoint / name)


def deepspeed(checkpoint: Path) -> None:
    (checkpoint / "global_step2").mkdir()
    (checkpoint / "latest").write_text("global_step2")
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        torch.save({"weight": torch.ones(50)}, checkpoint / "global_step2" / name)


@pytest.mark.parametrize(
    ("save", "launched_by", "files"),
    [
        (fsdp_in_parts, "ACCELERATE_USE_FSDP", 6),
        (fsdp_whole, "ACCELERATE_USE_FSDP", 4),
        (deepspeed, "ACCELERATE_USE_DEEPSPEED", 3),
    ],
)
def test_a_sharded_checkpoint_that_is_not_whole(
    save: Callable[[Path], None], launched_by: str, files: int, tmp_path, monkeypatch
):
    """transformers begins with a new optimizer where that of FSDP is missing."""
    args = TrainingArguments(tmp_path / "out", use_cpu=True, report_to="none")
    monkeypatch.setenv(launched_by, "true")
    (tmp_path / "trainer_state.json").write_text("{}")
    save(tmp_path)
    if save is not deepspeed:
        torch.save({}, tmp_path / "scheduler.pt")
        torch.save({}, tmp_path / "rng_state.pth")
    check_checkpoint(tmp_path, args)
    found = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "trainer_state.json"]
    assert len(found) == files
    for path in found:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(InputError, match="without it training would not go on as it stopped"):
            check_checkpoint(tmp_path, args)
        path.unlink()
        with pytest.raises(InputError, match="is missing|of 0 processes"):
            check_checkpoint(tmp_path, args)
        path.write_bytes(content)
    check_checkpoint(tmp_path, args)
