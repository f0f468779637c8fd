"""`train`, `evaluate` and `predict` in Python: the results of the commands, from values."""

from pathlib import Path

import pytest
from conftest import data_beside
from program import in_new_process, predicted, results_of, run, write_csv, write_rows
from saved_models import save_model

from roformer_lite import InputError, evaluate, predict, train

DATA = data_beside(__file__)
TRAINING = DATA["training"]
WORDS = DATA["words"]
ROWS = DATA["rows"]


@pytest.fixture(autouse=True)
def place(current_folder) -> None:
    """Run each test in a folder with data."""
    write_csv(Path("rows.csv"), ROWS)
    labelled = [row for row in ROWS if row["text"]]
    write_rows(Path("train.jsonl"), labelled * 8)
    write_rows(Path("test.jsonl"), labelled)


def test_importing_the_functions_loads_nothing_heavy():
    code = """
import sys
from roformer_lite import evaluate, predict, train
heavy = {"torch", "transformers", "datasets", "numpy", "yaml", "hf_roformer_lite"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import roformer_lite.training.defaults, roformer_lite.measuring.metrics
from roformer_lite import evaluate, train
assert callable(train) and callable(evaluate)
"""
    in_new_process("-c", code, timeout=120)


def test_training_gives_the_results_of_the_command(capsys):
    files = {"train_file": Path("train.jsonl"), "test_file": ["test.jsonl"]}
    found = train("classify", output_dir=Path("python"), dataset_title=None, **files, **TRAINING)
    assert capsys.readouterr().out == ""
    run(f"train classify {WORDS} --output_dir command", **files)
    saved = {name: results_of(Path(name)) for name in ("python", "command")}
    assert found == saved["python"] and set(found["metrics"]) == {"test"}
    for name in ("metrics", "baselines", "verdict"):
        assert found[name] == saved["command"][name] and found[name]
    assert Path("python/run.yaml").read_text() == Path("command/run.yaml").read_text()

    again = train("python/run.yaml", output_dir="again", hub_model_id="me/again")
    assert again["metrics"] == found["metrics"]
    assert Path("again/README.md").read_text().count("# me/again") == 1


def test_evaluation_has_the_report_of_the_command_and_the_answers_of_predict(capsys):
    save_model("classify", Path("model"))
    found = evaluate("model", test_file="test.jsonl", device="cpu", batch_size=None)
    assert "accuracy" in found["metrics"]["test"]
    run("evaluate model --test_file test.jsonl --device cpu")
    assert found["report"] in capsys.readouterr().out
    answers = predict("model", input_file="test.jsonl", prefix="their_", device="cpu")
    theirs = [row["their_label"] for row in answers]
    assert [row["prediction"] for row in found["predictions"]] == theirs


def test_rows_texts_and_files_have_the_predictions_of_the_command():
    save_model("classify", Path("model"))
    expected = predicted(Path("model"), Path("rows.csv"), prefix="their_", top_k=2)
    options = {"prefix": "their_", "top_k": 2, "device": "cpu"}
    assert predict("model", input_file="rows.csv", **options) == expected
    answers = [{**row, "number": str(row["number"])} for row in predict("model", ROWS, **options)]
    assert answers == expected
    assert [row["their_label_1"] is None for row in expected] == [False, False, True, False]
    texts = predict(Path("model"), [row["text"] for row in ROWS], top_k=2, device="cpu")
    names = "label_1 score_1 label_2 score_2".split()
    assert texts == [
        {"text": row["text"], **{name: row[f"their_{name}"] for name in names}} for row in expected
    ]


@pytest.mark.parametrize(("kind", "inputs", "columns"), DATA["inputs"])
def test_inputs_of_other_tasks(kind, inputs, columns):
    save_model(kind, Path("model"))
    found = predict("model", inputs, device="cpu")
    assert len(found) == len(inputs)
    for row, given in zip(found, inputs, strict=True):
        assert list(row)[: len(columns)] == columns and len(row) > len(columns)
        values = [row[name] for name in columns]
        assert values == ([*given] if kind == "pairs" else [given])


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: train("classify", epochs=3), ["argument --epochs", "--help"]),
        (lambda: train("classify", train_epochs=3), ["did you mean --num_train_epochs"]),
        (
            lambda: train("classify", train_file="test.jsonl", num_train_epochs="many"),
            ["num_train_epochs", "many"],
        ),
        (
            lambda: train("classify", train_file="test.jsonl", num_train_epochs=[3, 4]),
            ["num_train_epochs", "[3, 4]", "float"],
        ),
        (lambda: train("classify", train_file="test.jsonl", seed=1.5), ["--seed 1.5", "int"]),
        (lambda: predict("model", ["a"], top_k=True), ["--top_k True", "int"]),
        (lambda: predict("model", ["a"], topk=2), ["did you mean --top_k"]),
        (lambda: predict("model", "a text"), ["str", "list"]),
        (lambda: predict("model", ["a"], input_file="rows.csv"), ["input_file"]),
        (lambda: predict("model", ["a"], output_file="x.csv"), ["output_file"]),
    ],
)
def test_mistakes(call, parts):
    with pytest.raises(InputError) as error:
        call()
    assert all(part in str(error.value) for part in parts)


def test_rows_without_the_column_and_with_a_column_of_the_answer():
    save_model("classify", Path("model"))
    with pytest.raises(InputError, match="row 2: no column 'text'; the columns are: review"):
        predict("model", [{"text": "a"}, {"review": "a"}], device="cpu")
    with pytest.raises(InputError, match="row 1: .*'label'.*--prefix"):
        predict("model", ROWS, device="cpu")


def test_no_text_of_an_input_is_left_out_in_silence():
    save_model("pairs", Path("model"))
    with pytest.raises(InputError, match="row 2: 3 texts, but this model reads 2"):
        predict("model", [("a", "b"), ("a", "b", "c")], device="cpu")
