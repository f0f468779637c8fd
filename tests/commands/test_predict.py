"""`predict`: tables and lines have the same answers, and no file is lost or half-written."""

import csv
import errno
import io
import json
import os
import shutil
import stat
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch
from program import (
    answered,
    change_fields,
    read_json,
    refused,
    run,
    write_csv,
    write_json,
    write_rows,
)
from saved_models import save_bert, save_model
from sentence_transformers import CrossEncoder
from tokenizers import pre_tokenizers
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    GenerationConfig,
    SqueezeBertConfig,
    SqueezeBertForSequenceClassification,
    pipeline,
)

import roformer_lite
from hf_roformer_lite.conversion.checkpoints import load_model
from roformer_lite import answers
from roformer_lite.commands import predict as predict_command
from roformer_lite.data.data_files import read_table
from roformer_lite.errors import InputError
from roformer_lite.output import complete_file
from roformer_lite.recipes import loaded_model

TEXTS = ["one two three", "four, five", "", "six seven one", "two"]
LABELS = list("bca")


KINDS = "classify labels pairs number tag mlm causal seq2seq".split()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A directory with an untrained model of every kind that predicts."""
    folder = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        save_model(kind, folder / kind)
    return folder


@pytest.fixture(autouse=True)
def place(current_folder) -> None:
    """Run each test in a folder with lines and tables."""
    Path("lines.txt").write_text("".join(text + "\n" for text in TEXTS))
    rows = [{"number": i, "review": text, "note": "a\nb"} for i, text in enumerate(TEXTS)]
    write_csv(Path("x.csv"), rows)
    rows = [{"review": text or None, "number": i} for i, text in enumerate(TEXTS)]
    write_rows(Path("x.jsonl"), rows)


def predict(model: Path, source: str, target: str, *options: str, status: int = 0) -> str:
    """Run `predict`, and return its messages."""
    files = {"input_file": source, "output_file": target, "device": "cpu"}
    with redirect_stderr(io.StringIO()) as messages:
        run("predict", model, *options, status=status, **files)
    return messages.getvalue()


def table_of(model: Path, source: str, target: str, *options: str) -> list[dict]:
    predict(model, source, target, "--text_column", "review", *options)
    return [row["columns"] for row in read_table(target)]


@pytest.mark.parametrize("kind", "classify number tag mlm seq2seq".split())
def test_a_table_has_the_answers_of_the_lines(models, kind):
    """Tables hold labels with scores, numbers, lists of tags and texts."""
    names = {"classify": ["label", "score"], "number": ["value"], "tag": ["tags"]}
    rows = table_of(models / kind, "x.jsonl", "y.jsonl")
    for text, row, line in zip(TEXTS, rows, answered(models / kind, TEXTS), strict=True):
        assert [*row] == ["review", "number", *names.get(kind, ["prediction"])]
        review, _, *answer = row.values()
        assert (review or "") == text
        if not text:
            assert line == "" and answer == [None] * len(answer)
        elif kind == "tag":
            assert [word.rpartition("/")[2] for word in line.split()] == answer[0]
        elif kind == "number":
            assert float(line) == answer[0]
        else:
            cells = [cell if isinstance(cell, str) else f"{cell:.4f}" for cell in answer]
            assert line.split("\t") == [" ".join(cell.split("\n")) for cell in cells]
    written = table_of(models / kind, "x.csv", "y.csv")[0]
    for cell, value in zip([*written.values()][3:], [*rows[0].values()][2:], strict=True):
        assert cell == (json.dumps(value) if kind == "tag" else str(value))


def test_a_header_is_never_answered(models):
    """Lines are not written as a table, and a table without the model's column is not read as
    lines."""
    assert "y.jsonl is a table, but the input is read line by line" in predict(
        models / "classify", "lines.txt", "y.jsonl", status=2
    )
    Path("x.tsv").write_text("number\ta fine film, again\n1\tfine\n")
    for source, columns in (
        ("x.tsv", "number, a fine film, again"),
        ("x.csv", "number, review, note"),
        ("x.jsonl", "review, number"),
    ):
        target = f"y{Path(source).suffix}"
        for kind, column in (("classify", "text"), ("pairs", "text"), ("tag", "tokens")):
            message = predict(models / kind, source, target, status=2)
            assert f"no column {column!r}; the columns are: {columns};" in message
            assert "--text_column" in message
        assert not Path(target).exists()
    for name in ("x.json", "x.conll"):
        shutil.copy("x.jsonl", name)
        assert "a .jsonl file" in predict(models / "classify", name, "y.jsonl", status=2)
    # Without a header, the first line may have other delimiters, too.
    predict(models / "classify", "x.tsv", "y.tsv", "--column_names", "number", "text")
    _, first, second = Path("y.tsv").read_text().splitlines()
    assert first.startswith("number\ta fine film, again\t") and second.startswith("1\tfine\t")


def test_a_table_keeps_its_delimiter(models):
    """The output has the delimiter and the mark of the input if it has the same suffix, and
    otherwise the usual delimiter of its own suffix. Cells are quoted where they must be."""
    cells = [["1", 'a; "b"\nc'], ["2", "d, e"]]
    for delimiter, mark in ((";", "\ufeff"), ("\t", ""), ("|", "")):
        with open("x.csv", "w", newline="") as stream:
            stream.write(mark)
            csv.writer(stream, delimiter=delimiter).writerows([["Nr", "text"], *cells])
        predict(models / "classify", "x.csv", "same.csv")
        predict(models / "classify", "x.csv", "y.jsonl")
        with open("same.csv", newline="") as stream:
            header, *rows = csv.reader(stream, delimiter=delimiter, strict=True)
        assert header == [f"{mark}Nr", "text", "label", "score"]
        assert [row[:2] for row in rows] == cells
        for row, line in zip(rows, Path("y.jsonl").read_text().splitlines(), strict=True):
            assert [str(cell) for cell in json.loads(line).values()] == row


def test_a_reranker_of_another_program_takes_pairs():
    """Its class is that of a classifier, but a file of the library, or in older versions a field of
    the configuration, marks it."""
    theirs = save_model("rerank", Path("theirs"))
    for name in ("results.json", "modules.json"):
        (theirs / name).unlink()
    model = CrossEncoder("theirs", device="cpu")
    model.save_pretrained("saved")
    fields = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    change_fields(theirs / "config.json", sentence_transformers=fields)
    texts = [text for text in TEXTS if text]
    expected = model.predict([("query", text) for text in texts])
    for directory in (theirs, Path("saved")):
        lines = answered(directory, [f"query\t{text}" for text in texts])
        assert [float(line) for line in lines] == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_cross_encoder_with_several_labels_is_a_classifier(models):
    theirs = shutil.copytree(models / "pairs", Path("theirs"))
    change_fields(theirs / "config.json", sentence_transformers={"version": "6.2.0"})
    (theirs / "results.json").unlink()
    assert answers.open_model(theirs, device="cpu").recipe.name == "classify"


def test_weights_in_half_precision_answer_in_float32(models):
    load_model(models / "classify").bfloat16().save_pretrained("half")
    AutoTokenizer.from_pretrained(models / "classify").save_pretrained("half")
    load_model("half").float().save_pretrained("whole")
    AutoTokenizer.from_pretrained("half").save_pretrained("whole")
    half, whole = (answers.open_model(name, "cpu") for name in ("half", "whole"))
    assert half.answers(TEXTS, 1) == whole.answers(TEXTS, 1)


def test_line_breaks_separate_the_words_of_a_text(models):
    texts = ["Paula is\there", "Paula\nis\r\n\nhere"]
    one, other = (row["tags"] for row in roformer_lite.predict(models / "tag", texts))
    assert len(one) == 3 and one == other


def test_an_empty_word_is_refused(models):
    for words in (["Paula", ""], ["Paula", " "], ["Paula", 3]):
        with pytest.raises(InputError, match="row 1: column 'tokens' must be a list of texts"):
            roformer_lite.predict(models / "tag", [{"tokens": words}])
    with pytest.raises(InputError, match=r"must be text, not \{'a': 'b+\.\.\.b+'\}$"):
        roformer_lite.predict(models / "tag", [{"tokens": {"a": "b" * 300}}])


def test_the_most_probable_labels(models):
    first = answered(models / "classify", TEXTS)
    ranked = answered(models / "classify", TEXTS, top_k=3)
    for line, best in zip(ranked, first, strict=True):
        assert line.startswith(best)
        if best:
            cells = line.split("\t")
            scores = [float(score) for score in cells[1::2]]
            assert set(cells[::2]) == set(LABELS)
            assert scores == sorted(scores, reverse=True)
            assert sum(scores) == pytest.approx(1, abs=2e-4)


def test_below_the_threshold_there_is_no_label(models):
    plain = [line.split("\t") for line in answered(models / "classify", TEXTS) if line]
    scores = sorted(float(score) for _, score in plain)
    between = sum(scores[1:3]) / 2
    lines = answered(models / "classify", TEXTS, threshold=between)
    found = [line.split("\t") for line in lines]
    expected = [[label if float(score) > between else "-", score] for label, score in plain]
    assert [row for row in found if len(row) > 1] == expected
    assert "-" in {label for label, _ in expected}
    rows = table_of(models / "labels", "x.jsonl", "y.jsonl", "--threshold", "0.0")
    assert [row["label"] for row in rows if row["label"]] == [";".join(LABELS)] * 4
    assert set(answered(models / "labels", TEXTS, threshold=1.0)) == {"-", ""}


@torch.no_grad()
def test_answers_are_those_of_the_model(models):
    """The model itself, which gets one text at a time and no padding, gives the same labels by
    their names, sets of labels, numbers, tags of words, masks and pairs."""
    loaded = {
        kind: (load_model(models / kind), AutoTokenizer.from_pretrained(models / kind))
        for kind in KINDS
    }

    def logits(kind: str, *texts: str) -> torch.Tensor:
        model, tokenizer = loaded[kind]
        return model(**tokenizer(*texts, return_tensors="pt")).logits[0]

    for number, text in enumerate(TEXTS):
        found = {
            kind: answered(models / kind, TEXTS)[number]
            for kind in "classify labels number tag mlm".split()
        }
        if not text:
            assert set(found.values()) == {""}
            continue
        scores = logits("classify", text).softmax(-1)
        assert found["classify"] == f"{LABELS[scores.argmax()]}\t{scores.max():.4f}"
        chosen = [
            label for label, score in zip(LABELS, logits("labels", text), strict=True) if score > 0
        ]
        assert found["labels"] == ";".join(chosen)
        number = logits("number", text).item()
        assert float(found["number"]) == pytest.approx(number, rel=1e-4)
        # A number is written with six significant digits, whatever its size.
        assert float(found["number"]) == float(f"{float(found['number']):.6g}")
        model, tokenizer = loaded["tag"]
        words = text.split()
        encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        # A word is tagged at its first token that has text. A token may also be the space before
        # the word.
        has_text = [bool(tokenizer.decode(token).strip()) for token in encoded["input_ids"][0]]
        of_tokens = list(zip(encoded.word_ids(), has_text, strict=True))
        first = [of_tokens.index((word, True)) for word in range(len(words))]
        best = model(**encoded).logits[0].argmax(-1)[first].tolist()
        tags = [model.config.id2label[index] for index in best]
        tagged = [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
        assert found["tag"] == " ".join(tagged)
        # The texts have no mask, so there is nothing to fill.
        assert found["mlm"] == text
    scores = logits("pairs", "one", "two").softmax(-1)
    (found,) = answered(models / "pairs", ["one\ttwo"])
    assert found == f"LABEL_{scores.argmax()}\t{scores.max():.4f}"


def test_causal_models_draw_their_text(models):
    model = shutil.copytree(models / "causal", Path("causal"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    # Llama's tokenizer marks the beginning of a text, but not of a text after a token.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("e", "first")
    tokenizer.save_pretrained(model)
    drawn = answered(model, TEXTS, max_new_tokens=8)
    assert drawn == answered(model, TEXTS, max_new_tokens=8, seed=42)
    assert drawn != answered(model, TEXTS, max_new_tokens=8, seed=1)
    assert drawn[2] == ""
    greedy = answered(model, TEXTS, max_new_tokens=8, beams=1)
    assert greedy != drawn
    narrow = shutil.copytree(model, Path("narrow"))
    GenerationConfig.from_pretrained(model, top_k=1).save_pretrained(narrow)
    assert greedy == answered(narrow, TEXTS, max_new_tokens=8)
    loaded = load_model(model)
    prompt = [tokenizer.cls_token_id, *tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]]
    generated = loaded.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0]
    new = generated[len(prompt) :]
    lines = tokenizer.decode(new, skip_special_tokens=True).split("\n")
    assert " ".join(lines).strip() == greedy[0]


NONE = "which takes none of these options"
SOME = "which takes --top_k, --threshold"
REFUSED = [
    ("mlm", "--top_k 2", f"--top_k is not for this mlm model, {NONE}"),
    ("classify", "--seed 1", f"--seed is not for this classify model, {SOME}"),
    (
        "classify",
        "--text_pair_column review",
        f"--text_pair_column is not for this classify model, {SOME}",
    ),
    ("classify", "--top_k 4", "--top_k 4: this model has 3 labels"),
    ("number", "--threshold 0.5", f"--threshold is not for this classify model, {NONE}"),
]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED)
def test_options_that_a_model_does_not_use(models, kind, options, message):
    assert message in predict(models / kind, "x.csv", "y.csv", *options.split(), status=2)
    assert not Path("y.csv").exists()


def test_mistakes_in_a_table_leave_the_output_as_it_was(models):
    Path("y.csv").write_text("kept")
    Path("label.csv").write_text("review,label\none,good\n")
    Path("other.jsonl").write_text('{"review": "one"}\n{"review": "two", "more": 1}\n')
    options = ["y.csv", "--text_column", "review"]
    for source, message in (
        (
            "label.csv",
            "label.csv:2: the table already has a column 'label'; put a prefix before the names",
        ),
        ("other.jsonl", "other.jsonl:2: the columns are review, more"),
    ):
        assert message in predict(models / "classify", source, *options, status=2)
    assert Path("y.csv").read_text() == "kept"


def test_a_file_is_replaced_as_a_whole(models):
    """A link to the file stays a link, and the file keeps its permissions."""
    before = sorted(os.listdir())
    Path("old.txt").write_text("old")
    Path("old.txt").chmod(0o640)
    Path("link.txt").symlink_to("old.txt")
    predict(models / "classify", "lines.txt", "link.txt")
    assert Path("link.txt").is_symlink() and stat.S_IMODE(Path("old.txt").stat().st_mode) == 0o640
    assert sorted(os.listdir()) == sorted(["link.txt", "old.txt", *before])
    assert Path("old.txt").read_text().splitlines() == answered(models / "classify", TEXTS)


def test_two_commands_write_the_same_file():
    """The file is that of the command that ends last."""
    before = os.listdir()
    with complete_file("same.txt") as one:
        one.write("one\n" * 9)
        with complete_file("same.txt") as other:
            other.write("other\n")
        assert Path("same.txt").read_text() == "other\n"
    assert Path("same.txt").read_text() == "one\n" * 9
    assert sorted(os.listdir()) == sorted(["same.txt", *before])


def test_answers_replace_neither_the_model_nor_the_input(models):
    model = shutil.copytree(models / "classify", "model")
    Path("linked_model").symlink_to("model", target_is_directory=True)
    Path("link.txt").symlink_to("lines.txt")
    kept = [Path("model/config.json"), Path("lines.txt")]
    before = [path.read_bytes() for path in kept]
    names = ["linked_model/config.json", "./lines.txt", "link.txt"]
    for target in (*kept, *names):
        assert str(target) in predict(model, "lines.txt", target, status=2)
    assert [path.read_bytes() for path in kept] == before


def test_a_standard_output_that_is_not_utf_8(models, monkeypatch):
    Path("cats.txt").write_text("a cat 猫\n")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    run("predict --input_file cats.txt --device cpu", models / "mlm")
    sys.stdout.flush()
    assert written.getvalue().decode() == "a cat 猫\n"


def test_white_space_around_a_text_does_not_matter(models):
    """A text may have white space on either side, and so may both parts of a pair."""
    spaced = [f" \t{text}\u3000 \r" for text in TEXTS]
    for kind in "classify seq2seq mlm number".split():
        assert answered(models / kind, spaced) == answered(models / kind, TEXTS)
    pairs = ["one\ttwo", " one \t two ", "cat\t", "\tcat", "\t"]
    first, second, *empty = answered(models / "pairs", pairs)
    assert first == second != "" and empty == ["", "", ""]


def test_masks_are_filled_as_by_the_pipeline(models):
    """Two masks are filled, too; the pipeline fills one of them at a time."""
    fill = pipeline("fill-mask", model=str(models / "mlm"))
    mask = fill.tokenizer.mask_token
    texts = [f"a {mask} film", f"far too {mask}", f"a {mask} {mask}"]
    first, second, both = answered(models / "mlm", texts)
    special = set(fill.tokenizer.all_special_ids)
    for text, answer in zip(texts, (first, second), strict=False):
        found = [each for each in fill(text, top_k=20) if each["token"] not in special]
        assert answer == found[0]["sequence"]
    assert mask not in both and len(both.split()) == 3


def test_masks_are_not_filled_with_spaces(models):
    """A line end may be the most probable token."""
    saved = answers.open_model(models / "mlm", device="cpu")
    tokenizer = saved.tokenizer
    texts = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
    blank = [number for number, text in enumerate(texts) if not text.strip(" \n\t")]

    def prefer_blank(module: torch.nn.Module, inputs: Any, output: Any) -> None:
        output.logits[..., blank] += 100

    saved.model.register_forward_hook(prefer_blank)
    (answer,) = saved.answers([f"far {tokenizer.mask_token} long"], batch_size=1)
    assert blank and len(answer["prediction"].split()) == 3


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")]
)
def test_an_interruption_or_a_full_disk_leaves_the_output_as_it_was(models, monkeypatch, error):
    answer = answers.SavedModel.answers

    def failing(self, inputs, *arguments, **options):
        # Two lines are tried before the others, and they succeed.
        if len(inputs) > 2:
            raise error
        return answer(self, inputs, *arguments, **options)

    Path("answers.txt").write_text("kept")
    before = sorted(os.listdir())
    monkeypatch.setattr(answers.SavedModel, "answers", failing)
    status = 130 if isinstance(error, KeyboardInterrupt) else 2
    said = predict(models / "classify", "lines.txt", "answers.txt", status=status)
    if status == 2:
        assert "no space left" in said.lower()
    assert Path("answers.txt").read_text() == "kept" and sorted(os.listdir()) == before


def test_only_files_are_written(models):
    os.mkfifo("pipe")
    for target in ("/dev/full", "pipe"):
        said = predict(models / "classify", "lines.txt", target, status=2)
        assert f"{target} is a directory or a device" in said


def test_texts_longer_than_a_table_of_positions(models):
    """They are refused by models that do not read windows, as classifiers do."""
    config = load_model(models / "mlm").config
    config.update({"position_embedding_type": "learned", "max_position_embeddings": 24})
    config.rope_parameters = None
    AutoModelForMaskedLM.from_config(config).save_pretrained("m")
    tokenizer = AutoTokenizer.from_pretrained(models / "mlm")
    tokenizer.model_max_length = 10**6
    tokenizer.save_pretrained("m")
    Path("lines.txt").write_text("a few words\n" + "fine " * 40 + "\n")
    said = predict(Path("m"), "lines.txt", "lines.out", status=2)
    assert "this model has positions for only 24" in said


def test_mistakes_are_found_before_the_model_is_loaded(monkeypatch):
    monkeypatch.setattr(
        predict_command, "open_model", lambda *_: pytest.fail("the model was loaded")
    )
    Path("m").mkdir()
    for options, message in (
        ("--text_column a", "--text_column a has no effect with lines of text"),
        ("--input_file lines.txt --prefix a", "--prefix a has no effect with lines of text"),
    ):
        assert message in refused(f"predict m {options}")
    Path("y.txt").write_text("kept")
    # Root may write every file, so the system's answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    message = "--output_file y.txt: the file is write-protected"
    assert message in refused("predict m --input_file lines.txt --output_file y.txt")
    assert sorted(os.listdir()) == "lines.txt m x.csv x.jsonl y.txt".split()


def test_a_table_is_read_by_the_column_that_the_model_was_trained_on(models):
    """The columns of a reranker depend on the kind of its training data."""
    reranker = save_model("rerank", Path("reranker"))
    (reranker / "results.json").write_text('{"task": "rerank", "settings": {"kind": "scores"}}')
    Path("pairs.csv").write_text("sentence1,sentence2,score\none,two,0.5\n")
    predict(reranker, "pairs.csv", "found.csv", "--prefix", "predicted_")
    assert Path("found.csv").read_text().startswith("sentence1,sentence2,score,predicted_score\n")
    # The column of a tagger may lie in another one.
    tagger = shutil.copytree(models / "tag", Path("tagger"))
    settings = {"token_column": "sentence.words"}
    write_json(tagger / "results.json", {"settings": settings})
    write_json(Path("rows.jsonl"), {"sentence": {"words": ["Ann", "met", "Bob"]}})
    predict(tagger, "rows.jsonl", "found.jsonl")
    assert len(read_json(Path("found.jsonl"))["tags"]) == 3


@pytest.mark.parametrize("kind", "classify pairs seq2seq embed rerank".split())
def test_truncated_texts_are_counted_once(tmp_path, caplog, kind):
    saved = answers.open_model(save_model(kind, tmp_path / kind), device="cpu")
    longest = saved.tokenizer.model_max_length
    texts = ["a", "a " * (longest - 20), "é" * longest, "a " * longest, "fine " * longest]
    inputs = [[text, "a"] for text in texts] if saved.recipe.takes_pairs else texts
    too_long = sum(length > longest for length in saved.lengths(inputs))
    assert 2 <= too_long < len(texts)
    saved.answers(inputs, batch_size=2)
    ours = [record for record in caplog.records if record.name == loaded_model.__name__]
    said = [record.getMessage() for record in ours]
    assert said == [f"{too_long} lines are truncated to {longest} tokens"]


def test_padding_that_is_computed_is_reported_once(tmp_path, caplog):
    folder = save_bert(tmp_path / "model", ["a", "fine", "film"])
    sizes = {"hidden_size": 96, "embedding_size": 96, "num_hidden_layers": 1}
    config = SqueezeBertConfig(vocab_size=8, **sizes)
    SqueezeBertForSequenceClassification(config).save_pretrained(folder)
    for _ in range(2):
        assert len(answered(folder, ["a film", "a fine film"])) == 2
    assert sum("can't be padding-free" in message for message in caplog.messages) == 1
