"""`evaluate`: its options, mistakes in the data, and notes of the training. (Its table and its metrics
are tested in test_cli.py.)"""

import json
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from program import evaluated, refused, results_of, write_rows
from saved_models import save_model

from roformer_lite.commands.evaluate_options import MeasuringArguments
from roformer_lite.measuring.confusion_picture import draw_confusion, most_confused
from roformer_lite.options.tasks import LENGTH_OPTIONS, TASK_ARGUMENTS
from roformer_lite.saved.saved_model import load_model


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    return save_model("classify", tmp_path_factory.mktemp("classifier") / "model")


def write_csv(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", "utf-8")
    return path


def test_mistakes_in_the_data_name_their_line_and_write_nothing(classifier, tmp_path):
    data = write_csv(tmp_path / "b.csv", "text,label", "a cat,maybe", "a dog,maybe")
    for options, message in (
        ({}, "labels maybe are all unknown to the model, which has: b, c, a"),
        (
            {"label_column": "class"},
            "b.csv:2: no column 'class'; the columns are: text, label",
        ),
        (
            {"text_pair_column": "label", "label_column": "x"},
            "--text_pair_column label: this model takes single texts",
        ),
    ):
        assert message in refused("evaluate", classifier, test_file=data, **options)


def test_models_without_notes_use_the_defaults(classifier, tmp_path):
    """A model of an earlier version has fewer notes, and one that was not trained here has none.
    Wrong notes are refused."""
    data = write_csv(tmp_path / "b.csv", "text,label", "a cat,a", "a dog,b", "the old tree,c")
    found = []
    older = {"settings": {"pairs": False, "label_separator": ","}}
    for name, notes in {"new": results_of(classifier), "old": older, "none": None}.items():
        model = shutil.copytree(classifier, tmp_path / name)
        (model / "results.json").write_text(json.dumps(notes))
        if notes is None:
            (model / "results.json").unlink()
        found.append(evaluated(model, data)["metrics"])
    assert found[0] == found[1] == found[2]
    (tmp_path / "old" / "results.json").write_text(json.dumps({"settings": {"max_length": 1}}))
    message = "settings: --max_length=1 must be finite, at least 3"
    assert message in refused("evaluate", tmp_path / "old", test_file=data)


@pytest.mark.parametrize("kind", ["mlm", "seq2seq"])
def test_texts_longer_than_a_table_of_positions(tmp_path, kind):
    """They are split into blocks or truncated, as in a training."""
    directory = save_model(kind, tmp_path / "m")
    model = load_model(directory)
    config = model.config
    for stack in [config] if kind == "mlm" else [config.encoder, config.decoder]:
        stack.update({"position_embedding_type": "learned", "max_position_embeddings": 12})
        stack.rope_parameters = None
    with_table = type(model)(config)
    if kind == "seq2seq":
        with_table.generation_config = model.generation_config
    with_table.save_pretrained(directory)
    row = {"text": "fine " * 400, "source": "fine " * 40, "target": "fine " * 40}
    data = write_rows(tmp_path / "a.jsonl", [row])
    metrics = evaluated(directory, data)["metrics"]["test"]
    assert np.isfinite(list(metrics.values())).all()


def test_the_measuring_options_of_all_tasks_except_lengths():
    of_tasks = {name for kind in TASK_ARGUMENTS.values() for name in kind.measuring_options}
    named = {option.name for option in fields(MeasuringArguments)}
    assert named == of_tasks - set(LENGTH_OPTIONS)


def test_an_option_replaces_that_of_the_training(classifier, tmp_path):
    data = write_csv(tmp_path / "b.csv", "text,label", "a cat,a", "a dog,b")
    assert evaluated(classifier, data, label_separator=",")["settings"]["label_separator"] == ","


def test_confusions_of_many_labels(tmp_path):
    """If there are many labels, only those that are confused most often are shown."""
    generator = np.random.default_rng(0)
    labels = [f"label {i:03}" for i in range(150)]
    true = [labels[i] for i in generator.integers(0, 150, 5000)]
    predicted = [
        label if chance < 0.8 else labels[0]
        for label, chance in zip(true, generator.random(5000), strict=True)
    ]
    true += [labels[149]] * 40
    predicted += [labels[17]] * 40
    shown = most_confused(true, predicted)
    assert len(shown) == 25 and {labels[149], labels[17], labels[0]} < set(shown)
    assert most_confused(["a", "b", "b"], ["a", "a", "c"]) == ["a", "b", "c"]
    draw_confusion(true, predicted, tmp_path / "p.png")


@pytest.mark.filterwarnings("ignore:Glyph")
def test_picture_of_labels_in_any_script(tmp_path):
    true = ["体育", "$x$_{", "a very long name of a label that has no room", "体育"]
    draw_confusion(true, [*true[:3], "$x$_{"], tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
