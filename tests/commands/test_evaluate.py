"""`evaluate`: mistakes in the data, notes of the training, and places to write. (Its
table and its metrics are tested in test_cli.py.)"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from program import evaluated, refused, results_of, run, write_rows
from saved_models import save_model

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
        files = {"test_file": data, "output_dir": tmp_path / "e"}
        assert message in refused("evaluate", classifier, **files, **options)
    assert not (tmp_path / "e").exists()


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


def test_an_output_directory_is_complete_or_absent(classifier, tmp_path, capsys):
    data = write_csv(tmp_path / "b.csv", "text,label", "a cat,a", "a dog,b")
    command = ("evaluate", classifier, "--test_file", data, "--output_dir")
    assert "exists already" in refused(*command, classifier)
    # The option replaces the separator of the training, which is a semicolon.
    run(*command, tmp_path / "e", label_separator=",")
    assert "examples/s" not in capsys.readouterr().err
    assert results_of(tmp_path / "e")["settings"]["label_separator"] == ","
    assert {path.name for path in tmp_path.iterdir()} == {"b.csv", "e"}
