"""An error that nobody expects is shown with its traceback, and trained weights are kept."""

from unittest.mock import Mock

import pytest
from program import TINY, refused, run, write_rows

from roformer_lite.errors import InputError
from roformer_lite.training import train as train_module
from roformer_lite.training.trainer import RoFormerLiteTrainer


@pytest.fixture
def command(tmp_path) -> str:
    rows = [{"text": f"{'one' if n % 2 else 'three'} {n}", "label": "ab"[n % 2]} for n in range(16)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    options = f"{TINY} --max_steps 2 --validation_fraction 0.2"
    return f"train classify --train_file {data} --output_dir {tmp_path / 'model'} {options}"


@pytest.mark.parametrize("error", [TypeError("a bug"), ValueError("a bug"), OSError("a bug")])
def test_a_bug_in_the_first_step_is_not_called_a_wrong_option(command, monkeypatch, error):
    monkeypatch.setattr(RoFormerLiteTrainer, "compute_loss", Mock(side_effect=error))
    with pytest.raises(type(error)) as raised:
        run(command)
    assert raised.value is error


def test_errors_after_the_training_keep_the_weights(command, monkeypatch, tmp_path, capsys):
    for error in (TypeError("a bug"), MemoryError("full"), InputError("a wrong row")):
        with monkeypatch.context() as patch:
            patch.setattr(train_module, "save_finished_model", Mock(side_effect=error))
            if isinstance(error, TypeError):
                with pytest.raises(TypeError):
                    run(command)
            else:
                refused(command)
        assert (tmp_path / "model.training" / "checkpoint-2").is_dir()
    run(command)
    assert "Resuming from step 2" in capsys.readouterr().err
