"""Data from which nothing can be learned or measured are refused before the training, with file and line."""

import json
import re
from pathlib import Path

import pytest

from roformer_lite.cli import main
from roformer_lite.data.data_files import read_table, read_tagged, text_of, value_of
from roformer_lite.errors import InputError
from roformer_lite.train.trainer import RoFormerLiteTrainer

TINY = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 num_hidden_layers=1 "
    "--vocab_size 300 --disable_tqdm true --use_cpu true --max_steps 1 --training_arguments eval_strategy=no"
).split()


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """The message of a `train` command that must end before the first step."""
    monkeypatch.setattr(RoFormerLiteTrainer, "train", lambda self, **options: pytest.fail("the training began"))

    def run(task: str, *options: str | Path) -> str:
        capsys.readouterr()
        command = ["train", task, *TINY, "--output_dir", tmp_path / "m", *options]
        assert main([str(argument) for argument in command]) == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("task", ["mlm", "causal"])
@pytest.mark.parametrize(
    ("content", "algorithm", "message"),
    [
        ("\n\n \n", "bpe", r"v\.txt: there is no row with text"),
        ("\x01\x02\n", "wordpiece", r"v\.txt:1: from here on the tokenizer finds no word"),
        ("[UNK] [PAD]\n", "wordpiece", r"v\.txt:1: from here on the tokenizer finds no word"),
    ],
)
def test_validation_text_without_words(task, content, algorithm, message, tmp_path, refused):
    (tmp_path / "t.txt").write_text("the cat sees a red house\n" * 20)
    (tmp_path / "v.txt").write_text(content)
    files = ["--train_file", tmp_path / "t.txt", "--validation_file", tmp_path / "v.txt"]
    assert re.search(message, refused(task, *files, "--tokenizer_algorithm", algorithm))


def test_a_word_is_enough_to_measure(tmp_path):
    """With one word it depended on chance, at the very end, whether a token was masked and could be counted."""
    (tmp_path / "t.txt").write_text("the cat sees a red house\n" * 20)
    (tmp_path / "v.txt").write_text("cat\n")
    for seed in "12":
        files = ["--train_file", tmp_path / "t.txt", "--validation_file", tmp_path / "v.txt", "--seed", seed]
        command = ["train", "mlm", *files, *TINY, "--mlm_probability", "0.01", "--output_dir", tmp_path / seed]
        assert main([str(argument) for argument in command]) == 0
        results = json.loads((tmp_path / seed / "results.json").read_text("utf-8"))
        assert results["metrics"]["validation"]["perplexity"] > 1


def test_tags_that_are_not_there(tmp_path, refused):
    (tmp_path / "tokens.txt").write_text("-DOCSTART-\n\nAnna\nlives\n\nRome\n")
    message = refused("tag", "--train_file", tmp_path / "tokens.txt")
    assert "tokens.txt:3: the line has 1 column, and both token and tag would be column 1; a token and its" in message
    (tmp_path / "b.txt").write_text("Anna B\nlives\n")
    with pytest.raises(InputError, match=r"b\.txt:2: the line has 1 column"):
        list(read_tagged(tmp_path / "b.txt", 1, -1))
    with pytest.raises(InputError, match=r"b\.txt:1: the line has 2 columns, .* would be column 2"):
        list(read_tagged(tmp_path / "b.txt", 2, -1))


@pytest.mark.parametrize("label", ["nan", "inf", "-Infinity", "1e999"])
def test_numbers_that_no_model_can_learn(label, tmp_path, refused):
    (tmp_path / "a.csv").write_text(f"text,label\na,1\nb,{label}\n")
    message = refused("classify", "--train_file", tmp_path / "a.csv", "--problem_type", "regression")
    assert f"a.csv:3: column 'label' must be a number for regression, not '{label}'" in message


def test_a_fraction_that_leaves_nothing(tmp_path, refused):
    (tmp_path / "a.csv").write_text("text,label\na,x\nb,y\n")
    message = refused("classify", "--train_file", tmp_path / "a.csv", "--validation_fraction", "0.9")
    assert "--validation_fraction 0.9 of 2 rows leaves no row for training" in message


def test_shapes_of_a_given_model_cannot_be_changed(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the cat sees a red house\n" * 20)
    given = ["train", "mlm", "--train_file", tmp_path / "t.txt", *TINY, "--output_dir", tmp_path / "given"]
    assert main([str(argument) for argument in given]) == 0
    options = "--config intermediate_size=48 --use_cpu true".split()
    tuned = ["train", "mlm", "--train_file", tmp_path / "t.txt", "--model_name_or_path", tmp_path / "given", *options]
    assert main([str(argument) for argument in [*tuned, "--output_dir", tmp_path / "tuned"]]) == 2
    message = capsys.readouterr().err
    assert "given" in message and "give only --config fields that change no shape, such as hidden_dropout" in message


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv"])
def test_a_column_that_is_called_origin(name, tmp_path):
    separator = {"a.tsv": "\t", "a.csv": ","}.get(name)
    rows = [{"origin": "Paris", "text": "a flight"}, {"origin": "Rome", "text": "a train"}]
    lines = [json.dumps(row) for row in rows]
    if separator:
        lines = [separator.join(row) for row in [["origin", "text"], *(row.values() for row in rows)]]
    (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    read = list(read_table(tmp_path / name))
    assert [text_of(row, "origin") for row in read] == ["Paris", "Rome"]
    assert read[0]["origin"] == f"{tmp_path / name}:{2 if separator else 1}"
    with pytest.raises(InputError, match="no column 'label'; the columns are: origin, text"):
        value_of(read[0], "label")


def test_origin_as_the_label(tmp_path):
    """It became the file and the line, and every row a label of its own."""
    (tmp_path / "a.csv").write_text("text,origin\n" + "a flight,Paris\na train,Rome\n" * 8)
    columns = ["--label_column", "origin", "--output_dir", tmp_path / "m"]
    command = ["train", "classify", "--train_file", tmp_path / "a.csv", *TINY, *columns]
    assert main([str(argument) for argument in command]) == 0
    assert json.loads((tmp_path / "m" / "config.json").read_text("utf-8"))["label2id"] == {"Paris": 0, "Rome": 1}


def test_no_column_is_called_origin(tmp_path):
    (tmp_path / "a.csv").write_text("text\na flight\n")
    with pytest.raises(InputError, match="no column 'origin'; the columns are: text"):
        text_of(next(read_table(tmp_path / "a.csv")), "origin")
