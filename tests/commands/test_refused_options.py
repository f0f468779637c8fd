"""Options that can have no effect, or no good one, are refused before anything is read, with what would be right."""

import os
import re
from pathlib import Path

import pytest
from transformers.integrations import integration_utils

from roformer_lite.cli import main
from roformer_lite.commands.train import check_options, parse_options
from roformer_lite.errors import InputError
from roformer_lite.training import task_arguments
from roformer_lite.training.arguments import ModelArguments

REFUSED = [
    ("mlm", "--model_name_or_path m --size tiny", "--size tiny has no effect beside --model_name_or_path"),
    ("mlm", "--model_name_or_path m --vocab_size 9", "--vocab_size 9 has no effect beside --model_name_or_path"),
    ("mlm", "--tokenizer t --vocab_size 8192", "--vocab_size 8192 has no effect beside --tokenizer"),
    ("mlm", "--tokenizer t --tokenizer_algorithm bpe", "--tokenizer_algorithm bpe has no effect beside --tokenizer"),
    ("mlm", "--model_name_or_path m --tokenizer_min_frequency 1", "--tokenizer_min_frequency 1 has no effect"),
    ("classify", "--max_length 0", "--max_length=0 must be at least 3"),
    ("classify", "--max_length 2", "--max_length=2 must be at least 3"),
    ("classify", "--max_length 4 --text_pair_column b", "--max_length=4 must be at least 5"),
    ("tag", "--max_length 2", "--max_length=2 must be at least 3"),
    ("seq2seq", "--max_source_length 0", "--max_source_length=0 must be at least 3"),
    ("seq2seq", "--max_source_length 2", "--max_source_length=2 must be at least 3"),
    ("seq2seq", "--max_target_length 0", "--max_target_length=0 must be at least 2"),
    ("seq2seq", "--max_target_length 1", "--max_target_length=1 must be at least 2"),
    ("mlm", "--mlm_probability 0", "--mlm_probability=0.0 must be above 0 and at most 1"),
    ("mlm", "--mlm_probability nan", "--mlm_probability=nan must be finite and above 0"),
    ("mlm", "--num_train_epochs -1", "--num_train_epochs=-1.0 must be above 0"),
    ("mlm", "--num_train_epochs inf", "--num_train_epochs=inf must be finite and above 0"),
    ("mlm", "--max_steps 0", "--max_steps=0 must be at least 1"),
    ("mlm", "--max_steps -7", "--max_steps=-7 must be at least 1"),
    ("mlm", "--label_smoothing_factor 2", "--label_smoothing_factor=2.0 must be at least 0 and below 1"),
    ("mlm", "--time_limit_minutes nan", "--time_limit_minutes=nan must be finite and above 0"),
    ("mlm", "--learning_rate inf", "--learning_rate=inf must be finite and at least 0"),
    ("mlm", "--weight_decay nan", "--weight_decay=nan must be finite and at least 0"),
    ("mlm", "--seed -1", "--seed=-1 must be at least 0"),
    ("mlm", "--gradient_accumulation_steps 0", "--gradient_accumulation_steps=0 must be at least 1"),
    ("mlm", "--adam_beta1 1", "--adam_beta1=1.0 must be at least 0 and below 1"),
    ("mlm", "--max_grad_norm nan", "--max_grad_norm=nan must be finite and at least 0"),
    ("seq2seq", "--generation_num_beams 0", "--generation_num_beams=0 must be at least 1"),
    ("classify", "--text_column x --label_column x", "--text_column x is also the column of the label"),
    ("tag", "--token_column 2 --tag_column 2", "--token_column and --tag_column are both 2"),
    ("mlm", "--validation_file v.txt", "--validation_file and --test_file go with --train_file"),
]


@pytest.mark.parametrize(("task", "options", "message"), REFUSED, ids=lambda value: value)
def test_refused_by_the_quick_check(task, options, message):
    with pytest.raises(InputError) as refused:
        check_options(task, ["--dataset_name", "x", "--output_dir", "m", *options.split()])
    assert str(refused.value).startswith(message)


def test_held_out_rows_beside_validation_data(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    files = ["--train_file", str(tmp_path / "a.txt"), "--validation_file", str(tmp_path / "a.txt")]
    with pytest.raises(InputError, match=r"--validation_fraction 0.1 has no effect beside --validation_file"):
        check_options("mlm", [*files, "--validation_fraction", "0.1", "--output_dir", "m"])


def test_defaults_of_a_new_model_hold_where_nothing_is_given():
    arguments = ModelArguments()
    assert (arguments.size, arguments.vocab_size, arguments.tokenizer_algorithm) == ("mini", 8192, "bpe")
    assert arguments.tokenizer_min_frequency == 2


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("mlm", "--torch_compile_backend inducter", "--torch_compile_backend inducter must be one of .*inductor"),
        (
            "mlm",
            "--resume_from_checkpoint nowhere",
            "--resume_from_checkpoint nowhere: there is no trainer_state",
        ),
        ("seq2seq", "--generation_config nowhere", "--generation_config nowhere cannot be loaded: "),
        ("seq2seq", "--generation_config pyproject.toml", "--generation_config pyproject.toml cannot be loaded: "),
        ("mlm", "--label_names lables", r"--label_names lables: .* called labels"),
        ("mlm", "--metric_for_best_model blue", "--metric_for_best_model blue .* loss, perplexity or accuracy"),
        ("seq2seq", "--bleu_tokenizer ja-mecab", r"--bleu_tokenizer ja-mecab cannot be used here: .*sacrebleu\[ja\]"),
    ],
)
def test_refused_before_the_data_are_read(task, options, message):
    needed = ["--dataset_name", "x", "--output_dir", "m", "--use_cpu", "true"]
    with pytest.raises(InputError, match=message):
        parse_options(task, [*needed, *options.split()])
    parse_options(task, [*needed, "--label_names", "labels", "--metric_for_best_model", "eval_loss"])


def test_bleu_tokenizers_are_those_of_sacrebleu(capsys):
    from sacrebleu.metrics.bleu import BLEU

    assert set(task_arguments.BleuTokenizer.__args__) == set(BLEU.TOKENIZERS)
    with pytest.raises(SystemExit):
        check_options("seq2seq", ["--dataset_name", "x", "--output_dir", "m", "--bleu_tokenizer", "klingon"])
    assert "invalid choice: 'klingon' (choose from '13a', 'zh'" in capsys.readouterr().err


def refused_place(output_dir: str, capsys: pytest.CaptureFixture) -> str:
    assert main(["train", "mlm", "--dataset_name", "x", "--output_dir", output_dir]) == 2
    return capsys.readouterr().err


def test_places_where_no_model_can_be_saved(tmp_path, capsys, monkeypatch):
    """Each of these was found when the trained model was to be saved, or with a traceback."""
    monkeypatch.chdir(tmp_path)
    Path("dangling").symlink_to("nowhere/model")
    assert "--output_dir dangling is a link to nowhere/model, which does not exist" in refused_place(
        "dangling", capsys
    )
    assert "--output_dir . names no new directory; give it a name, such as model" in refused_place(".", capsys)
    assert "names no new directory" in refused_place("a/..", capsys)
    assert "--output_dir /proc is a mount point" in refused_place("/proc", capsys)
    Path("file").write_text("")
    assert re.search(r"--output_dir file/model: .*/file is not a directory", refused_place("file/model", capsys))
    long = "m" * 242  # itself short enough, but not with what is added while the model is written
    assert re.search("no directory can be made in .*: File name too long", refused_place(long, capsys))
    assert "no directory can be made in /proc/1" in refused_place("/proc/1/model", capsys)
    assert sorted(os.listdir()) == ["dangling", "file"]


def test_a_link_to_a_directory_is_followed(tmp_path):
    (tmp_path / "disk" / "model").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "model")
    options = parse_options(
        "mlm", ["--dataset_name", "x", "--output_dir", str(tmp_path / "link"), "--use_cpu", "true"]
    )
    assert options.output_dir == tmp_path / "disk" / "model"
    assert options.training.output_dir == str(tmp_path / "disk" / "model.training")


def test_packages_that_are_needed_in_the_end_are_missed_at_once(monkeypatch, capsys):
    from roformer_lite.commands import train

    monkeypatch.setattr(train, "TRAINING_PACKAGES", {"rich": "train", "matplotlib_of_another_name": "train"})
    assert main(["train", "mlm", "--dataset_name", "x", "--output_dir", "m"]) == 2
    assert "training needs matplotlib_of_another_name; install" in capsys.readouterr().err


def test_a_tracker_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(integration_utils, "is_tensorboard_available", lambda: False)
    message = "--report_to tensorboard: its library is not installed; install it with pip install tensorboard$"
    with pytest.raises(InputError, match=message):
        parse_options("mlm", ["--dataset_name", "x", "--output_dir", "m", "--report_to", "tensorboard"])


@pytest.mark.parametrize(
    ("task", "metric", "best_is_largest"),
    [("causal", "bits_per_byte", False), ("mlm", "eval_perplexity", False), ("classify", "macro_f1", True)],
)
def test_which_value_of_a_metric_is_the_best(task, metric, best_is_largest):
    options = ["--dataset_name", "x", "--output_dir", "m", "--use_cpu", "true", "--metric_for_best_model", metric]
    assert parse_options(task, options).training.greater_is_better == best_is_largest
    assert parse_options(task, [*options, "--greater_is_better", "true"]).training.greater_is_better is True
