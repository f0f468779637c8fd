"""The command line after an interruption: it continues exactly what was interrupted, or says why it does not."""

import json
import shutil
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from roformer_lite.cli import main
from roformer_lite.training.clock import TrainingClock

pytestmark = pytest.mark.slow

OPTIONS = (
    "--size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=32 num_hidden_layers=1 "
    "--vocab_size 300 --disable_tqdm true --use_cpu true --learning_rate 3e-3 --max_source_length 16 "
    "--max_target_length 16 --per_device_train_batch_size 8 --max_steps 6 --save_strategy steps --save_steps 2 "
    "--eval_strategy steps --eval_steps 2 --logging_steps 1 --load_best_model_at_end false"
).split()
STEP = 4  # where it is interrupted, with checkpoints after 2 and 4


def write_rows(path: Path, rows: list[str]) -> None:
    path.write_text("source\ttarget\n" + "".join(f"{row}\t{row[::-1]}\n" for row in rows), "utf-8")


def interrupt(clock, args, state, control, **kwargs) -> None:
    """`on_step_begin` of the clock: as if the user had pressed Ctrl+C."""
    if state.global_step == STEP:
        raise KeyboardInterrupt


def changed(options: list[str], name: str, *values: str) -> list[str]:
    """`options` with another value of `name`: the last one given counts."""
    return [*options, f"--{name}", *values]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """A folder with data, `whole`, a model whose training was not interrupted, and what is left of one that was."""
    folder = tmp_path_factory.mktemp("interrupted")
    rows = [f"{a} {b} {c}" for a in "abc" for b in ("house", "tree", "bird") for c in ("red", "old", "two")]
    write_rows(folder / "train.tsv", rows)
    write_rows(folder / "validation.tsv", rows[:5])
    assert main(command(folder, "whole")) == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        assert main(command(folder, "model")) == 130
    assert {path.name for path in folder.glob("model*/checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    return folder


def command(folder: Path, name: str = "model") -> list[str]:
    files = ["--train_file", str(folder / "train.tsv"), "--validation_file", str(folder / "validation.tsv")]
    return ["train", "seq2seq", *files, *OPTIONS, "--output_dir", str(folder / name)]


@pytest.fixture
def left(interrupted, monkeypatch) -> Path:
    """The same folder, put back as it was after the test: data files are options, so it must stay in its place."""
    kept = interrupted.with_name("kept")
    shutil.copytree(interrupted, kept)
    yield interrupted
    shutil.rmtree(interrupted)
    kept.rename(interrupted)


def test_it_continues_as_if_nothing_had_happened(left, capsys):
    assert main(command(left)) == 0
    assert f"Resuming from step {STEP}" in capsys.readouterr().err
    weights = [load_file(left / name / "model.safetensors") for name in ("whole", "model")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert not (left / "model.training").exists()


@pytest.mark.parametrize(
    ("name", "value", "before"),
    [
        ("learning_rate", "0.1", "0.003"),
        ("per_device_train_batch_size", "4", "8"),
        ("lr_scheduler_type", "cosine", "linear"),
        ("max_steps", "12", "6"),
        ("warmup_steps", "3", "0.06"),
        ("weight_decay", "0.5", "0.01"),
        ("gradient_accumulation_steps", "2", "1"),
        ("label_smoothing_factor", "0.1", "0.0"),
        ("optim", "sgd", "adamw"),
        ("time_limit_minutes", "5", "None"),
        ("seed", "7", "42"),
        ("train_sampling_strategy", "group_by_length", "random"),
        ("adam_beta2", "0.9", "0.999"),
        ("max_grad_norm", "0.5", "1.0"),
        ("max_source_length", "8", "16"),
    ],
)
def test_another_option_that_shapes_the_result_is_refused(left, capsys, name, value, before):
    assert main(changed(command(left), name, value)) == 2
    message = capsys.readouterr().err
    assert f"--{name} was {before}" in message and f"and is {value}" in message and "--overwrite_output_dir" in message
    assert (left / "model.training" / f"checkpoint-{STEP}").is_dir() and not (left / "model").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--bleu_tokenizer", "char", "--generation_num_beams", "2", "--per_device_eval_batch_size", "2"],
        ["--eval_strategy", "no", "--logging_steps", "3", "--save_steps", "3", "--keep_checkpoints", "true"],
    ],
)
def test_what_only_measures_or_saves_may_be_another(left, capsys, options):
    assert main([*command(left), *options]) == 0
    assert f"Resuming from step {STEP}" in capsys.readouterr().err
    weights = [load_file(left / name / "model.safetensors") for name in ("whole", "model")]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


def test_what_measures_counts_where_it_chooses_the_checkpoint(left, capsys):
    best = ["--load_best_model_at_end", "true", "--metric_for_best_model", "bleu", "--output_dir", str(left / "best")]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        assert main([*command(left), *best]) == 130
    assert main([*command(left), *best, "--bleu_tokenizer", "char"]) == 2
    assert "--bleu_tokenizer was 13a and is char" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["train", "validation"])
def test_other_rows_in_the_same_file_are_refused(left, capsys, split):
    path = left / f"{split}.tsv"
    text = path.read_text()
    path.write_text(text.replace("a house red", "a house new"))
    assert main(command(left)) == 2
    assert f"this has changed: the {split} data; change it back to continue" in capsys.readouterr().err
    path.write_text(text)
    assert main(command(left)) == 0, "the rows are the old ones again"


def test_other_rows_begin_a_new_training_where_asked_for(left, capsys):
    write_rows(left / "train.tsv", ["ωμέγα ψ χ"] * 20)
    assert main([*command(left), "--overwrite_output_dir", "true"]) == 0
    assert "Resuming" not in capsys.readouterr().err
    assert (left / "model" / "tokenizer.json").read_text() != (left / "whole" / "tokenizer.json").read_text()


def test_without_a_checkpoint_other_rows_get_another_tokenizer(left):
    for checkpoint in (left / "model.training").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    write_rows(left / "train.tsv", ["zyx wvu"] * 20)
    assert main(command(left)) == 0
    assert (left / "model" / "tokenizer.json").read_text() != (left / "whole" / "tokenizer.json").read_text()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"])
@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_an_incomplete_checkpoint_is_refused(left, capsys, name, fault):
    path = left / "model.training" / f"checkpoint-{STEP}" / name
    content = path.read_bytes()
    path.unlink() if fault == "missing" else path.write_bytes(content[: len(content) // 2])
    assert main(command(left)) == 2
    message = capsys.readouterr().err
    assert f"{path} is {fault}" in message and "Traceback" not in message
    shutil.rmtree(path.parent)  # as the message advises
    assert main(command(left)) == 0
    assert "Resuming from step 2" in capsys.readouterr().err


def test_a_checkpoint_of_other_options_is_not_taken_by_name(left, capsys):
    checkpoint = str(left / "model.training" / f"checkpoint-{STEP}")
    other = [*command(left, "other"), "--resume_from_checkpoint", checkpoint]
    assert main([*other, "--learning_rate", "0.1"]) == 2
    assert "is of a training with other options (--learning_rate was 0.003 and is 0.1)" in capsys.readouterr().err
    assert main([*command(left, "other"), "--resume_from_checkpoint", str(left)]) == 2
    assert "there is no trainer_state.json, so no checkpoint" in capsys.readouterr().err


def test_times_add_up(left):
    path = left / "model.training" / f"checkpoint-{STEP}" / "trainer_state.json"
    state = json.loads(path.read_text())
    times = state["stateful_callbacks"]["TrainingClock"]["attributes"]
    assert 0 < times["elapsed"] <= times["commands"]
    times["elapsed"] += 1000  # as if the earlier command had trained for long
    times["commands"] += 1200
    path.write_text(json.dumps(state))
    began = time.monotonic()
    assert main(command(left)) == 0
    training = json.loads((left / "model" / "results.json").read_text())["training"]
    assert 1000 < training["minutes"] * 60 + 1
    whole = training["whole_command_minutes"] * 60
    assert 1200 < whole + 1 and whole < 1200 + times["commands"] + time.monotonic() - began + 1


OLD = {"task": "seq2seq", "train_file": ["train.tsv"], "size": "tiny", "seed": 42}  # as version 0.1.0 wrote it


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(OLD), "begun by another version of this package, which did not note in"),
        ('{"task": "seq2s', "run.json cannot be read"),
        ("", "run.json cannot be read"),
        ("[1, 2]", "begun by another version"),
    ],
)
def test_run_files_of_other_versions_and_damaged_ones(left, capsys, content, message):
    (left / "model.training" / "run.json").write_text(content)
    assert main(command(left)) == 2
    error = capsys.readouterr().err
    assert message in error and "--overwrite_output_dir to start again" in error and "Traceback" not in error
    for checkpoint in (left / "model.training").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    assert main(command(left)) == 0, "nothing is lost when there is no checkpoint"


def test_killed_after_the_model_was_finished(left, capsys):
    shutil.copytree(left / "model.training", left / "kept.training")
    assert main(command(left)) == 0
    finished = json.loads((left / "model" / "results.json").read_text())["training"]["id"]
    (left / "kept.training").rename(left / "model.training")  # as if there had been no time to remove it
    run = json.loads((left / "model.training" / "run.json").read_text())
    assert run["id"] == finished
    (left / ".model.unfinished").mkdir()
    assert main(command(left)) == 2
    assert "holds a finished model" in capsys.readouterr().err
    assert not (left / "model.training").exists() and not list(left.glob(".model*"))
    assert main([*command(left), "--overwrite_output_dir", "true"]) == 0
    assert "Resuming" not in capsys.readouterr().err


def test_an_unfinished_replacement_is_no_left_over(left, capsys):
    (left / "whole").rename(left / "model")  # another training made it
    assert main(command(left)) == 2
    assert (left / "model.training" / f"checkpoint-{STEP}").is_dir()
    assert main([*command(left), "--overwrite_output_dir", "true"]) == 0
    assert f"Resuming from step {STEP}" in capsys.readouterr().err
