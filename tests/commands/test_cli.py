"""The commands train, predict and evaluate, run as a user runs them: on small data, for every
task."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from program import (
    TINY,
    answered,
    card_of,
    evaluated,
    results_of,
    run,
    train,
    write_rows,
)
from toy_training import date_pairs
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import hf_roformer_lite  # noqa: F401
from roformer_lite import evaluate

LEARNING = f"{TINY} --vocab_size 400 --learning_rate 3e-3"
ENGLISH = [
    "the cat sees a red house",
    "a dog likes the old tree",
    "one bird has two small wings",
    "my house is green",
]


def evaluation(model: Path, data: Path | list[Path], printed: pytest.CaptureFixture) -> list[dict]:
    """Return the table of `evaluate`.

    The metrics must equal those of the training, because the model keeps notes of its settings.
    """
    printed.readouterr()
    run("evaluate", model, test_file=data, device="cpu")
    shown = printed.readouterr().out
    found = evaluated(model, data)
    noted = results_of(model)
    for name in ("metrics", "rows"):
        assert found[name]["test"] == noted[name]["test"]
    assert found["settings"] == noted["settings"]
    has_mistakes = 1.0 not in noted["metrics"]["test"].values()
    has_answers = noted["task"] not in ("mlm", "causal")
    assert ("The worst answers:" in shown) == (has_mistakes and has_answers)
    assert all(f"{value:.4f}" in shown for value in noted["metrics"]["test"].values())
    foreign = "label_column" if noted["task"] == "tag" else "tag_column"
    run("evaluate", model, test_file=data, **{foreign: "x"}, status=2)
    return evaluate(model, test_file=data, device="cpu")["predictions"]


def trained(command: str, data: Path | list[Path], model: Path, **options: object) -> dict:
    """Train, check the files that every finished model has, and return the results.

    The card must show the figures of the results, and its code must run.
    """
    task, _, more = command.partition(" ")
    results = train(f"{task} {LEARNING} {more}", data, model, **options)
    names = "README.md config.json model.safetensors results.json".split()
    names += ["tokenizer.json", "tokenizer_config.json"]
    assert set(names) <= {path.name for path in model.iterdir()}
    siblings = [path.name for path in model.parent.iterdir()]
    assert not [name for name in siblings if name.startswith(f".{model.name}")]
    assert not model.with_name(f"{model.name}.training").exists()
    assert results["task"] == task
    card = card_of(model)
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
def dates(tmp_path_factory) -> Path:
    """A model that brings dates into one form.

    It is trained on pairs of plain files, with averaged weights, label smoothing and a budget of
    tokens for a batch.
    """
    folder = tmp_path_factory.mktemp("seq2seq")
    rows = date_pairs(300)
    files = {}
    for split, part in (("train", rows[:200]), ("test", rows[200:])):
        files[split] = [folder / f"{split}.en.txt", folder / f"{split}.iso.txt"]
        for path, texts in zip(files[split], zip(*part, strict=True), strict=True):
            path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    options = (
        "seq2seq --max_tokens_per_batch 800 --ema_decay 0.9 --max_target_length 16 "
        "--bleu_tokenizer char --num_train_epochs 3 "
        "--training_arguments label_smoothing_factor=0.1 generation_num_beams=2 "
        "--language en --license mit"
    )
    tests = {"validation_file": files["test"], "test_file": files["test"]}
    results = trained(options, files["train"], folder / "m", **tests)
    assert results["rows"] == {"train": 200, "validation": 100, "test": 100}
    return folder / "m"


def test_seq2seq(dates, capsys):
    results = results_of(dates)
    assert set(results["metrics"]["test"]) == {"bleu", "chrf", "exact_match"}
    # Both splits are read from the same files.
    assert results["metrics"]["test"] == results["metrics"]["validation"]
    assert results["training"]["arguments"]["ema_decay"] == 0.9
    files = [dates.with_name(f"test.{language}.txt") for language in ("en", "iso")]
    rows = evaluation(dates, files, capsys)
    assert [row["source"] for row in rows] == files[0].read_text("utf-8").splitlines()
    exact = [row["prediction"] == row["target"] for row in rows]
    assert sum(exact) / len(exact) == results["metrics"]["test"]["exact_match"]
    model = AutoModelForSeq2SeqLM.from_pretrained(dates)
    assert (model.generation_config.num_beams, model.generation_config.max_length) == (2, 17)
    assert model.config.use_cache
    assert model.config.encoder.hidden_size == 32
    assert AutoTokenizer.from_pretrained(dates).model_max_length == 128


def test_predict_keeps_order_and_empty_lines(dates):
    lines = ["four", "", "March 5th, 2024", "   ", "二〇二四年三月五日", "nine hundred thousand"]
    answers = answered(dates, lines, batch_size=2)
    assert len(answers) == len(lines) and answers[1] == answers[3] == ""
    assert [answered(dates, [line])[0] for line in lines] == answers
    tokenizer = AutoTokenizer.from_pretrained(dates)
    model = AutoModelForSeq2SeqLM.from_pretrained(dates).eval()
    generated = model.generate(**tokenizer(lines[2], return_tensors="pt"))[0]
    assert tokenizer.decode(generated, skip_special_tokens=True).strip() == answers[2]


def write_texts(path: Path, texts: Sequence[str]) -> Path:
    """Write plain lines, or rows if the name of the file says so."""
    if path.suffix == ".jsonl":
        return write_rows(path, [{"story": text} for text in texts])
    path.write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return path


@pytest.mark.parametrize("task", ["mlm", "causal"])
def test_language_models(task, tmp_path, capsys):
    ending = "txt" if task == "mlm" else "jsonl"
    data = write_texts(tmp_path / f"a.{ending}", ENGLISH * 40)
    held_out = write_texts(tmp_path / f"b.{ending}", ENGLISH[::-1] * 5)
    own = "--line_by_line true --mlm_probability 0.4" if task == "mlm" else "--text_column story"
    options = (
        f"{task} {own} --block_size 12 --num_train_epochs 5 --seed 7 "
        "--per_device_train_batch_size 4 --per_device_eval_batch_size 3 "
        "--training_arguments eval_strategy=no"
    )
    model = tmp_path / "m"
    files = {"validation_file": held_out, "test_file": held_out}
    metrics = trained(options, data, model, **files)["metrics"]["test"]
    assert 1 < metrics["perplexity"] < 25
    evaluation(model, held_out, capsys)
    if task == "mlm":
        filled, unchanged = answered(model, ["the cat [MASK] a red house", "no mask"])
        assert "[MASK]" not in filled and "  " not in filled and unchanged == "no mask"
        assert filled.startswith("the cat") and filled.endswith("a red house")
    else:
        continued = answered(model, ["the cat", "a dog likes the"], max_new_tokens=4)
        assert all(continued) and not continued[0].startswith("the cat")


def test_classify(tmp_path, capsys):
    rows = [
        {"text": text, "animal": "yes" if i in (0, 1, 2) else "no, a house"}
        for i, text in enumerate(ENGLISH)
    ]
    # Rows with the same text would all be held out together.
    numbered = [{**row, "text": f"{row['text']} {n}"} for n in range(25) for row in rows]
    data = write_rows(tmp_path / "a.jsonl", numbered)
    test = write_rows(tmp_path / "b.jsonl", rows)
    options = "classify --label_column animal --max_length 24 --num_train_epochs 8"
    model = tmp_path / "m"
    assert trained(options, data, model, test_file=test)["metrics"]["test"]["accuracy"] == 1.0
    table = evaluation(model, test, capsys)
    assert [row["origin"] for row in table] == [f"{test}:{line}" for line in range(1, 5)]
    assert [row["text"] for row in table] == ENGLISH and {*table[0]} >= {"label", "prediction"}
    assert AutoConfig.from_pretrained(model).label2id == {"no, a house": 0, "yes": 1}
    answers = answered(model, [ENGLISH[0], "", ENGLISH[3]])
    assert [answer.partition("\t")[0] for answer in answers] == ["yes", "", "no, a house"]
    assert 0.5 < float(answers[0].partition("\t")[2]) <= 1


def test_classify_several_labels(tmp_path):
    """From the answers in the table of `evaluate`, its metrics can be computed again."""
    labels = ["cat;red", "dog", ";", "red"]
    table = "".join(f'"{text}","{label}"\n' for text, label in zip(ENGLISH, labels, strict=True))
    data = tmp_path / "a.csv"
    data.write_text("text,label\n" + table * 20)
    model = tmp_path / "m"
    options = {"label_separator": ";", "num_train_epochs": 20}
    metrics = trained("classify", data, model, test_file=data, **options)["metrics"]["test"]
    assert metrics["accuracy"] == 1.0
    assert answered(model, ENGLISH) == ["cat;red", "dog", "", "red"]
    assert evaluated(model, data)["metrics"]["test"] == metrics
    data.write_text("text,label\n" + table.replace('"dog"', '"red;dog"'))
    wrong = evaluated(model, data)
    assert set(wrong["labels"]) == {"cat", "dog", "red"}
    right = [
        set(row["label"].split(";")) == set(row["prediction"].split(";"))
        for row in evaluate(model, test_file=data, device="cpu")["predictions"]
    ]
    assert sum(right) / len(right) == wrong["metrics"]["test"]["accuracy"] == 0.75


def test_classify_numbers_of_pairs(tmp_path):
    data = tmp_path / "a.tsv"
    lines = [f"{a}\t{b}\t{5.0 * (a == b)}\n" for a in ENGLISH for b in ENGLISH]
    data.write_text("".join(lines) * 3)
    names = ["a", "b", "score"]
    options = "classify --text_column a --text_pair_column b --label_column score"
    options += " --problem_type regression"
    model = tmp_path / "m"
    results = trained(options, data, model, test_file=data, column_names=names)
    metrics = results["metrics"]["test"]
    assert set(metrics) == {"loss", "pearson", "spearman", "mse"}
    assert float(answered(model, ["a\tb"])[0]) < 6
    found = evaluated(model, data, column_names=names)
    assert found["metrics"]["test"] == metrics
    assert found["labels"] == {}


def test_tag(tmp_path, capsys):
    sentences = [
        ("Anna B-PER\nlives O\nin O\nNew B-LOC\nYork I-LOC\n"),
        ("Rome B-LOC\nhas O\nBob B-PER\n"),
    ]
    data = tmp_path / "a.iob2"
    data.write_text("\n".join(sentences * 40))
    model = tmp_path / "m"
    options = "tag --num_train_epochs 20 --tokenizer_algorithm wordpiece"
    results = trained(options, data, model, test_file=data)
    assert results["metrics"]["test"]["f1"] == 1.0 and results["settings"]["unit"] == "words"
    sentence = "Anna lives in New York"
    (answer,) = answered(model, [sentence])
    assert answer == "Anna/B-PER lives/O in/O New/B-LOC York/I-LOC"
    figures = results["by_label"]["test"]
    for kind in ("LOC", "PER"):
        assert (figures[kind]["f1"], figures[kind]["support"]) == (1.0, 80)
    table = evaluation(model, data, capsys)
    assert table[0]["tokens"] == sentence.split()
    assert table[0]["tags"] == table[0]["prediction"]
    assert len(table) == 80
    # The pipeline of transformers guesses from spaces where words begin. With other tokenizers than
    # wordpiece, it guesses wrongly.
    tagger = pipeline("token-classification", str(model), aggregation_strategy="first")
    (entities,) = tagger([sentence.split()], is_split_into_words=True)
    found = [(one["entity_group"], sentence[one["start"] : one["end"]]) for one in entities]
    assert found == [("PER", "Anna"), ("LOC", "New York")]


def test_tag_chinese_by_the_character(tmp_path):
    rows = [
        {"tokens": ["张三", "在", "上海"], "tags": ["B-PER", "O", "B-LOC"]},
        {"tokens": ["北京", "有", "李四\x7f"], "tags": ["B-LOC", "O", "B-PER"]},
    ]
    data = write_rows(tmp_path / "a.jsonl", rows * 40)
    # The vocabulary has room for whole words. The pipeline on the card would take a blank for a
    # word if the blank were a token of its own.
    options = "tag --num_train_epochs 20"
    results = trained(options, data, tmp_path / "m", test_file=data)
    assert results["metrics"]["test"]["f1"] == 1.0 and results["settings"]["unit"] == "characters"
    answers = ["张/B-PER 三/I-PER 在/O 上/B-LOC 海/I-LOC"]
    assert answered(tmp_path / "m", ["张三在上海"]) == answers
