"""Reading data: every format, and complaints that name file and line."""

import gzip
from itertools import islice
from pathlib import Path

import pytest

from roformer_lite.data.data_files import (
    file_format,
    numbered_lines,
    read_parallel,
    read_table,
    read_tagged,
    text_of,
)
from roformer_lite.errors import InputError


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
    expected = [(1, "one"), (2, " two \u2028still two\x85"), (3, ""), (4, "four")]
    assert list(numbered_lines(write("a.txt", content))) == expected
    assert list(numbered_lines(write("a.txt.gz", content))) == expected


def test_undecodable_line_is_named(write):
    path = write("a.txt", "gut\nsch\u00f6n\n".encode() + b"sch\xf6n\n")
    with pytest.raises(InputError, match=r"a\.txt:3: byte 4 of the line \(0xf6\) is not UTF-8"):
        list(numbered_lines(path))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_empty_file(write, name):
    with pytest.raises(InputError, match=f"{name}: the file is empty"):
        list(numbered_lines(write(name, "")))


def test_files_that_cannot_be_read(write, tmp_path):
    with pytest.raises(InputError, match="nothing.txt: No such file"):
        list(numbered_lines(tmp_path / "nothing.txt"))
    whole = write("a.txt.gz", "line\n" * 100_000).read_bytes()
    (tmp_path / "cut.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cut.txt.gz: cannot be decompressed after line"):
        list(numbered_lines(tmp_path / "cut.txt.gz"))
    (tmp_path / "plain.txt.gz").write_text("not compressed")
    with pytest.raises(InputError, match="plain.txt.gz: cannot be decompressed"):
        list(numbered_lines(tmp_path / "plain.txt.gz"))


def test_format_is_the_suffix_without_gz():
    assert [file_format(name) for name in ("a.tsv", "A.TSV.GZ", "b.c.jsonl.gz", "none")] == [
        ".tsv",
        ".tsv",
        ".jsonl",
        "",
    ]


def test_tsv_takes_quotes_as_text(write):
    rows = list(read_table(write("a.tsv", 'en\tde\n"Hi" he said\t"\n\nx\ty\n')))
    assert rows == [
        {"en": '"Hi" he said', "de": '"', "origin": rows[0]["origin"]},
        {"en": "x", "de": "y", "origin": rows[1]["origin"]},
    ]
    assert [row["origin"].rpartition(":")[2] for row in rows] == ["2", "4"]


def test_csv_fields_may_span_lines_and_the_first_counts(write):
    path = write("a.csv", 'text,label\n"two\nlines, ""quoted""",a\nplain,b\n"open,c\n')
    rows = list(islice(read_table(path), 2))
    assert rows[0]["text"] == 'two\nlines, "quoted"'
    assert [row["origin"] for row in rows] == [f"{path}:2", f"{path}:4"]
    with pytest.raises(InputError, match=r"a\.csv:5: "):
        list(read_table(path))


def test_long_fields(write):
    long = "x" * 500_000
    assert next(read_table(write("a.tsv", f"text\n{long}\n")))["text"] == long


def test_table_without_header(write):
    rows = list(read_table(write("a.tsv", "x\ty\n"), ["source", "target"]))
    assert (rows[0]["source"], rows[0]["target"], rows[0]["origin"][-2:]) == ("x", "y", ":1")


def test_ragged_rows_and_double_headers(write):
    with pytest.raises(InputError, match=r"a\.tsv:3: 3 columns, but there should be 2: en, de"):
        list(read_table(write("a.tsv", "en\tde\nx\ty\nx\ty\tz\n")))
    with pytest.raises(InputError, match=r"b\.csv:1: the header names a column twice"):
        list(read_table(write("b.csv", "the,the\nx,y\n")))


def test_jsonl(write):
    path = write("a.jsonl.gz", '{"t": {"en": "x"}, "n": 1}\n\n[1]\n')
    rows = read_table(path)
    first = next(rows)
    assert text_of(first, "t.en") == "x"
    with pytest.raises(InputError, match=r"a\.jsonl\.gz:1: no column 't\.de'; the columns are: t, n"):
        text_of(first, "t.de")
    with pytest.raises(InputError, match="name the right one with --label_column, or, if the file has no header"):
        text_of(first, "label", "label_column")
    with pytest.raises(InputError, match=r"a\.jsonl\.gz:1: column 'n' must be text, not 1"):
        text_of(first, "n")
    with pytest.raises(InputError, match=r"a\.jsonl\.gz:3: a JSON object is needed"):
        next(rows)
    with pytest.raises(InputError, match=r"b\.jsonl:1: not JSON"):
        list(read_table(write("b.jsonl", '{"a": \n')))


def test_unknown_format(write):
    with pytest.raises(InputError, match=r"unknown format '\.xlsx'; rows come from \.tsv, \.csv, \.jsonl"):
        list(read_table(write("a.xlsx", "x")))


def test_parallel_files_must_agree(write):
    source, target = write("a.en.gz", "one\ntwo\nthree\n"), write("a.de", "eins\nzwei\ndrei\n")
    assert [(row["source"], row["target"]) for row in read_parallel(source, target)] == [
        ("one", "eins"),
        ("two", "zwei"),
        ("three", "drei"),
    ]
    with pytest.raises(InputError, match=r"a\.en\.gz has 3 lines, but .*b\.de has 4"):
        list(read_parallel(source, write("b.de", "eins\nzwei\ndrei\nvier\n")))


def test_tagged_columns(write):
    content = "-DOCSTART- -X- O\n\n# text = # is a sign\n1\t#\tO\n# \tB-X\tO\n\n\n1\tBerlin\tB-LOC"
    path = write("a.iob2", content.replace("-DOCSTART- -X- O", "0\t-DOCSTART-\tO"))
    rows = list(read_tagged(path, 2, 3))
    assert [(row["tokens"], row["tags"]) for row in rows] == [(["#", "B-X"], ["O", "O"]), (["Berlin"], ["B-LOC"])]
    assert [row["origin"] for row in rows] == [f"{path}:4", f"{path}:8"]
    spaces = write("b.txt", "EU NNP B-ORG\nrejects VBZ O\n")
    assert next(read_tagged(spaces, 1, -1))["tags"] == ["B-ORG", "O"]
    with pytest.raises(InputError, match=r"b\.txt:1: no column 4; the line has 3"):
        list(read_tagged(spaces, 1, 4))
    with pytest.raises(InputError, match=r"c\.tsv:1: column 2 is empty"):
        list(read_tagged(write("c.tsv", "EU\t\tO\n"), 2, 3))
