"""A training ends with the best model, with averaged weights, or with none if it diverged."""

import csv
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import TrainerControl, TrainerState

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.evaluation import evaluate
from roformer_lite.measuring.significance import Measured, mean
from roformer_lite.recipes.classify import weighted_loss
from roformer_lite.training.callbacks import (
    AVERAGED_WEIGHTS,
    TrainingClock,
    WeightAveraging,
)

COLOURS = ["red", "green", "blue", "white"]
OPTIONS = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 num_hidden_layers=1 --vocab_size 300 "
    "--join_baseline false --word_dropout 0 --baselines false --seed 3 --learning_rate 3e-3 --use_cpu --disable_tqdm"
)
STOPPING = "--num_train_epochs 30 --training_arguments metric_for_best_model=loss save_total_limit=50".split()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Data whose validation labels contradict the training labels, so longer training is worse."""
    folder = tmp_path_factory.mktemp("data")
    for name, shift in (("train", 0), ("validation", 1)):
        rows = [
            f"{colour} {colour}\t{COLOURS[(i + shift) % 4]}"
            for i, colour in enumerate(COLOURS * 12)
        ]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


def _train(data: Path, out: Path, *options: str) -> dict:
    files = ["--train_file", str(data / "train.tsv")]
    files += ["--validation_file", str(data / "validation.tsv"), *OPTIONS.split()]
    assert main(["train", "classify", *files, "--output_dir", str(out), *options]) == 0
    return json.loads((out / "results.json").read_text())


def test_the_best_model_is_kept_and_training_stops(data, tmp_path):
    results = _train(
        data, tmp_path / "model", *STOPPING, "--early_stopping_patience", "3", "--keep_checkpoints"
    )

    training = results["training"]
    losses = {}
    for folder in (tmp_path / "model.training").glob("checkpoint-*"):
        log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        losses |= {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    chosen = training["chosen_step"]
    assert losses[chosen] == min(losses.values())
    steps = sorted(losses)
    assert training["steps"] == steps[-1] and len(steps) == steps.index(chosen) + 1 + 3 < 30
    assert f"step {chosen:,} is kept" in training["what_happened"]
    assert training["what_happened"] in (tmp_path / "model" / "README.md").read_text()
    assert results["metrics"]["validation"]["loss"] == pytest.approx(losses[chosen], abs=1e-4)

    averaged = load_file(
        tmp_path / "model.training" / f"checkpoint-{chosen}" / "averaged_weights.safetensors"
    )
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in averaged.items())


def test_the_best_model_is_kept_even_between_checkpoints(data, tmp_path):
    """Every evaluated model is saved, so that the card names the one that is there."""
    steps = "eval_strategy=steps eval_steps=1 save_strategy=steps save_steps=4".split()
    options = ["--num_train_epochs", "4", "--keep_checkpoints", *STOPPING[2:], *steps]
    results = _train(data, tmp_path / "model", *options)
    chosen = results["training"]["chosen_step"]
    assert chosen % 4
    best = load_file(tmp_path / "model.training" / f"checkpoint-{chosen}" / AVERAGED_WEIGHTS)
    saved = load_file(tmp_path / "model" / "model.safetensors")
    assert all(torch.equal(saved[name], tensor) for name, tensor in best.items())


@pytest.mark.parametrize("given", ["eval_strategy=steps eval_steps=3", "save_strategy=steps"])
def test_models_are_evaluated_when_they_are_saved(data, tmp_path, given):
    """If only one strategy is given, the other one follows it, so that the best is kept."""
    options = ["--num_train_epochs", "3", "--training_arguments", *given.split(), "save_steps=3"]
    if "eval" in given:
        options.pop()
    training = _train(data, tmp_path / "model", *options)["training"]
    assert training["chosen_step"] % 3 == 0 and "is kept" in training["what_happened"]


@pytest.mark.slow
@pytest.mark.parametrize("lost", [2, 0])
def test_a_resumed_training_stops_at_the_same_step(data, tmp_path, lost):
    """Patience counts the evaluations before the interruption, also after the directory was moved.

    A training that had already stopped is only measured.
    """
    options = [*STOPPING, "--early_stopping_patience", "4"]
    whole = _train(data, tmp_path / "whole", *options, "--keep_checkpoints")
    shutil.move(tmp_path / "whole.training", tmp_path / "again.training")
    steps = {
        int(path.name.split("-")[1]): path
        for path in (tmp_path / "again.training").glob("checkpoint-*")
    }
    for step in sorted(steps)[len(steps) - lost :]:
        shutil.rmtree(steps[step])
    again = _train(data, tmp_path / "again", *options)
    for name in ("steps", "what_happened", "arguments"):
        assert again["training"][name] == whole["training"][name]
    saved = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "again")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("separator", ["", "+"])
def test_labels_of_rows_to_measure_only_are_missed(data, tmp_path, capsys, separator):
    """The accuracy in the results equals the accuracy of the labels that `predict` writes."""
    rows = (data / "train.tsv").read_text().splitlines()
    # A row with two of the new labels is one row.
    label = "pink+red+teal" if separator else "pink"
    new = [f"pink pink\t{label}", "teal teal\tteal"]
    for name, kept in (("v", 9), ("t", 30)):
        (tmp_path / f"{name}.tsv").write_text("\n".join([*rows[:kept], *new]) + "\n")
    files = {
        "train": data / "train.tsv",
        "validation": tmp_path / "v.tsv",
        "test": tmp_path / "t.tsv",
    }
    command = [
        "train",
        "classify",
        *(f"--{split}_file={path}" for split, path in files.items()),
        *OPTIONS.split(),
    ]
    own = "--join_baseline true --num_train_epochs 2".split()
    if separator:
        own += ["--label_separator", "+"]
    model = str(tmp_path / "m")
    assert main([*command, *own, "--output_dir", model]) == 0
    message = (
        "2 of the rows of the test data have 2 labels that the training data lack (pink, teal)"
    )
    assert message in capsys.readouterr().err
    results = json.loads(Path(model, "results.json").read_text())
    assert results["by_label"]["test"]["pink"]["support"] == 1
    measured = [results["metrics"], *results["parts"].values()]
    assert len(measured) == 2 and all(
        by_split["test"]["accuracy"] <= 29 / 31 for by_split in measured
    )

    answers = ["--input_file", str(tmp_path / "t.tsv"), "--text_column", "text", "--prefix", "our_"]
    assert main(["predict", model, *answers, "--output_file", str(tmp_path / "answers.csv")]) == 0
    with (tmp_path / "answers.csv").open() as stream:
        pairs = [(row["label"], row["our_label"]) for row in csv.DictReader(stream)]
    assert results["metrics"]["test"]["accuracy"] == pytest.approx(
        np.mean([true == ours for true, ours in pairs])
    )
    evaluation = str(tmp_path / "e")
    files = ["--test_file", str(tmp_path / "t.tsv"), "--output_dir", evaluation]
    assert main(["evaluate", model, *files]) == 0
    again = json.loads(Path(evaluation, "results.json").read_text())["metrics"]["test"]
    assert again == pytest.approx(results["metrics"]["test"], abs=1e-5)
    (tmp_path / "t.tsv").write_text("\n".join([rows[0], *new]) + "\n")
    if not separator:
        assert main(["evaluate", model, "--test_file", str(tmp_path / "t.tsv")]) == 2
        assert (
            "pink, teal are all unknown to the model, which has: blue, green"
            in capsys.readouterr().err
        )


def test_a_label_of_one_row_is_learned(tmp_path):
    """A row that is the only one with its label is never held out."""
    rows = [f"{colour} {number}\t{colour}" for number in range(40) for colour in COLOURS]
    rows += [f"number {number}\t{number}" for number in range(40)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    command = ["train", "classify", "--train_file", str(tmp_path / "rows.tsv"), *OPTIONS.split()]
    assert main([*command, "--max_steps", "1", "--output_dir", str(tmp_path / "m")]) == 0
    labels = json.loads((tmp_path / "m" / "config.json").read_text())["label2id"]
    assert labels.keys() == {*COLOURS, *map(str, range(40))}
    found = json.loads((tmp_path / "m" / "results.json").read_text())["rows"]
    assert found["train"] + found["validation"] == 200 and 10 <= found["validation"] < 20


def test_rare_labels_count_as_much_as_frequent_ones(tmp_path):
    """A text with both labels gets the one that is rare in the data only if labels are weighted."""
    rows = ["new things\tcommon"] * 50 + ["old things\tcommon"] * 30 + ["old things\trare"] * 20
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    recall = {}
    options = [*OPTIONS.split(), "--join_baseline", "true", "--num_train_epochs", "2"]
    options += ["--baselines", "true"]
    files = [f"--{split}_file={tmp_path / 'rows.tsv'}" for split in ("train", "validation")]
    for weights in ("", "balanced"):
        own = ["--class_weights", weights] if weights else []
        model = tmp_path / f"m{weights}"
        command = ["train", "classify", *files, *options, *own, "--output_dir", str(model)]
        assert main(command) == 0
        results = json.loads((model / "results.json").read_text())
        recall[weights] = results["by_label"]["validation"]["rare"]["recall"]
        assert results["main_metric"] == ("macro_f1" if weights else "accuracy")
        # The model, its encoder and the baselines are compared by the same metric.
        assert len(results["p_values"]["validation"]) == 4
    assert recall == {"": 0, "balanced": 1}


def test_weighted_loss_is_that_of_torch():
    weights = torch.tensor([0.5, 3.0, 1.0])
    labels = torch.tensor([0, 1, 2, 1])
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = torch.nn.functional.cross_entropy(logits, labels, weights, reduction="sum")
    outputs = SimpleNamespace(logits=logits)
    loss = weighted_loss(weights, smoothing=0.0, outputs=outputs, labels=labels)
    torch.testing.assert_close(loss, expected / 4)
    accumulated = weighted_loss(weights, 0.0, outputs, labels, num_items_in_batch=8)
    torch.testing.assert_close(accumulated, expected / 8)


def test_a_precision_that_no_score_reaches_leaves_no_answer(data, tmp_path, capsys):
    """Each text of the validation data has every label, so that no score is reliable."""
    shutil.copy(data / "train.tsv", tmp_path)
    rows = [f"{colour} {colour}\t{label}" for colour in COLOURS for label in COLOURS]
    (tmp_path / "validation.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    _train(tmp_path, tmp_path / "m", "--max_steps", "1", "--min_precision", "0.9")
    assert "`predict` assigns no label" in capsys.readouterr().err
    assert "`predict` assigns no label" in (tmp_path / "m" / "README.md").read_text()
    (tmp_path / "lines.txt").write_text("red red\n")
    files = ["--input_file", str(tmp_path / "lines.txt")]
    files += ["--output_file", str(tmp_path / "out.txt")]
    for options, answer in (([], "-"), (["--threshold", "0"], None)):
        assert main(["predict", str(tmp_path / "m"), *files, *options]) == 0
        label = (tmp_path / "out.txt").read_text().split("\t")[0]
        assert label == answer if answer else label in COLOURS


def test_answers_below_the_chosen_score_are_left_out(tmp_path):
    """Only half of the texts reveal their label, and `predict` gives a label to this half only."""
    clear = [f"{colour} {colour}\t{colour}" for colour in COLOURS * 20]
    unclear = [f"some thing\t{COLOURS[(i * 7) % 4]}" for i in range(80)]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\tlabel", *clear, *unclear]) + "\n")
    files = [f"--{split}_file={tmp_path / 'rows.tsv'}" for split in ("train", "validation", "test")]
    own = "--join_baseline true --baselines true --num_train_epochs 2 --min_precision 0.95".split()
    model = tmp_path / "m"
    command = ["train", "classify", *files, *OPTIONS.split(), *own, "--output_dir", str(model)]
    assert main(command) == 0
    results = json.loads((model / "results.json").read_text())
    card = (model / "README.md").read_text()
    assert 0.25 < results["settings"]["threshold"] <= 1
    assert re.search(r"labels 0\.500 of the rows\D+1\.000", card)
    assert "p = " in results["verdict"] and "expected calibration error" in card
    assert "reliability.png" in card and (model / "reliability.png").read_bytes().startswith(
        b"\x89PNG"
    )
    (tmp_path / "lines.txt").write_text("red red\nsome thing\n")
    for given, second in (([], "-"), (["--threshold", "0.01"], COLOURS)):
        command = ["predict", str(model), "--input_file", str(tmp_path / "lines.txt"), *given]
        assert main([*command, "--output_file", str(tmp_path / "out.txt")]) == 0
        answers = [line.split("\t")[0] for line in (tmp_path / "out.txt").read_text().splitlines()]
        assert answers[0] == "red" and answers[1] in second


def test_average_follows_the_formula_and_changes_places_exactly():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    model.tied = model.weight
    averaging = WeightAveraging(0.9)
    of_trainer = (SimpleNamespace(), TrainerState(), TrainerControl())
    averaging.on_train_begin(*of_trainer, model=model)
    expected = torch.zeros_like(model.weight)
    for step in range(100):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        averaging.on_step_end(*of_trainer, model=model)
        own = model.weight.detach().clone()
        decay = min(0.9, (1 + step) / (10 + step)) if step else 0
        expected = decay * expected + (1 - decay) * own
        with averaging.in_place_of(model):
            torch.testing.assert_close(model.weight.detach(), expected)
        assert torch.equal(model.weight, own) and (not step or not torch.equal(own, expected))


@pytest.fixture
def exploding(monkeypatch) -> None:
    """Make weights infinite in step 5 of every training, as too high a learning rate would."""
    tick = TrainingClock.on_step_end

    def on_step_end(self, args, state, control, model, **kwargs):
        tick(self, args, state, control, model=model, **kwargs)
        if state.global_step == 5:
            with torch.no_grad():
                next(model.parameters()).mul_(torch.inf)

    monkeypatch.setattr(TrainingClock, "on_step_end", on_step_end)


def diverged(data: Path, out: Path, *options: str) -> None:
    command = ["train", "classify", "--train_file", str(data / "train.tsv"), "--max_steps", "8"]
    command += ["--per_device_train_batch_size", "8", *OPTIONS.split(), "--output_dir", str(out)]
    assert main([*command, "--training_arguments", "logging_steps=1000", *options]) == 2
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "last_step"),
    [
        # The divergence is noticed at the next log.
        ("logging_steps=3 save_strategy=no", 6),
        # It is noticed before a checkpoint is written.
        ("save_strategy=steps save_steps=5", 5),
        # It is noticed at the end of the epoch.
        ("save_strategy=no", 6),
    ],
)
def test_a_training_that_diverges_stops_and_saves_no_model(
    data, tmp_path, exploding, capsys, arguments, last_step
):
    diverged(data, tmp_path / "m", *arguments.split())
    message = capsys.readouterr().err
    assert (
        "diverged" in message
        and f"step {last_step}" in message
        and "--learning_rate (now 0.003)" in message
    )


def test_the_last_good_checkpoint_is_kept(data, tmp_path, exploding, capsys):
    saving = "save_strategy=steps save_steps=2 save_total_limit=1 --ema_decay 0.9"
    diverged(data, tmp_path / "m", *saving.split())
    good = tmp_path / "m.training" / "checkpoint-4"
    assert str(good) in capsys.readouterr().err
    assert [path.name for path in good.parent.glob("checkpoint-*")] == ["checkpoint-4"]
    for name in ("model.safetensors", AVERAGED_WEIGHTS):
        assert all(torch.isfinite(tensor).all() for tensor in load_file(good / name).values())


def test_metrics_that_are_no_numbers_are_not_published():
    measured = Measured({"loss": float("nan")}, mean(np.ones(1)))
    recipe = SimpleNamespace(evaluate=lambda *args, **kwargs: measured)
    with pytest.raises(InputError, match="test data.* loss nan"):
        evaluate(SimpleNamespace(), recipe, "test", Dataset.from_dict({}), 1, seed=0)
