"""An interrupted run continues bit for bit, and a different run is refused with the difference."""

import fcntl
import pickle
import shutil
from pathlib import Path

import pytest
from program import (
    COLOURS,
    TINY,
    assert_same_models,
    interrupted,
    refused,
    results_of,
    run,
    write_rows,
)

OPTIONS = (
    f"{TINY} --per_device_train_batch_size 8 --max_steps 10 --baselines false "
    "--training_arguments logging_steps=1 "
    "save_strategy=steps save_steps=2 eval_strategy=steps eval_steps=2"
)
# Each task has options that add to the state of its training.
TASKS = {
    "classify": "--join_baseline true --ema_decay 0.9",
    "mlm": "--block_size 16 --optim muon --ema_decay 0.9",
    "seq2seq": (
        "--source_column text --target_column label --max_tokens_per_batch 99 --ema_decay 0.9 "
        "--training_arguments label_smoothing_factor=0.1 metric_for_best_model=loss"
    ),
    "embed": "",
    "rerank": "",
}
SLOW = [pytest.param(task, marks=pytest.mark.slow if task == "rerank" else ()) for task in TASKS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("continued")
    rows = []
    for a in COLOURS:
        for b in COLOURS:
            text = f"{a} {b} {a}"
            rows.append({"text": text, "label": a, "anchor": text, "positive": a})
    write_rows(folder / "train.jsonl", rows * 4)
    write_rows(folder / "validation.jsonl", (rows * 4)[::3])
    return folder


def command(folder: Path, task: str, name: str, more: str = "") -> str:
    files = f"--train_file {folder}/train.jsonl --validation_file {folder}/validation.jsonl"
    options = f"{OPTIONS} {TASKS[task]} {more}"
    if "--tokenizer" in more:
        options = options.replace("--vocab_size 300", "")
    return f"train {task} {files} {options} --output_dir {folder / name}"


def left_by(folder: Path, task: str, more: str = "") -> Path:
    """Interrupt a training at step 7, unless that was done before, and return its folder."""
    if not (folder / f"{task}.training").exists():
        interrupted(command(folder, task, task, more), step=7)
    return folder


@pytest.fixture
def left(folder) -> Path:
    """The folder with two interrupted trainings, restored after each test.

    Paths are options that must not change, so the folder keeps its place.
    """
    for task in ("classify", "mlm"):
        left_by(folder, task)
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


@pytest.mark.parametrize("task", SLOW)
def test_it_continues_as_if_nothing_had_happened(task, folder, capsys):
    """Options that only change what is kept or shown may differ, and so may the times of files."""
    left_by(folder, task)
    kept = shutil.copytree(folder / f"{task}.training", folder / f"{task}.kept")
    run(command(folder, task, f"{task}-whole"))
    (folder / "train.jsonl").touch()
    # A kill leaves an empty directory of a checkpoint that had just been begun, and a part of the
    # last file of one that was nearly finished.
    (folder / f"{task}.training" / "checkpoint-8").mkdir()
    part = shutil.copytree(kept / "checkpoint-6", folder / f"{task}.training" / "checkpoint-9")
    (part / "trainer_state.json").write_text("{")
    run(command(folder, task, task, "--dataset_title other --keep_checkpoints"))
    assert "Resuming from step 6" in capsys.readouterr().err
    assert_same_models(folder / f"{task}-whole", folder / task)
    assert (folder / f"{task}.training" / "checkpoint-10").is_dir()
    shutil.rmtree(folder / f"{task}.training")
    shutil.rmtree(folder / task)
    kept.rename(folder / f"{task}.training")


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ("--learning_rate 0.1", "--learning_rate was not given and is 0.1"),
        (
            "--training_arguments lr_scheduler_type=cosine",
            "--training_arguments lr_scheduler_type was not given and is cosine",
        ),
    ],
)
def test_another_run_is_refused_with_the_difference(left, options, difference):
    assert difference in refused(command(left, "classify", "classify", options))
    assert (left / "classify.training" / "checkpoint-6").is_dir()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_other_data_are_refused(left, capsys, split):
    path = left / f"{split}.jsonl"
    path.write_text(path.read_text().replace("red red red", "red new red"))
    assert f"{path.name} was" in refused(command(left, "classify", "classify"))
    run(command(left, "classify", "classify", "--overwrite_output_dir"))
    assert "Resuming" not in capsys.readouterr().err


def test_an_older_file_of_the_tokenizer_is_refused(folder, tmp_path):
    file = "start/tokenizer.json"
    place = shutil.copytree(folder, tmp_path / "place", ignore=shutil.ignore_patterns("*.training"))
    older = shutil.copytree(place, tmp_path / "older") / file
    shutil.copytree(left_by(folder, "mlm") / "mlm.training" / "tokenizer", place / "start")
    older.parent.mkdir(exist_ok=True)
    older.write_text((place / file).read_text().replace("red", "fed"))
    options = f"--tokenizer {place / 'start'}"
    left_by(place, "classify", options)
    older.replace(place / file)
    message = refused(command(place, "classify", "classify", options))
    assert f"{file} was" in message


def test_without_a_checkpoint_nothing_is_lost_and_nothing_refused(left):
    for checkpoint in (left / "mlm.training").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    write_rows(left / "train.jsonl", [{"text": "zyx wvu tsr"}] * 20)
    run(command(left, "mlm", "mlm", "--learning_rate 1e-3"))
    assert "zyx" in (left / "mlm" / "tokenizer.json").read_text()


def test_what_is_not_of_this_training_is_left_alone(left):
    (left / "new.training").mkdir()
    thesis = left / "new.training" / "thesis.txt"
    thesis.write_text("years of work")
    assert "holds other files" in refused(command(left, "mlm", "new"))
    assert thesis.exists()


@pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "model.safetensors"])
def test_a_damaged_checkpoint_is_refused(left, capsys, file):
    path = left / "mlm.training" / "checkpoint-6" / file
    if file == "scheduler.pt":
        path.write_bytes(pickle.dumps(Path("made-by-a-pickle")))
    else:
        path.write_bytes(path.read_bytes()[:500])
    assert f"remove {path.parent}" in refused(command(left, "mlm", "mlm"))
    shutil.rmtree(path.parent)
    run(command(left, "mlm", "mlm"))
    assert "Resuming from step 4" in capsys.readouterr().err


def test_a_training_that_is_over_is_only_measured(folder, tmp_path, capsys):
    """The training stopped long before its last step, and was killed before it was measured."""
    # This schedule cannot be made for a training without steps.
    words = command(
        folder,
        "mlm",
        "over",
        "--early_stopping_patience 1 --learning_rate 1e-9 --max_steps 90 --optim adamw_torch "
        "--ema_decay 0 --training_arguments lr_scheduler_type=polynomial "
        'lr_scheduler_kwargs={"lr_end":0}',
    )
    run(words, "--keep_checkpoints", dataset_title="whole")
    whole = shutil.move(folder / "over", tmp_path / "whole")
    steps = results_of(whole)["training"]["steps"]
    assert steps < 20 and "stops early" in capsys.readouterr().err
    run(words)
    assert f"Resuming from step {steps}" in capsys.readouterr().err
    assert_same_models(whole, folder / "over")
    assert results_of(folder / "over")["training"]["steps"] == steps


def test_one_process_at_a_time(left):
    """Processes that are killed are tested in test_seeds.py and test_distributed.py."""
    with (left / "mlm.training" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another process is training" in refused(command(left, "mlm", "mlm"))
