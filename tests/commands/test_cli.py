"""The commands train, predict and evaluate, run as a user runs them: on small data, for every
task."""

import contextlib
import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from toy_training import date_pairs
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import hf_roformer_lite  # noqa: F401
from roformer_lite.cli import main

TINY = (
    "--size tiny --config hidden_size=32 num_attention_heads=2 intermediate_size=64 "
    "num_hidden_layers=1 --vocab_size 400 --disable_tqdm true --use_cpu true --learning_rate 3e-3"
).split()

ENGLISH = [
    "the cat sees a red house",
    "a dog likes the old tree",
    "one bird has two small wings",
    "my house is green",
]


def run(*arguments: str | Path, status: int = 0) -> None:
    assert main([str(argument) for argument in arguments]) == status


def evaluated(model: Path, data: Sequence[Path], *options: str) -> tuple[list[dict], dict]:
    """Return the table of `evaluate`, and its results.

    The metrics must equal those of the training, because the model keeps notes of its settings.
    """
    folder = model.with_name("evaluated")
    files = ["--test_file", *data, "--output_dir", folder, "--table_format", "jsonl"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run("evaluate", model, *files, *options)
    noted = json.loads((model / "results.json").read_text("utf-8"))
    found = json.loads((folder / "results.json").read_text("utf-8"))
    for name in ("metrics", "rows"):
        assert found[name]["test"] == noted[name]["test"]
    is_perfect = 1.0 in noted["metrics"]["test"].values()
    shows_worst_answers = "The worst answers:" in printed.getvalue()
    assert found["settings"] == noted["settings"]
    assert shows_worst_answers != is_perfect
    assert all(f"{value:.4f}" in printed.getvalue() for value in noted["metrics"]["test"].values())
    foreign = "--label_column" if noted["task"] == "tag" else "--tag_column"
    run("evaluate", model, "--test_file", *data, foreign, "x", status=2)
    names = {path.name for path in folder.iterdir()} - {"confusion.png"}
    assert names == {"results.json", "report.txt", "predictions.jsonl"}
    lines = (folder / "predictions.jsonl").read_text("utf-8").splitlines()
    table = [json.loads(line) for line in lines]
    return table, found


def predict(model: Path, lines: list[str], *options: str) -> list[str]:
    source = model.parent / "lines.txt"
    target = model.parent / "answers.txt"
    source.write_text("".join(line + "\n" for line in lines), "utf-8")
    run("predict", model, "--input_file", source, "--output_file", target, *options)
    return target.read_text("utf-8").split("\n")[:-1]


def check_directory(model: Path, task: str) -> dict:
    """Check the files that every finished model has, and return its results.

    The card must show the figures of the results, and its code must run.
    """
    names = "README.md config.json loss_curve.png model.safetensors results.json".split()
    names += ["tokenizer.json", "tokenizer_config.json"]
    assert set(names) <= {path.name for path in model.iterdir()}
    siblings = [path.name for path in model.parent.iterdir()]
    assert not [name for name in siblings if name.startswith(f".{model.name}")]
    assert not model.with_name(f"{model.name}.training").exists()
    assert (model / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((model / "results.json").read_text("utf-8"))
    assert results["task"] == task
    card = (model / "README.md").read_text("utf-8")
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["library_name"] == "transformers" and "roformer-lite" in metadata["tags"]
    measured = {
        (result["dataset"]["split"], metric["name"]): metric["value"]
        for result in metadata["model-index"][0]["results"]
        for metric in result["metrics"]
    }
    assert measured == {
        (split, name): pytest.approx(value, abs=1e-4)
        for split, metrics in results["metrics"].items()
        for name, value in metrics.items()
        if name != "loss"
    }
    assert results["command"] in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    code = code.replace(f'"{model.name}"', repr(str(model)))
    exec(compile(code, "card", "exec"), {})
    return results


@pytest.fixture(scope="module")
def seq2seq_model(tmp_path_factory):
    """A model that brings dates into one form.

    It is trained on pairs of plain files, with averaged weights, label smoothing and a budget of
    tokens for a batch.
    """
    folder = tmp_path_factory.mktemp("seq2seq")
    rows = date_pairs(300)
    for split, part in (("train", rows[:200]), ("test", rows[200:])):
        sources = "".join(source + "\n" for source, _ in part)
        targets = "".join(target + "\n" for _, target in part)
        (folder / f"{split}.en.txt").write_text(sources, "utf-8")
        (folder / f"{split}.iso.txt").write_text(targets, "utf-8")
    files = [
        *("--train_file", folder / "train.en.txt", folder / "train.iso.txt"),
        *("--validation_file", folder / "test.en.txt", folder / "test.iso.txt"),
        *("--test_file", folder / "test.en.txt", folder / "test.iso.txt"),
    ]
    options = [
        *"--max_tokens_per_batch 800 --ema_decay 0.9 --max_target_length 16".split(),
        *"--bleu_tokenizer char --num_train_epochs 3 --time_limit_minutes 5".split(),
        *"--training_arguments label_smoothing_factor=0.1 generation_num_beams=2".split(),
        *"--language en --license mit".split(),
    ]
    command = ["train", "seq2seq", *files, *TINY, *options]
    run(*command, "--output_dir", folder / "model")
    return folder / "model"


def test_seq2seq(seq2seq_model):
    results = check_directory(seq2seq_model, "seq2seq")
    assert results["rows"] == {"train": 200, "validation": 100, "test": 100}
    assert set(results["metrics"]["test"]) == {"loss", "bleu", "chrf", "exact_match"}
    # Both splits are read from the same files.
    assert results["metrics"]["test"] == results["metrics"]["validation"]
    assert results["training"]["arguments"]["ema_decay"] == 0.9
    test = [seq2seq_model.with_name(f"test.{language}.txt") for language in ("en", "iso")]
    rows, _ = evaluated(seq2seq_model, test)
    assert [row["source"] for row in rows] == test[0].read_text("utf-8").splitlines()
    exact = [row["prediction"] == row["target"] for row in rows]
    assert sum(exact) / len(exact) == results["metrics"]["test"]["exact_match"]
    model = AutoModelForSeq2SeqLM.from_pretrained(seq2seq_model)
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 17)
    assert model.config.use_cache
    assert model.config.encoder.hidden_size == 32
    assert AutoTokenizer.from_pretrained(seq2seq_model).model_max_length == 128


def test_predict_keeps_order_and_empty_lines(seq2seq_model):
    lines = [
        "four",
        "",
        "March 5th, 2024",
        "   ",
        "二〇二四年三月五日",
        "nine hundred and four thousand",
    ]
    answers = predict(seq2seq_model, lines, "--batch_size", "2")
    assert len(answers) == len(lines) and answers[1] == answers[3] == ""
    assert [predict(seq2seq_model, [line])[0] for line in lines] == answers
    tokenizer = AutoTokenizer.from_pretrained(seq2seq_model)
    model = AutoModelForSeq2SeqLM.from_pretrained(seq2seq_model).eval()
    generated = model.generate(**tokenizer(lines[2], return_tensors="pt"))[0]
    assert tokenizer.decode(generated, skip_special_tokens=True).strip() == answers[2]
    greedy = predict(seq2seq_model, lines, "--beams", "1", "--max_new_tokens", "2")
    ids_of_answers = tokenizer(greedy, add_special_tokens=False)["input_ids"]
    assert all(len(ids) <= 2 for ids in ids_of_answers)


def write_language_data(task: str, folder: Path) -> tuple[Path, Path]:
    """Write the texts of a training and of its validation: plain lines for "mlm", else rows."""
    ending = "txt" if task == "mlm" else "jsonl"
    training = folder / f"a.{ending}"
    validation = folder / f"b.{ending}"
    for file, sentences in ((training, ENGLISH * 40), (validation, ENGLISH[::-1] * 5)):
        lines = sentences
        if task != "mlm":
            lines = [json.dumps({"story": sentence}) for sentence in sentences]
        file.write_text("".join(line + "\n" for line in lines), "utf-8")
    return training, validation


@pytest.mark.parametrize("task", ["mlm", "causal"])
def test_language_models(task, tmp_path):
    training, validation = write_language_data(task, tmp_path)
    own = "--line_by_line true --mlm_probability 0.4" if task == "mlm" else "--text_column story"
    options = "--block_size 12 --num_train_epochs 5 --seed 7 --per_device_train_batch_size 4 "
    options += "--per_device_eval_batch_size 3"
    files = ["--train_file", training, "--validation_file", validation, "--test_file", validation]
    more = [*own.split(), *options.split(), "--training_arguments", "eval_strategy=no"]
    run("train", task, *files, *TINY, *more, "--output_dir", tmp_path / "m")
    metrics = check_directory(tmp_path / "m", task)["metrics"]["test"]
    assert 1 < metrics["perplexity"] < 25
    if task == "mlm":
        assert predict(tmp_path / "m", ["the cat [MASK] a red house", "no mask"])[1] == "no mask"
        filled = predict(tmp_path / "m", ["the cat [MASK] a red house"])[0]
        assert "[MASK]" not in filled
        assert "  " not in filled
        assert filled.startswith("the cat")
        assert filled.endswith("a red house")
    else:
        continued = predict(tmp_path / "m", ["the cat", "a dog likes the"], "--max_new_tokens", "4")
        assert all(continued) and not continued[0].startswith("the cat")


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def test_classify(tmp_path):
    rows = [
        {"text": text, "animal": "yes" if i in (0, 1, 2) else "no, a house"}
        for i, text in enumerate(ENGLISH)
    ]
    # Rows with the same text would all be held out together.
    numbered = [{**row, "text": f"{row['text']} {n}"} for n in range(25) for row in rows]
    train = write_jsonl(tmp_path / "a.jsonl", numbered)
    test = write_jsonl(tmp_path / "b.jsonl", rows)
    files = ["--train_file", train, "--test_file", test]
    options = "--label_column animal --max_length 24 --num_train_epochs 8".split()
    run("train", "classify", *files, *TINY, *options, "--output_dir", tmp_path / "m")
    assert check_directory(tmp_path / "m", "classify")["metrics"]["test"]["accuracy"] == 1.0
    table, _ = evaluated(tmp_path / "m", [test])
    assert [row["origin"] for row in table] == [f"{test}:{line}" for line in range(1, 5)]
    assert [row["text"] for row in table] == ENGLISH and {*table[0]} >= {"label", "prediction"}
    assert AutoConfig.from_pretrained(tmp_path / "m").label2id == {"no, a house": 0, "yes": 1}
    answers = predict(tmp_path / "m", [ENGLISH[0], "", ENGLISH[3]])
    assert [answer.partition("\t")[0] for answer in answers] == ["yes", "", "no, a house"]
    assert 0.5 < float(answers[0].partition("\t")[2]) <= 1


def test_classify_several_labels(tmp_path):
    """From the answers in the table of `evaluate`, its metrics can be computed again, and they are
    those of the training."""
    labels = ["cat;red", "dog", ";", "red"]
    table = "".join(f'"{text}","{label}"\n' for text, label in zip(ENGLISH, labels, strict=True))
    (tmp_path / "a.csv").write_text("text,label\n" + table * 20)
    files = ["--train_file", tmp_path / "a.csv", "--test_file", tmp_path / "a.csv"]
    options = ["--label_separator", ";", "--num_train_epochs", "20"]
    run("train", "classify", *files, *options, *TINY, "--output_dir", tmp_path / "m")
    metrics = check_directory(tmp_path / "m", "classify")["metrics"]["test"]
    assert predict(tmp_path / "m", ENGLISH) == ["cat;red", "dog", "", "red"]
    (tmp_path / "b.csv").write_text("text,label\n" + table.replace('"dog"', '"red;dog"'))
    for name, data in (("again", "a.csv"), ("wrong", "b.csv")):
        command = ["evaluate", tmp_path / "m", "--test_file", tmp_path / data]
        run(*command, "--output_dir", tmp_path / name)
    found = {
        name: json.loads((tmp_path / name / "results.json").read_text())
        for name in ("again", "wrong")
    }
    assert found["again"]["metrics"]["test"] == metrics
    assert metrics["accuracy"] == 1.0
    assert set(found["wrong"]["labels"]) == {"cat", "dog", "red"}
    assert not (tmp_path / "wrong" / "confusion.png").exists()
    with (tmp_path / "wrong" / "predictions.csv").open(newline="") as stream:
        right = [
            set(row["label"].split(";")) == set(row["prediction"].split(";"))
            for row in csv.DictReader(stream)
        ]
    assert sum(right) / len(right) == found["wrong"]["metrics"]["test"]["accuracy"] == 0.75


def test_classify_numbers_of_pairs(tmp_path):
    data = tmp_path / "a.tsv"
    lines = [f"{a}\t{b}\t{5.0 * (a == b)}\n" for a in ENGLISH for b in ENGLISH]
    data.write_text("".join(lines) * 3)
    names = ["--column_names", "a", "b", "score"]
    columns = "--text_column a --text_pair_column b --label_column score".split()
    options = ["--train_file", data, "--test_file", data, *names, *columns]
    options += ["--problem_type", "regression", *TINY]
    run("train", "classify", *options, "--output_dir", tmp_path / "m")
    metrics = check_directory(tmp_path / "m", "classify")["metrics"]["test"]
    assert set(metrics) == {"loss", "pearson", "spearman", "mse"}
    assert float(predict(tmp_path / "m", ["a\tb"])[0]) < 6
    command = ["evaluate", tmp_path / "m", "--test_file", data, *names]
    run(*command, "--output_dir", tmp_path / "e")
    found = json.loads((tmp_path / "e" / "results.json").read_text())
    assert found["metrics"]["test"] == metrics
    assert found["labels"] == {}


def test_tag(tmp_path):
    sentences = [
        ("Anna B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n"),
        ("Rome B-LOC\nhas O\nBob B-PER\n"),
    ]
    (tmp_path / "a.iob2").write_text("\n".join(sentences * 40))
    files = ["--train_file", tmp_path / "a.iob2", "--test_file", tmp_path / "a.iob2"]
    more = "--num_train_epochs 20 --tokenizer_algorithm wordpiece"
    run("train", "tag", *files, *TINY, *more.split(), "--output_dir", tmp_path / "m")
    results = check_directory(tmp_path / "m", "tag")
    assert results["metrics"]["test"]["f1"] == 1.0 and results["settings"]["unit"] == "words"
    sentence = "Anna lives in New York"
    (answer,) = predict(tmp_path / "m", [sentence])
    assert answer == "Anna/B-PER lives/O in/O New/B-LOC York/I-LOC"
    figures = results["by_label"]["test"]
    assert {kind: (figure["f1"], figure["support"]) for kind, figure in figures.items()} == {
        "LOC": (1.0, 80),
        "PER": (1.0, 80),
    }
    table, found = evaluated(tmp_path / "m", [tmp_path / "a.iob2"])
    assert table[0]["tokens"] == sentence.split()
    assert table[0]["tags"] == table[0]["prediction"]
    assert len(table) == 80
    assert set(found["labels"]) == {"PER", "LOC"}
    # The pipeline of transformers guesses from spaces where words begin. With other tokenizers than
    # wordpiece, it guesses wrongly.
    tagger = pipeline("token-classification", str(tmp_path / "m"), aggregation_strategy="first")
    (entities,) = tagger([sentence.split()], is_split_into_words=True)
    assert [
        (entity["entity_group"], sentence[entity["start"] : entity["end"]]) for entity in entities
    ] == [("PER", "Anna"), ("LOC", "New York")]


def test_tag_chinese_by_the_character(tmp_path):
    rows = [
        {"tokens": ["张三", "在", "上海"], "tags": ["B-PER", "O", "B-LOC"]},
        {"tokens": ["北京", "有", "李四\x7f"], "tags": ["B-LOC", "O", "B-PER"]},
    ]
    data = write_jsonl(tmp_path / "a.jsonl", rows * 40)
    files = ["--train_file", data, "--test_file", data]
    # The vocabulary has room for whole words. The pipeline on the card would take a blank for a
    # word if the blank were a token of its own.
    options = ["--vocab_size", "400", "--num_train_epochs", "20"]
    run("train", "tag", *files, *TINY, *options, "--output_dir", tmp_path / "m")
    results = check_directory(tmp_path / "m", "tag")
    assert results["metrics"]["test"]["f1"] == 1.0 and results["settings"]["unit"] == "characters"
    assert predict(tmp_path / "m", ["张三在上海"]) == ["张/B-PER 三/I-PER 在/O 上/B-LOC 海/I-LOC"]
