"""`evaluate`: the metrics of the training again, from the saved model alone, and what it got wrong."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from roformer_lite.cli import main
from roformer_lite.evaluate.confusion_picture import confusion_counts, draw_confusion

TINY = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1 "
    "--vocab_size 300 --baselines false --disable_tqdm true --use_cpu true --learning_rate 3e-3 --max_steps 6 "
    "--training_arguments save_strategy=no "
    "--per_device_train_batch_size 4 --per_device_eval_batch_size 3 --seed 7"
).split()
WORDS = "the cat sees a red house a dog likes the old tree one bird has two small wings my house is green".split()
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 2 + i % 5]) for i in range(14)]

# Columns, lengths and measures that are not the defaults, so that each has to be noted with the model.
TASKS = {
    "seq2seq": "--source_column en --target_column de --max_target_length 4 --bleu_tokenizer char "
    "--training_arguments generation_num_beams=2 generation_max_length=8",
    "mlm": "--line_by_line true --block_size 12 --mlm_probability 0.4",
    "causal": "--text_column story --block_size 12",
    "classify": "--text_column review --label_column stars --max_length 6",
    "tag": "--token_column 2 --tag_column 1",
}


def write_data(task: str, path: Path) -> Path:
    if task == "seq2seq":
        rows = [f"{text}\t{' '.join(reversed(text.split()))}" for text in TEXTS]
        path = path.with_suffix(".tsv")
        path.write_text("\n".join(["en\tde", *rows]) + "\n")
    elif task == "mlm":
        path = path.with_suffix(".txt")
        path.write_text("\n".join(TEXTS) + "\n")
    elif task == "causal":
        path = path.with_suffix(".jsonl")
        path.write_text("".join(json.dumps({"story": text}) + "\n" for text in TEXTS))
    elif task == "classify":
        path = path.with_suffix(".csv")
        path.write_text("review,stars\n" + "".join(f'"{text}",{i % 3}\n' for i, text in enumerate(TEXTS)))
    else:
        path = path.with_suffix(".conll")
        tags = ["B-PER", "O", "B-LOC", "I-LOC", "O"]
        sentences = [[f"{tags[i % 5]} {word}" for i, word in enumerate(text.split())] for text in TEXTS]
        path.write_text("\n\n".join("\n".join(lines) for lines in sentences) + "\n")
    return path


@pytest.fixture(scope="module", params=list(TASKS))
def trained(request, tmp_path_factory) -> tuple[str, Path, Path]:
    """A task, a model of it and the test data."""
    folder = tmp_path_factory.mktemp(request.param)
    data = write_data(request.param, folder / "data")
    files = ["--train_file", data, "--test_file", data, "--output_dir", folder / "model"]
    run("train", request.param, *files, *TASKS[request.param].split(), *TINY)
    return request.param, folder / "model", data


def run(*arguments: str | Path, status: int = 0) -> None:
    assert main([str(argument) for argument in arguments]) == status


def results_of(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text("utf-8"))


def test_the_metrics_are_those_of_the_training(trained, tmp_path, capsys):
    task, model, data = trained
    run("evaluate", model, "--test_file", data, "--output_dir", tmp_path / "e", "--table_format", "jsonl")
    expected, found = results_of(model), results_of(tmp_path / "e")
    assert found["metrics"]["test"] == expected["metrics"]["test"]
    assert found["rows"]["test"] == expected["rows"]["test"] and found["settings"] == expected["settings"]
    printed = capsys.readouterr().out
    assert all(f"{value:.4f}" in printed for value in expected["metrics"]["test"].values())
    assert "The worst answers:" in printed
    run("evaluate", model, "--test_file", data, "--examples", "2", "--batch_size", "50")
    assert len(re.findall(rf"{data.name}:\d+:", capsys.readouterr().out)) in (0, 2)  # of text alone there is no line
    names = {path.name for path in (tmp_path / "e").iterdir()}
    wanted = {"results.json", "report.txt", "predictions.jsonl"} | ({"confusion.png"} if task == "classify" else set())
    assert names == wanted
    rows = [json.loads(line) for line in (tmp_path / "e" / "predictions.jsonl").read_text("utf-8").splitlines()]
    check_table(task, rows, found, data)


def check_table(task: str, rows: list[dict], found: dict, data: Path) -> None:
    """The table has the rows of the data in their order, and its answers give the metrics again."""
    metrics = found["metrics"]["test"]
    if task in ("mlm", "causal"):
        tokens = sum(row["tokens"] for row in rows)
        assert sum(row["tokens"] * row["loss"] for row in rows) / tokens == pytest.approx(metrics["loss"], abs=1e-4)
        assert sum(row["right"] for row in rows) / tokens == pytest.approx(metrics["accuracy"])
        return
    assert len(rows) == len(TEXTS)
    lines = [int(row["origin"].removeprefix(f"{data}:")) for row in rows]
    assert lines == sorted(lines)
    if task == "seq2seq":
        assert [row["source"] for row in rows] == TEXTS
        assert np.mean([row["prediction"] == row["target"] for row in rows]) == metrics["exact_match"]
    elif task == "classify":
        true, predicted = [row["label"] for row in rows], [row["prediction"] for row in rows]
        assert [row["text"] for row in rows] == TEXTS and true == [str(i % 3) for i in range(len(rows))]
        assert accuracy_score(true, predicted) == metrics["accuracy"]
        by_label = [scores["f1"] for scores in found["labels"].values()]
        assert np.mean(by_label) == pytest.approx(metrics["macro_f1"])
        assert f1_score(true, predicted, average="macro", zero_division=0) == pytest.approx(metrics["macro_f1"])
    else:
        assert [row["tokens"] for row in rows] == [text.split() for text in TEXTS]
        assert set(found["labels"]) == {"PER", "LOC"}
        pairs = [pair for row in rows for pair in zip(row["tags"], row["prediction"], strict=True)]
        assert np.mean([true == predicted for true, predicted in pairs]) == pytest.approx(metrics["accuracy"])


def test_options_of_another_task_are_refused(trained, capsys):
    task, model, data = trained
    name = "--tag_column" if task != "tag" else "--label_column"
    run("evaluate", model, "--test_file", data, name, "x", status=2)
    assert f"{name} is not for {task} models, which take --" in capsys.readouterr().err


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    rows = "".join(f'"{text}",{"yes" if i % 2 else "no"}\n' for i, text in enumerate(TEXTS))
    (folder / "a.csv").write_text("text,label\n" + rows)
    run("train", "classify", "--train_file", folder / "a.csv", *TINY, "--output_dir", folder / "model")
    return folder / "model"


def write_csv(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", "utf-8")
    return path


def test_mistakes_in_the_data_name_their_line_and_write_nothing(classifier, tmp_path, capsys):
    data = write_csv(tmp_path / "b.csv", "text,label", "a cat,maybe", "a dog,maybe")
    run("evaluate", classifier, "--test_file", data, "--output_dir", tmp_path / "e", status=2)
    assert "labels maybe are all unknown to the model, which has: no, yes" in capsys.readouterr().err
    run("evaluate", classifier, "--test_file", data, "--label_column", "class", status=2)
    assert "b.csv:2: no column 'class'; the columns are: text, label" in capsys.readouterr().err
    run("evaluate", classifier, "--test_file", data, "--text_pair_column", "label", "--label_column", "x", status=2)
    assert "--text_pair_column label: this model takes one text" in capsys.readouterr().err
    assert not (tmp_path / "e").exists()


def test_models_without_notes_use_the_defaults(classifier, tmp_path, capsys):
    """As a model of an earlier version, and one that was not trained here, have them; false notes are refused."""
    data = write_csv(tmp_path / "b.csv", "text,label", "a cat,yes", "a dog,no", "the old tree,yes")
    found = []
    for name, notes in {
        "new": None,
        "old": {"settings": {"pairs": False, "label_separator": ","}},
        "none": {},
    }.items():
        model = shutil.copytree(classifier, tmp_path / name)
        if notes is not None:
            (model / "results.json").write_text(json.dumps(notes))
        if notes == {}:
            (model / "results.json").unlink()
        run("evaluate", model, "--test_file", data, "--output_dir", tmp_path / f"{name}-e")
        found.append(results_of(tmp_path / f"{name}-e")["metrics"])
    assert found[0] == found[1] == found[2]
    (tmp_path / "old" / "results.json").write_text(json.dumps({"settings": {"max_length": 1}}))
    run("evaluate", tmp_path / "old", "--test_file", data, status=2)
    assert "settings: --max_length=1 must be at least 3" in capsys.readouterr().err


def test_an_output_directory_is_complete_or_absent(classifier, tmp_path, capsys, monkeypatch):
    from roformer_lite.evaluate import confusion_picture

    data = write_csv(tmp_path / "b.csv", "text,label", "a cat,yes", "a dog,no")
    command = ["evaluate", classifier, "--test_file", data, "--output_dir"]
    run(*command, classifier, status=2)
    assert "holds other files, which would be lost" in capsys.readouterr().err
    run(*command, tmp_path / "e")
    before = (tmp_path / "e" / "results.json").read_text()
    run(*command, tmp_path / "e", status=2)
    assert "holds an evaluation" in capsys.readouterr().err

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(confusion_picture, "draw_confusion", full)
    run(*command, tmp_path / "e", "--overwrite_output_dir", status=2)
    assert "no space left on the disk while saving the evaluation" in capsys.readouterr().err
    assert (tmp_path / "e" / "results.json").read_text() == before
    monkeypatch.undo()
    run(*command, tmp_path / "e", "--overwrite_output_dir")
    assert {path.name for path in tmp_path.iterdir()} == {"b.csv", "e"}


def test_confusions_of_many_labels():
    """Nothing is lost where labels are counted together, and the most frequent confusion has a cell of its own."""
    generator = np.random.default_rng(0)
    labels = [f"label {i:03}" for i in range(150)]
    true = [labels[i] for i in generator.integers(0, 150, 5000)]
    predicted = [
        label if chance < 0.8 else labels[0] for label, chance in zip(true, generator.random(5000), strict=True)
    ]
    true += [labels[149]] * 40
    predicted += [labels[17]] * 40
    counts, names = confusion_counts(true, predicted)
    assert counts.sum() == 5040 and len(names) == 25 and names[-1] == "(other)"
    assert counts[names.index(labels[149]), names.index(labels[17])] >= 40
    small, all_names = confusion_counts(["a", "b", "b"], ["a", "a", "c"])
    assert all_names == ["a", "b", "c"] and small.tolist() == [[1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_picture_of_labels_in_any_script(tmp_path, recwarn):
    true = ["体育", "$x$_{", "a very long name of a label that has no room", "体育"]
    numbered = draw_confusion(true, [*true[:3], "$x$_{"], tmp_path / "p.png")
    assert numbered in ({}, {"#3": "体育"})  # with and without a font for it
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
