"""Data of every format are read, and mistakes are reported by file and line before a training.

More mistakes are tested in tests/fuzz/test_damaged_data.py.
"""

import csv
import gzip
import io
import random
import subprocess
from pathlib import Path

import pytest
from conftest import data_beside
from datasets import Dataset, DatasetDict
from program import TINY, evaluated, train

from roformer_lite.data.data_files import (
    number_of,
    read_lines,
    read_table,
    read_tagged,
    text_of,
)
from roformer_lite.data.splits import load_splits
from roformer_lite.errors import InputError
from roformer_lite.options.tasks import ClassifyDataArguments, TagDataArguments
from roformer_lite.recipes import RECIPES
from roformer_lite.recipes.classify import Classify
from roformer_lite.recipes.classify_rows import MULTI, SINGLE, ClassifyReader, problem_type_in
from roformer_lite.recipes.tag import Tag

TABLES = data_beside(__file__)


@pytest.fixture
def write(tmp_path):
    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


def test_lines_lose_their_ends_and_nothing_else(write):
    content = "\ufeffone\r\n two \u2028still two\x85\n\nfour"
    expected = ["one", " two \u2028still two\x85", "", "four"]
    for name in ("a.txt", "a.txt.gz"):
        path = write(name, content)
        found = [(f"{path}:{number}", line) for number, line in enumerate(expected, start=1)]
        assert list(read_lines(path)) == found


@pytest.mark.parametrize(("by_line", "documents"), [(True, 2), (False, 1)])
def test_a_text_is_a_document_unless_each_line_is_one(by_line, documents, write):
    files = [str(write("a.txt", "one\ntwo\n"))]
    kind = RECIPES["mlm"]
    reader = kind.reader_class(kind.options_class(train_file=files, line_by_line=by_line))
    assert len({row["document"] for row in reader.read_rows(files)}) == documents


def test_lines_too_long_for_a_text_are_refused(write):
    """A compressed file of only a few kilobytes may hold such a line."""
    path = write("a.txt.gz", "a\n" + "x" * 2**24)
    message = r"a\.txt\.gz:2: the line is longer than 16,777,216 bytes.*divide it into lines"
    with pytest.raises(InputError, match=message):
        list(read_lines(path))
    # An open quote makes all lines that follow a part of its field.
    table = write("a.csv.gz", 'a\n"' + ("x" * 2**20 + "\n") * 17)
    with pytest.raises(InputError, match=r"a\.csv\.gz:2: field larger than field limit"):
        list(read_table(table))


def test_tsv_takes_quotes_as_text(write):
    rows = list(read_table(write("a.tsv", 'en\tde\n"Hi"\rhe said\t"\n\nx\ty\n')))
    assert [row["columns"] for row in rows] == [
        {"en": '"Hi"\rhe said', "de": '"'},
        {"en": "x", "de": "y"},
    ]
    assert [row["origin"].rpartition(":")[2] for row in rows] == ["2", "4"]


def test_csv_fields_may_span_lines_and_the_first_counts(write):
    path = write("a.csv", 'text,label\n"two\nlines, ""quoted""",a\nplain,b\n')
    rows = list(read_table(path))
    assert rows[0]["columns"]["text"] == 'two\nlines, "quoted"'
    assert [row["origin"] for row in rows] == [f"{path}:2", f"{path}:4"]


def test_tagged_columns(write):
    path = write("a.iob2", "-DOCSTART- -X- O\n\n# X O\nBerlin NNP B-LOC\n \n\n1\tCD\tO\n")
    rows = list(read_tagged(path))
    assert [(row["tokens"], row["tags"]) for row in rows] == [
        (["#", "Berlin"], ["O", "B-LOC"]),
        (["1"], ["O"]),
    ]
    assert [row["origin"] for row in rows] == [f"{path}:3", f"{path}:7"]


# White space and invisible characters that may occur inside a token, but separate no columns.
INSIDE_TOKENS = "\u00a0\u202f\u2009\u3000\x85\u2028\u2029\x0b\x0c\x1c\u200b\ufeff"


@pytest.mark.parametrize("separator", [" ", "\t"])
@pytest.mark.parametrize("inside", INSIDE_TOKENS, ids=ascii)
def test_only_tabs_and_spaces_separate_tokens(inside, separator, write):
    """Both in a file and in a line of `predict`, a token such as 10 000 stays whole."""
    token = f"10{inside}000"
    path = write("a.conll", f"Preis{separator}O\n{token}{separator}B-NUM\n")
    rows = list(read_tagged(path))
    assert [row["tokens"] for row in rows] == [["Preis", token]]
    recipe = RECIPES["tag"](TagDataArguments(train_file=[str(path)], unit="words"))
    assert recipe.input_of_line(f" Preis{separator}{token} ") == ["Preis", token]


CELLS = ["a", "", "b\nc", "d\r\ne", 'f "g"', "h,i", " j ", "\r\n", "k\n\nl"]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_cells_of_a_table_are_read_as_they_are(width, line_end, write):
    """Empty cells and line ends in cells are kept, whatever ends the lines of the file."""
    chance = random.Random(width)
    names = [f"column {number}" for number in range(width)]
    rows = [chance.choices(CELLS, k=width) for _ in range(160)]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator=line_end, quoting=csv.QUOTE_ALL)
    writer.writerows([names, *rows])
    found = [row["columns"] for row in read_table(write("a.csv", stream.getvalue()))]
    assert found == [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_blank_line_of_a_single_column_is_an_empty_cell(name, write):
    rows = list(read_table(write(name, "text\na\n\nb\n")))
    assert [row["columns"]["text"] for row in rows] == ["a", "", "b"]


@pytest.mark.parametrize("separator", ["\t", "\n", "\r", "\r\n", "\u2028", "\x0b", ","])
@pytest.mark.parametrize("place", ["{}a", "a{}b", "a{}"])
def test_labels_that_would_break_an_answer_are_refused(separator, place):
    """A comma separates only several labels of a row."""
    label = place.format(separator)
    rows = [
        {"text": "a", "labels": [name], "tokens": ["a"], "tags": [name]}
        for name in (label, "other")
    ]
    splits = DatasetDict(train=Dataset.from_list(rows))
    for task, problem_type in (("tag", None), ("classify", SINGLE), ("classify", MULTI)):
        kind = RECIPES[task]
        given = {} if task == "tag" else {"problem_type": problem_type}
        options = kind.options_class(dataset_name="any", **given)
        if separator == "," and problem_type != MULTI:
            kind.inspect(options, splits)
        else:
            with pytest.raises(InputError, match=f"the {kind.label_word} .* contains"):
                kind.inspect(options, splits)


@pytest.mark.parametrize("problem_type", [SINGLE, MULTI])
def test_a_label_of_two_lines_is_shown_in_one(problem_type):
    """A model from elsewhere may have such a label."""
    recipe = Classify(
        ClassifyDataArguments(dataset_name="any"),
        labels={"a\r\n\tb": 0, "other": 1},
        problem_type=problem_type,
    )
    shown = recipe.show({"a\r\n\tb": 0.9, "other": 0.1}, {})
    assert shown.columns["label"] == "a\r\n\tb"
    assert len(shown.line.splitlines()) == 1
    assert shown.line.count("\t") == (problem_type == SINGLE)


def test_numbers_with_a_fraction_are_no_labels():
    reader = ClassifyReader(ClassifyDataArguments(dataset_name="any"))
    row = {"columns": {"text": "a", "label": 1}, "origin": "x"}
    assert reader.select_columns(row)["labels"] == ["1"]
    for number in (1.0, 0.5):
        with pytest.raises(InputError, match="--problem_type regression"):
            reader.select_columns({"columns": {"text": "a", "label": number}, "origin": "x"})
    with pytest.raises(InputError, match="not zeros and ones"):
        reader.select_columns({"columns": {"text": "a", "label": [1, 0, 1]}, "origin": "x"})


def test_separators_alone_stand_for_no_label():
    reader = ClassifyReader(ClassifyDataArguments(dataset_name="any", label_separator=";"))
    rows = [{"columns": {"text": "a", "label": label}, "origin": "x"} for label in (";", " a;b ")]
    assert [reader.select_columns(row)["labels"] for row in rows] == [[], ["a", "b"]]


def tagger(tokens: list[str], tags: list[str]) -> Tag:
    """Return a recipe that has inspected one sentence."""
    rows = DatasetDict(train=Dataset.from_list([{"tokens": tokens, "tags": tags}]))
    return Tag.inspect(TagDataArguments(dataset_name="any"), rows)


def test_words_are_split_into_characters_with_a_word_about_it(caplog):
    caplog.set_level("INFO", "roformer_lite")
    for tokens, is_said in ((["北京", "大"], True), (["北", "京"], False), (["Rome", "大"], False)):
        caplog.clear()
        recipe = tagger(tokens, ["B-LOC", "O"])
        assert (recipe.unit == "characters") == (tokens[0] != "Rome")
        assert ("--unit words" in caplog.text) == is_said
    assert tagger(["北京", "大"], ["U-LOC", "O"]).unit == "words"
    assert tagger(["北京", "大"], ["NR", "JJ"]).unit == "words"


@pytest.mark.parametrize(
    ("labels", "problem_type"),
    [
        (['"a"', '["b", "c"]'], MULTI),
        (['["a"]', '"b"'], MULTI),
        (['"a"', '"b"'], SINGLE),
        # Datasets infers types from the first thousand rows.
        (["[]"] * 1001 + ['["a", "b"]'], MULTI),
    ],
    ids=["list later", "list first", "no list", "no label before"],
)
def test_all_rows_decide_whether_a_row_may_have_several_labels(
    labels, problem_type, write, tmp_path
):
    lines = [f'{{"text": "one", "label": {label}}}\n' for label in labels]
    files = [str(write("a.jsonl", "".join(lines)))]
    options = ClassifyDataArguments(train_file=files)
    rows = load_splits(ClassifyReader(options), options, tmp_path / "rows")
    assert rows["train"][-1]["labels"][0] in labels[-1]
    assert problem_type_in(options, rows) == problem_type
    assert Classify.inspect(options, rows).problem_type == problem_type


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("case", TABLES["delimited"].values(), ids=TABLES["delimited"])
def test_the_header_says_how_columns_are_separated(case, line_end, write):
    path = write("a.csv", case["file"].replace("\n", line_end))
    (row,) = read_table(path)
    cells = list(row["columns"].values())
    assert cells == [cell.replace("\n", line_end) for cell in case["cells"]]
    assert not any("\ufeff" in name for name in row["columns"])


def test_the_number_of_columns_says_how_they_are_separated(write):
    """This counts in a file without a header line."""
    for content in ("Yes; well; no,pos\n", '"Yes, well, no";pos\n'):
        (row,) = read_table(write("a.csv", content), ["text", "label"])
        assert row["columns"]["label"] == "pos" and row["columns"]["text"][:3] == "Yes"
    # Both the semicolon and the decimal comma make two columns.
    with pytest.raises(InputError, match="a.csv.*--column_names"):
        list(read_table(write("a.csv", "a good film;1,7\n"), ["text", "label"]))


def test_training_and_evaluation_read_delimited_tables(write, current_folder):
    """A table of Excel with three classes."""
    names = ["Störung"] * 75 + ["Rechnung"] * 20 + ["Kündigung"] * 5
    cells = [["Nr", "Freitext", "Art"]]
    cells += [[f"K{number}", f"Hallo; \n{name}", name] for number, name in enumerate(names)]
    for name, delimiter in (("a.csv", ";"), ("b.csv", "|")):
        stream = io.StringIO()
        csv.writer(stream, delimiter=delimiter).writerows(cells)
        write(name, f"\ufeff{stream.getvalue()}")
    columns = {"text_column": "Freitext", "label_column": "Art"}
    model = current_folder / "m"
    command = f"classify {TINY} --max_steps 1 --baselines false"
    train(command, Path("a.csv"), model, **columns)
    found = [evaluated(model, Path("a.csv")), evaluated(model, Path("b.csv"))]
    assert found[0]["metrics"] == found[1]["metrics"]


@pytest.mark.parametrize(("value", "number"), TABLES["numbers"].items())
def test_numbers_have_a_decimal_point(value, number):
    row = {"columns": {"score": value}, "origin": "a.csv:7"}
    if number is None:
        with pytest.raises(InputError, match="a.csv:7: column 'score' must be a number"):
            number_of(row, "score")
    else:
        assert number_of(row, "score") == number


@pytest.mark.parametrize("case", TABLES["encodings"])
def test_another_encoding_is_reported_with_a_command(case, write):
    """The message names the file and the line. Its command converts text of Windows."""
    given = TABLES["encodings"][case]
    path = write("my table.csv", given["file"].encode(given["encoding"]))
    with pytest.raises(InputError, match=f"my table.csv:{given['line']}: ") as refused:
        list(read_table(path))
    if case == "Windows-1252":
        command = str(refused.value).split("`")[1].split()
        converted = subprocess.run([*command, path], capture_output=True, check=True).stdout
        (row,) = read_table(write("b.csv", converted))
        assert list(row["columns"].values()) == ["schön – „gut“", "a"]


def test_columns_with_similar_names_are_suggested(write):
    (row,) = read_table(write("a.csv", "Nr;Freitext;Kategorie;te\u200bxt\n1;x;y;z\n"))
    for wrong, meant in (
        ("Kategory", "Kategorie"),
        ("FREITEXT", "Freitext"),
        ("text", r"'te\u200bxt'"),
        ("qqq", None),
    ):
        with pytest.raises(InputError) as refused:
            text_of(row, wrong, "text_column")
        message = str(refused.value)
        assert "Nr, Freitext, Kategorie" in message and "--text_column" in message
        assert message.endswith(f"; did you mean {meant}?") or meant is None
        assert ("did you mean" in message) == (meant is not None)
