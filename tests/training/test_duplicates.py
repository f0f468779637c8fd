"""The same input, up to case and spaces, is never both learned and measured unnoticed."""

import re
from pathlib import Path

import pytest
from program import TINY, card_of, evaluated, train, write_rows

from roformer_lite.data.splits import hold_out, load_splits, mark_seen
from roformer_lite.errors import InputError
from roformer_lite.recipes import RECIPES

ADJECTIVES = "red green old new tall dark cold loud".split()
NOUNS = "house tree boat star road wave film cast".split()
TEXTS = [f"a {adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS]


def row_of(task: str, text: str, number: int) -> dict:
    """A row with this input."""
    other = f"the answer to {text.split()[1].lower()}"
    return {
        "classify": {"text": text, "label": "xy"[number % 2]},
        "tag": {"tokens": text.split(), "tags": ["O", "B-X", "B-Y"]},
        "seq2seq": {"source": text, "target": other},
        "embed": {"anchor": text, "positive": other},
        "rerank": {"anchor": text, "positive": other},
        "mlm": {"text": text},
        "causal": {"text": text},
    }[task]


def write(path: Path, task: str, texts: list[str]) -> Path:
    rows = [row_of(task, text, number) for number, text in enumerate(texts)]
    return write_rows(path, rows)


def read(folder: Path, task: str, **options) -> tuple:
    """The reader, the options and the rows of files."""
    arguments = RECIPES[task].options_class(**options)
    reader = RECIPES[task].reader_class(arguments)
    return reader, arguments, load_splits(reader, arguments, folder / "rows")


@pytest.mark.parametrize("task", RECIPES)
def test_rows_with_the_same_input_stay_together(task, tmp_path):
    """Other rows hold the same texts in capitals or with more spaces."""
    texts = [*TEXTS, *(text.upper() for text in TEXTS[::2]), *(f" {t}  " for t in TEXTS[::3])]
    reader, arguments, rows = read(
        tmp_path,
        task,
        train_file=[str(write(tmp_path / "a.jsonl", task, texts))],
        validation_fraction=0.2,
    )
    for seed in range(3):
        split = hold_out(reader, arguments, rows, seed)
        keys = {name: set(reader.keys(part).tolist()) for name, part in split.items()}
        assert not keys["train"] & keys["validation"]
        assert len(split["train"]) + len(split["validation"]) == len(texts)
        assert 0.1 < len(split["validation"]) / len(texts) < 0.3


@pytest.mark.parametrize(
    ("texts", "fraction", "held_out"),
    [
        # 0.07 times 100 is more than 7 in binary numbers.
        ([f"text {number}" for number in range(100)], 0.07, 7),
        ([f"text {number}" for number in range(50)], 0.25, 13),
        (["red cat", "blue dog"] * 6, 0.8, 6),
    ],
)
def test_how_many_rows_are_held_out(texts, fraction, held_out, tmp_path):
    data = write(tmp_path / "a.jsonl", "seq2seq", texts)
    given = {"train_file": [str(data)], "validation_fraction": fraction}
    reader, arguments, rows = read(tmp_path, "seq2seq", **given)
    assert len(hold_out(reader, arguments, rows, 0)["validation"]) == held_out


def test_the_end_of_a_text_is_held_out(tmp_path):
    files = [str(write(tmp_path / "a.jsonl", "causal", TEXTS))]
    reader, arguments, rows = read(tmp_path, "causal", train_file=files, validation_fraction=0.25)
    found = hold_out(reader, arguments, rows, seed=5)
    assert found["train"]["text"][:] == TEXTS[:48]
    assert found["validation"]["text"][:] == TEXTS[48:]


def test_the_only_rows_with_a_label_take_their_copies_with_them(tmp_path):
    pairs = [("a", "x")] * 20 + [("b", "x")] * 20 + [("c", "y")] * 3 + [("d", "x"), ("e", "x")]
    rows = [{"text": text, "label": label} for text, label in pairs]
    data = write_rows(tmp_path / "a.jsonl", rows)
    reader, arguments, rows = read(
        tmp_path, "classify", train_file=[str(data)], validation_fraction=0.4
    )
    for seed in range(8):
        split = hold_out(reader, arguments, rows, seed)
        texts = {name: set(part["text"]) for name, part in split.items()}
        assert not texts["train"] & texts["validation"] and "c" in texts["train"]


def test_lines_of_a_text_are_not_compared_but_the_same_file_is(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the end\nof a film\n" * 9)
    for name, is_seen in (("a.txt", True), ("b.txt", False)):
        files = {"train_file": [str(tmp_path / "a.txt")], "test_file": [str(tmp_path / name)]}
        reader, _, rows = read(tmp_path / name[0], "causal", **files)
        assert ("seen" in mark_seen(reader, rows)["test"].column_names) == is_seen


@pytest.mark.parametrize("is_held_out", [False, True])
def test_data_that_choose_the_model_are_not_new_to_it(is_held_out, tmp_path):
    """Rows of the test file that are only in the validation data count as seen, too."""
    learned = write(tmp_path / "train.jsonl", "classify", TEXTS[:48])
    files = {"train_file": [str(learned)], "test_file": [str(learned)]}
    if is_held_out:
        reader, options, rows = read(tmp_path, "classify", validation_fraction=0.2, **files)
        rows = hold_out(reader, options, rows, seed=0)
    else:
        chosen = write(tmp_path / "validation.jsonl", "classify", TEXTS[48:60])
        files |= {"validation_file": [str(chosen)], "test_file": [str(chosen)]}
        reader, _, rows = read(tmp_path, "classify", **files)
    marked = mark_seen(reader, rows)
    assert all(marked["test"]["seen"]) and "seen" not in marked["validation"].column_names


def test_pairs_are_compared_in_both_texts(tmp_path):
    files = {}
    for name, pairs in {
        "train_file": [("a b", "x"), ("c", "y")],
        "test_file": [("A  B", "X"), ("a b", "y"), ("a", "b x")],
    }.items():
        rows = [{"anchor": anchor, "positive": positive} for anchor, positive in pairs]
        files[name] = [str(write_rows(tmp_path / f"{name}.jsonl", rows))]
    reader, _, rows = read(tmp_path, "embed", **files)
    assert mark_seen(reader, rows)["test"]["seen"][:] == [True, False, False]


@pytest.mark.parametrize("task", RECIPES)
def test_seen_rows_are_named_and_the_metric_is_given_without_them(task, tmp_path, caplog, capsys):
    learned = write(tmp_path / "train.jsonl", task, TEXTS[:48])
    seen = [TEXTS[3].upper(), f"  {TEXTS[5]}", TEXTS[7]]
    test = write(tmp_path / "test.jsonl", task, [*TEXTS[48:60], *seen])
    command = f"{task} {TINY} --max_steps 2 --learning_rate 1e-3 --validation_fraction 0"
    if task == "seq2seq":
        command += " --max_target_length 8"
    model = tmp_path / "m"
    results = train(command, learned, model, test_file=test)
    assert f"{test}:13 ({learned}:4)" in caplog.text
    metric = results["main_metric"]
    card = card_of(model)
    sentence = re.search(rf"Without them, {metric} is (\d+\.\d+)\.", card)
    assert sentence is not None and sentence[0] in capsys.readouterr().out
    assert "3 of the 15 rows of the test data" in card and "test.jsonl:13" in card
    assert str(tmp_path) not in card
    if task in "classify tag seq2seq causal".split():
        others = write(tmp_path / "others.jsonl", task, TEXTS[48:60])
        assert evaluated(model, others)["metrics"]["test"][metric] == pytest.approx(
            float(sentence[1]), abs=1e-4
        )


def test_rows_are_held_out_only_if_others_have_their_label(tmp_path):
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "one\tx\ntwo\ty\n" * 60)
    for fraction in (None, 0.2):
        options = {"train_file": [str(tmp_path / "a.tsv")], "validation_fraction": fraction}
        reader, arguments, rows = read(tmp_path / str(fraction), "classify", **options)
        if fraction is None:
            assert set(hold_out(reader, arguments, rows, seed=0)) == {"train"}
        else:
            with pytest.raises(InputError, match="0.2: every held-out row would be the only one"):
                hold_out(reader, arguments, rows, seed=0)
