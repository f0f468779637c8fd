"""`evaluate`: mistakes in the data, notes of the training, and places to write. (Its metrics are
tested in test_one_way_to_answer.py, and its table in test_api.py.)"""

import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from conftest import data_beside
from program import TINY, evaluated, refused, train, write_rows
from saved_models import save_model

from roformer_lite.commands.evaluate_options import MeasuringArguments
from roformer_lite.options.tasks import LENGTH_OPTIONS, TASK_ARGUMENTS


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    return save_model("classify", tmp_path_factory.mktemp("classifier") / "model")


def test_an_unknown_bleu_tokenizer_is_refused(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", [{"source": "a b", "target": "b a"}] * 4)
    message = "--bleu_tokenizer unknown is not available"
    train_command = f"train seq2seq {TINY} --bleu_tokenizer unknown"
    assert message in refused(train_command, train_file=data, output_dir=tmp_path / "m")
    saved = save_model("seq2seq", tmp_path / "saved")
    evaluate_command = "evaluate --bleu_tokenizer unknown --device cpu"
    assert message in refused(evaluate_command, saved, test_file=data)


def test_mistakes_in_the_data_name_their_line_and_write_nothing(classifier, tmp_path):
    data = tmp_path / "b.csv"
    data.write_text("text,label\na cat,maybe\na dog,maybe\n")
    for options, message in data_beside(__file__):
        assert message in refused("evaluate", classifier, test_file=data, **options)


def test_models_without_notes_use_the_defaults(classifier, tmp_path):
    """A model of an earlier version has fewer notes, and one that was not trained here has none.
    Wrong notes are refused."""
    data = tmp_path / "b.csv"
    data.write_text("text,label\na cat,a\na dog,b\nthe old tree,c\n")
    expected = evaluated(classifier, data)["metrics"]
    model = shutil.copytree(classifier, tmp_path / "m")
    notes = model / "results.json"
    notes.write_text('{"settings": {"pairs": false, "label_separator": ","}}')
    assert evaluated(model, data)["metrics"] == expected
    notes.unlink()
    assert evaluated(model, data)["metrics"] == expected
    notes.write_text('{"settings": {"max_length": 1}}')
    message = "settings: --max_length=1 must be finite, at least 3"
    assert message in refused("evaluate", model, test_file=data)


@pytest.mark.parametrize("task", ["mlm", "seq2seq"])
def test_texts_longer_than_a_table_of_positions(tmp_path, task):
    """They are split into blocks or truncated, as in a training."""
    row = {"text": "fine " * 400, "source": "fine " * 40, "target": "fine " * 40}
    data = write_rows(tmp_path / "a.jsonl", [row] * 8)
    table = "position_embedding_type=learned max_position_embeddings=12"
    train(f"{task} {TINY} {table} --max_steps 1", data, tmp_path / "m")
    metrics = evaluated(tmp_path / "m", data)["metrics"]["test"]
    assert np.isfinite(list(metrics.values())).all()


def test_the_measuring_options_of_all_tasks_except_lengths():
    of_tasks = {name for kind in TASK_ARGUMENTS.values() for name in kind.measuring_options}
    named = {option.name for option in fields(MeasuringArguments)}
    assert named == of_tasks - set(LENGTH_OPTIONS)


def test_a_comma_separates_the_labels_of_a_model_without_notes(tmp_path):
    model = save_model("labels", tmp_path / "m")
    (model / "results.json").unlink()
    data = tmp_path / "b.csv"
    data.write_text('text,label\na cat,"a,b"\n')
    expected = evaluated(model, data, label_separator=",")["metrics"]
    assert evaluated(model, data)["metrics"] == expected


def test_an_option_replaces_that_of_the_training(classifier, tmp_path):
    data = tmp_path / "b.csv"
    data.write_text("text,label\na cat,a\na dog,b\n")
    assert evaluated(classifier, data, label_separator=",")["settings"]["label_separator"] == ","
