"""After an interruption: the same run on the same data continues bit for bit, anything else is refused by name."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.train.callbacks import TrainingClock

COLOURS = ["red", "green", "blue", "white"]
OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--vocab_size 300 --disable_tqdm --use_cpu --per_device_train_batch_size 8 --max_steps 10 "
    "--ema_decay 0.9 --baselines false "
    "--training_arguments save_strategy=steps save_steps=2 eval_strategy=steps eval_steps=2 logging_steps=1"
).split()
TASKS = {"classify": ["--text_scores", "true"], "mlm": ["--block_size", "16"]}


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    """A folder with data, and for two tasks `whole`, a model, and what is left of a training stopped at step 7."""
    folder = tmp_path_factory.mktemp("continued")
    rows = [f"{a} {b} {a},{a}\n" for a in COLOURS for b in COLOURS] * 4
    for split, own in (("train", rows), ("validation", rows[::3])):
        (folder / f"{split}.csv").write_text("text,label\n" + "".join(own))

    def interrupt(clock, args, state, control, **kwargs) -> None:
        if state.global_step == 7:
            raise KeyboardInterrupt

    for task in TASKS:
        assert main(command(folder, task, f"{task}-whole")) == 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingClock, "on_step_begin", interrupt)
            assert main(command(folder, task, task)) == 130
    return folder


def command(folder: Path, task: str, name: str, *more: str) -> list[str]:
    files = [f"--train_file={folder}/train.csv", f"--validation_file={folder}/validation.csv"]
    return ["train", task, *files, *OPTIONS, *TASKS[task], *more, "--output_dir", str(folder / name)]


@pytest.fixture
def left(original) -> Path:
    """The same folder, put back after the test: paths are options, so it must stay in its place."""
    kept = original.with_name("kept")
    shutil.copytree(original, kept)
    yield original
    shutil.rmtree(original)
    kept.rename(original)


@pytest.mark.parametrize("task", TASKS)
def test_it_continues_as_if_nothing_had_happened(task, left, capsys):
    """What only says where output goes and how it is shown may be other; so may the test data."""
    (left / f"{task}.training" / "checkpoint-8").mkdir()  # as if a kill had come while it was written
    assert main(command(left, task, task, "--title", "A title", "--keep_checkpoints")) == 0
    assert "Resuming from step 6" in capsys.readouterr().err
    weights = [load_file(left / name / "model.safetensors") for name in (f"{task}-whole", task)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    results = [json.loads((left / name / "results.json").read_text()) for name in (f"{task}-whole", task)]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert (left / f"{task}.training" / "checkpoint-10").is_dir()


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ("--learning_rate 0.1", "--learning_rate was the default and is 0.1"),
        ("--per_device_train_batch_size 4", "--per_device_train_batch_size was 8 and is 4"),
        ("--training_arguments lr_scheduler_type=cosine", "--lr_scheduler_type was the default and is cosine"),
        ("--max_length 9", "--max_length was the default and is 9"),
        ("--seed 7", "--seed was the default and is 7"),
    ],
)
def test_another_run_is_refused_with_the_difference(left, capsys, options, difference):
    assert main(command(left, "classify", "classify", *options.split())) == 2
    assert difference in capsys.readouterr().err
    assert (left / "classify.training" / "checkpoint-6").is_dir()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_other_data_are_refused(left, capsys, split):
    path = left / f"{split}.csv"
    path.write_text(path.read_text().replace("red red red", "red new red"))
    assert main(command(left, "classify", "classify")) == 2
    assert f"the data have changed: {split};" in capsys.readouterr().err
    assert main(command(left, "classify", "classify", "--overwrite_output_dir")) == 0
    assert "Resuming" not in capsys.readouterr().err


def test_without_a_checkpoint_nothing_is_lost_and_nothing_refused(left):
    for checkpoint in (left / "mlm.training").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    (left / "train.csv").write_text("text,label\n" + "zyx wvu tsr,a\n" * 20)
    assert main(command(left, "mlm", "mlm", "--learning_rate", "1e-3")) == 0
    assert "z" in (left / "mlm" / "tokenizer.json").read_text()


def test_an_unreadable_description_is_refused(left, capsys):
    (left / "mlm.training" / "run.yaml").write_text("task: [")
    assert main(command(left, "mlm", "mlm")) == 2
    error = capsys.readouterr().err
    assert "run.yaml cannot be read" in error and "--overwrite_output_dir to start again" in error


def test_killed_after_the_model_was_finished(left, capsys):
    shutil.copytree(left / "mlm.training", left / "kept.training")
    assert main(command(left, "mlm", "mlm")) == 0
    assert not (left / "mlm.training").exists()
    (left / "kept.training").rename(left / "mlm.training")  # as if there had been no time to remove it
    assert main(command(left, "mlm", "mlm")) == 2
    assert "holds a finished model" in capsys.readouterr().err and not (left / "mlm.training").exists()


def test_other_files_are_left_alone(tmp_path, left, capsys):
    (left / "new.training").mkdir()
    (left / "new.training" / "thesis.txt").write_text("years of work")
    assert main(command(left, "mlm", "new")) == 2
    assert "holds other files" in capsys.readouterr().err and (left / "new.training" / "thesis.txt").exists()


def other_shape(saved: dict) -> None:
    saved["state"][0]["exp_avg"] = torch.zeros(3)


def other_rate(saved: dict) -> None:
    saved["param_groups"][0]["initial_lr"] = 1e9


@pytest.mark.parametrize("change", [other_shape, other_rate, lambda saved: saved["state"].clear()])
def test_a_damaged_optimizer_is_refused(left, capsys, change):
    """torch would end the process, or train on."""
    path = left / "mlm.training" / "checkpoint-6" / "optimizer.pt"
    saved = torch.load(path, weights_only=True)
    change(saved)
    torch.save(saved, path)
    assert main(command(left, "mlm", "mlm")) == 2
    assert str(path) in capsys.readouterr().err
    shutil.rmtree(path.parent)  # as the message says
    assert main(command(left, "mlm", "mlm")) == 0
    assert "Resuming from step 4" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["trainer_state.json", "optimizer.pt", "scheduler.pt", "model.safetensors"])
def test_a_damaged_checkpoint_is_refused(left, capsys, file):
    path = left / "mlm.training" / "checkpoint-6" / file
    if file.endswith(".json"):
        path.write_text(path.read_text().replace('"global_step": 6', '"global_step": -5'))
    elif file == "scheduler.pt":
        path.write_bytes(pickle.dumps(Path(left / "made-by-a-pickle")))
    else:
        path.write_bytes(path.read_bytes()[:500])
    assert main(command(left, "mlm", "mlm")) == 2
    assert str(path) in capsys.readouterr().err


@pytest.mark.slow
def test_one_process_at_a_time_and_then_a_kill(left, capsys):
    arguments = command(left, "mlm", "locked", "--max_steps", "100000")
    process = subprocess.Popen([sys.executable, "-m", "roformer_lite.cli", *arguments], env={**os.environ})
    while not list((left / "locked.training").glob("checkpoint-*/trainer_state.json")):
        assert process.poll() is None
        time.sleep(0.2)
    assert main(arguments) == 2
    assert "another process trains into it" in capsys.readouterr().err
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert main(command(left, "mlm", "locked", "--overwrite_output_dir")) == 0
