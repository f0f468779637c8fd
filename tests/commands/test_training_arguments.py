"""What transformers' TrainingArguments and Trainer refuse is told in a sentence, before the data are read."""

import pytest

from roformer_lite.cli import main
from roformer_lite.commands.train import parse_options
from roformer_lite.training.trainer_arguments import RoFormerLiteTrainingArguments

CASES = {
    "--report_to tensorbord": "--report_to tensorbord: tensorbord is not supported",
    "--report_to neptune": "--report_to neptune: ",  # a library that is not installed here
    "--save_strategy best --load_best_model_at_end false": "--save_strategy best needs --metric_for_best_model",
    "--optim_args a=b=c": "--optim_args a=b=c must be name=value",
    "--torch_compile_mode fast": "--torch_compile_mode fast must be one of",
    "--accelerator_config nowhere.json": "nowhere.json",
    "--deepspeed nowhere.json": "deepspeed",
    "--fsdp xyz": "fsdp",
    "--lr_scheduler_kwargs {bad": "--lr_scheduler_kwargs {bad: a JSON object is needed",
    "--load_best_model_at_end true --save_strategy no": "save and eval strategy",
}


@pytest.mark.parametrize("options", CASES)
def test_one_sentence(options, tmp_path, capsys):
    (tmp_path / "data.tsv").write_text("a file that nobody reads, because it would be refused")
    files = ["--train_file", str(tmp_path / "data.tsv"), "--output_dir", str(tmp_path / "m"), "--use_cpu", "true"]
    assert main(["train", "seq2seq", *files, *options.split()]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(errors) == 1 and CASES[options] in errors[0]
    assert not list(tmp_path.glob("m*"))


@pytest.mark.parametrize("examples, epochs", [(0, 20), (100, 20), (15_000, 20), (45_000, 6), (5_000_000, 3)])
def test_epochs_follow_the_data(examples, epochs, tmp_path):
    args = RoFormerLiteTrainingArguments(str(tmp_path / "out"), use_cpu=True)
    args.follow_data(examples)
    assert args.num_train_epochs == epochs
    told = RoFormerLiteTrainingArguments(str(tmp_path / "out"), num_train_epochs=7, use_cpu=True)
    told.follow_data(examples)
    assert told.num_train_epochs == 7


def test_a_launcher_changes_nothing_that_a_training_is_known_by(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("a line\n")
    command = ["--train_file", str(tmp_path / "text.txt"), "--output_dir", str(tmp_path / "model")]
    alone = parse_options("mlm", command)
    monkeypatch.setattr(RoFormerLiteTrainingArguments, "_is_launched_on_a_cpu", lambda self: True)
    launched = parse_options("mlm", command)
    assert launched.training.use_cpu and not alone.training.use_cpu
    assert launched.identity() == alone.identity()
