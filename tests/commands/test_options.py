"""Options of `train`: mistakes are named at once, before any data are read, and values reach the
libraries."""

import os
import re
from pathlib import Path

import pytest
from conftest import data_beside
from program import refused

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.options.run import parse_run
from roformer_lite.options.values import command_words
from roformer_lite.training.defaults import with_defaults
from roformer_lite.training.fit import trainer_class
from roformer_lite.training.training_arguments import make_training_arguments

FILE = data_beside(__file__)
NEEDED = ["--dataset_name", "x", "--output_dir", "m"]


@pytest.mark.parametrize(("given", "message"), FILE["training_arguments"].items())
def test_training_arguments_are_checked_by_their_full_names(given, message):
    with pytest.raises(InputError, match=message):
        arguments_of("classify", "--optim", "muon", "--training_arguments", given)


@pytest.mark.parametrize(("options", "message"), FILE["without effect"].items())
def test_options_without_an_effect_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        parse_run("classify", [*NEEDED, *options.split()])


@pytest.mark.parametrize(("command", "typed", "meant"), FILE["misspelt"])
def test_an_unknown_option_names_the_one_that_is_meant(command, typed, meant):
    message = refused(command, typed, 1)
    assert meant in message and typed in message.replace("_", "-") + message


def test_spellings_of_options(current_folder):
    run = parse_run(
        "classify",
        "--dataset_name x --output_dir m --use_cpu --baselines false --bf16 "
        "--fit_head=false".split(),
    )
    assert run.data.dataset_name == "x" and run.training.use_cpu and run.training.bf16
    assert not run.training.baselines and not run.data.fit_head
    for name in ("a.csv", "b.csv"):
        Path(name).write_text("text,label\n")
    twice = "--train_file a.csv --output_dir ~/m --train_file b.csv".split()
    run = parse_run("classify", twice)
    assert run.data.train_file == ["a.csv", "b.csv"]
    assert run.output_dir == Path.home() / "m"
    # The command line replaces the files of a `run.yaml`.
    run.save(Path())
    assert parse_run("run.yaml", twice[-4:]).data.train_file == ["b.csv"]
    # The beginning of a name is not enough.
    with pytest.raises(InputError, match="--output"):
        parse_run("classify", ["--dataset_name", "x", "--output", "m"])


def test_the_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert re.fullmatch(r"roformer-lite \d+\.\d+\S*\n", capsys.readouterr().out)


def arguments_of(task: str, *options: str):
    run = parse_run(task, [*NEEDED, "--use_cpu", *options])
    return make_training_arguments(with_defaults(run), trainer_class(task).args_class)


def test_values_reach_transformers():
    options = "--training_arguments lr_scheduler_type=cosine_with_restarts --learning_rate 2e-4"
    more = "--training_arguments eval_steps=0.25 adam_beta2=1e-3".split()
    more.append('lr_scheduler_kwargs={"num_cycles": 2}')
    args = arguments_of("seq2seq", *options.split(), *more)
    assert args.lr_scheduler_type == "cosine_with_restarts"
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}
    assert (args.learning_rate, args.eval_steps, args.adam_beta2) == (2e-4, 0.25, 1e-3)
    assert args.eval_strategy == args.save_strategy == "epoch" and args.load_best_model_at_end
    words = command_words({"training_arguments": {"run_name": "1.10"}})
    assert arguments_of("mlm", *words).run_name == "1.10"
    args = arguments_of("mlm", "--training_arguments", "eval_strategy=no")
    assert not args.load_best_model_at_end
    for metric, is_greater_better in (("perplexity", False), ("accuracy", True)):
        args = arguments_of("mlm", "--training_arguments", f"metric_for_best_model={metric}")
        assert args.greater_is_better is is_greater_better


def test_places_where_no_model_can_be_saved(current_folder):
    """Each of these would otherwise be noticed only when the trained model is saved."""
    Path("file").write_text("")
    for place, message in (
        (".", "pass the name of a new directory"),
        ("/proc", "pass the name of a new directory"),
        ("/dev/null", "pass the name of a new directory"),
        ("~no-such-user/m", "pass the name of a new directory"),
        ("file/model", "Not a directory"),
        # The name is too long only with the ending that it has while the model is written.
        ("m" * 242, "File name too long"),
    ):
        assert message in refused("train mlm --dataset_name x", output_dir=place)
    for option in ("dataset_name", "model_name_or_path"):
        command = f"train mlm --dataset_name x --{option} . --output_dir m"
        assert f"lies within --{option}" in refused(command)
    assert os.listdir() == ["file"]
    Path("disk").mkdir()
    Path("link").symlink_to("disk")
    run = parse_run("mlm", ["--dataset_name", "x", "--output_dir", "link"])
    assert run.output_dir == current_folder / "disk"
