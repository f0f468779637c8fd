"""An unfinished training is continued by the same command only, from its last complete checkpoint."""

import pytest

from hf_roformer_lite.errors import InputError
from hf_roformer_lite.training.resume import last_complete_checkpoint, open_training_directory, training_directory


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
