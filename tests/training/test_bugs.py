"""An error that nobody expects is shown with its traceback, and says where trained weights are."""

import pytest

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.training import train as train_module
from roformer_lite.training.trainer import RoFormerLiteTrainer


@pytest.fixture
def command(tmp_path) -> list[str]:
    rows = tmp_path / "rows.csv"
    table = "".join(f"one {number},a\nthree {number},b\n" for number in range(8))
    rows.write_text(f"text,label\n{table}")
    files = ["--train_file", str(rows), "--output_dir", str(tmp_path / "model")]
    options = (
        "--size tiny --config num_hidden_layers=1 hidden_size=32 --vocab_size 300 --max_steps 2 "
        "--use_cpu true --disable_tqdm true --validation_fraction 0.2"
    )
    return ["train", "classify", *files, *options.split()]


def failing(error: Exception):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", [TypeError("a bug"), AttributeError("a bug"), KeyError("a bug")])
def test_a_bug_before_the_first_step_is_not_called_a_wrong_option(command, monkeypatch, error):
    monkeypatch.setattr(RoFormerLiteTrainer, "train", failing(error))
    with pytest.raises(type(error)) as raised:
        main(command)
    assert raised.value is error


def test_a_library_that_is_missing_is_an_option_that_cannot_be_used(command, monkeypatch, capsys):
    missing = ImportError("this optimizer needs another package")
    monkeypatch.setattr(RoFormerLiteTrainer, "train", failing(missing))
    assert main(command) == 2
    assert "needs another package; see --optim" in capsys.readouterr().err


def test_errors_after_the_training_name_the_weights(command, monkeypatch, capsys, tmp_path):
    for error in (TypeError("a bug"), MemoryError("full"), InputError("a wrong row")):
        with monkeypatch.context() as patch:
            patch.setattr(train_module, "save_finished_model", failing(error))
            if isinstance(error, TypeError):
                with pytest.raises(TypeError) as raised:
                    main(command)
                (message,) = raised.value.__notes__
            else:
                assert main(command) == 2
                message = capsys.readouterr().err
        assert str(tmp_path / "model.training" / "checkpoint-2") in message
    assert main(command) == 0
