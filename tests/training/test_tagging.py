"""A tagger gives the same entities in every way of using it, and its card agrees with `predict`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from answering import shown_answers
from seqeval.metrics import f1_score
from transformers import AutoTokenizer, BertConfig, BertModel, CTRLTokenizer, pipeline

from roformer_lite.answers import open_model
from roformer_lite.cli import main

SHORT = "--size tiny --num_train_epochs 1 --use_cpu --disable_tqdm --baselines false --validation_fraction 0"
ENGLISH = "Anna 's U.S. trip , on 5 May 2019 , cost $20.50 ( more than Bartholomew-Smith 's to Llanfairpwll 7 years ago )"
CHINESE = "张三和李四在2019年去了北京大学，Bob住在上海。"


def rows_of(
    words: list[str], names: Sequence[str], seed: int, lengths: tuple[int, int] = (1, 16)
) -> list[dict]:
    """Return random sentences with IOB2 tags, in which entities of one type often adjoin."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(60):
        tags: list[str] = []
        for _ in range(generator.integers(*lengths)):
            choices = ["O", *(f"B-{name}" for name in names)]
            if tags and tags[-1] != "O":
                choices += [f"I-{tags[-1][2:]}"] * 2
            tags.append(str(generator.choice(choices)))
        rows.append({"tokens": generator.choice(words, len(tags)).tolist(), "tags": tags})
    return rows


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def run(*arguments: str | Path) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def tagger(folder: Path, rows: list[dict], options: str) -> Path:
    data = write(folder / "a.jsonl", rows)
    model = folder / "m"
    run("train", "tag", "--train_file", data, "--output_dir", model, *options.split())
    return model


def entities(words: list[str], tags: list[str], joiner: str) -> list[tuple[str, int, int]]:
    """Return the type, the start and the end of each entity in the joined text."""
    found = []
    start = 0
    left = "O"
    for word, tag in zip(words, tags, strict=True):
        end = start + len(word)
        if tag.startswith("B-"):
            found.append((tag[2:], start, end))
        elif tag != "O":
            assert left[1:] == tag[1:], f"{tag} after {left}"
            found[-1] = (*found[-1][:2], end)
        start = end + len(joiner)
        left = tag
    return found


@pytest.mark.parametrize(
    "options", ["--join_baseline false", "--join_baseline true", "--unit characters"]
)
def test_random_scores_give_valid_entities(options, tmp_path):
    """The model has hardly learned, so that impossible transitions are as likely as others.

    A text gives the same tags as the list of its words, in batches of any size.
    """
    by_character = "characters" in options
    words = list(CHINESE) if by_character else ENGLISH.split()
    joiner = "" if by_character else " "
    rows = rows_of(words, ("X", "Y"), seed=0)
    model = tagger(tmp_path, rows, f"{SHORT} --learning_rate 1e-3 --vocab_size 330 {options}")
    saved = open_model(model)
    assert (saved.joined is None) == ("false" in options)
    torch.manual_seed(0)
    with torch.no_grad():
        saved.model.classifier.out_proj.weight.normal_(std=0.5)
    sentences = [row["tokens"] for row in rows_of(words, ("X", "Y"), seed=1)]
    texts = [joiner.join(sentence) for sentence in sentences]
    answers = [answer.columns["tags"] for answer in shown_answers(saved, sentences, batch_size=8)]
    of_texts = shown_answers(saved, texts, batch_size=64)
    assert answers == [answer.columns["tags"] for answer in of_texts]
    found = [entities(*pair, joiner) for pair in zip(sentences, answers, strict=True)]
    assert sum(map(len, found)) > 50


def test_stock_pipelines_read_the_encoder(tmp_path):
    """If a model is sure, the best sequence consists of the best single tags, which the pipeline of
    transformers gives."""
    rows = rows_of(ENGLISH.split(), ("X", "Y"), seed=0)
    for row in rows:
        row["tags"] = ["B-X" if word[0].isupper() else "O" for word in row["tokens"]]
    options = f"{SHORT} --num_train_epochs 30 --learning_rate 3e-3 --join_baseline false"
    saved = open_model(tagger(tmp_path, rows, options))
    sentences = [row["tokens"] for row in rows]
    answers = [answer.columns["tags"] for answer in shown_answers(saved, sentences)]
    assert answers == [row["tags"] for row in rows]
    pipe = pipeline("token-classification", model=saved.model, tokenizer=saved.tokenizer)
    for words, tags in zip(sentences, answers, strict=True):
        # The space before a rare word is a token of its own.
        found = [each for each in pipe(" ".join(words)) if each["end"] > each["start"]]
        by_start = {each["start"]: each["entity"] for each in found}
        starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
        assert [by_start.get(start, "O") for start in starts] == tags


def test_a_checkpoint_is_chosen_by_the_metric_of_the_card(tmp_path):
    """A model that hardly knows the tags ranks impossible sequences first, which no answer has."""
    words = ENGLISH.split()
    data = write(tmp_path / "train.jsonl", rows_of(words, ("X", "Y"), seed=0))
    held_out = write(tmp_path / "held_out.jsonl", rows_of(words, ("X", "Y"), seed=1))
    options = "--size tiny --vocab_size 330 --num_train_epochs 4 --learning_rate 3e-3 --ema_decay 0"
    options += " --join_baseline false --baselines false --use_cpu"
    files = ["--train_file", data, "--validation_file", held_out, "--output_dir", tmp_path / "m"]
    run("train", "tag", *files, *options.split())
    results = json.loads((tmp_path / "m" / "results.json").read_text("utf-8"))
    of_card = results["metrics"]["validation"]["f1"]
    assert 0 < of_card == pytest.approx(results["training"]["best_metric"])


def test_the_card_is_what_predict_gives(tmp_path, capsys):
    """This includes sentences that are too long to be read at once, and tags that are new."""
    rows = rows_of(ENGLISH.split(), ("X",), seed=0)
    longer = rows_of(ENGLISH.split(), ("X", "NEW"), seed=1, lengths=(1, 60))
    test = write(tmp_path / "test.jsonl", longer)
    options = (
        f"{SHORT} --num_train_epochs 3 --learning_rate 3e-3 --max_length 24 --test_file {test}"
    )
    model = tagger(tmp_path, rows, options)
    assert re.search(
        r"2 tags that the training data lack \([BI]-NEW, [BI]-NEW\)", capsys.readouterr().err
    )
    assert "2 tags that the training data lack" in (model / "README.md").read_text("utf-8")
    files = ["--input_file", test, "--output_file", tmp_path / "out.jsonl"]
    run("predict", model, *files, "--text_column", "tokens", "--prefix", "our_")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    wanted = f1_score([row["tags"] for row in found], [row["our_tags"] for row in found])
    results = json.loads((model / "results.json").read_text("utf-8"))
    assert results["metrics"]["test"]["f1"] == pytest.approx(wanted, abs=1e-9) and 0 < wanted < 1
    assert results["by_label"]["test"]["NEW"]["recall"] == 0
    run("evaluate", model, "--test_file", test, "--output_dir", tmp_path / "e")
    again = json.loads((tmp_path / "e" / "results.json").read_text("utf-8"))["metrics"]["test"]
    assert again == pytest.approx(results["metrics"]["test"], abs=1e-6)


def test_the_side_of_padding_does_not_matter(tmp_path):
    """The weight of the random field depends on the logits of all tokens."""
    rows = rows_of(ENGLISH.split(), ("X",), seed=0)
    options = f"{SHORT} --num_train_epochs 3 --learning_rate 3e-3 --validation_fraction 0.5"
    options += " --join_baseline true"
    first = tagger(tmp_path, rows, options)
    left = tmp_path / "left"
    AutoTokenizer.from_pretrained(first, padding_side="left").save_pretrained(left)
    second = tagger(left, rows, f"{options} --tokenizer {left}")
    found = [json.loads((model / "results.json").read_text("utf-8")) for model in (first, second)]
    for name in ("parts", "metrics"):
        assert found[0][name] == found[1][name]


def test_words_given_to_a_tagger_of_characters(tmp_path):
    """Words are split into characters, and each word has the scores of its first character."""
    rows = rows_of(list(CHINESE), ("X", "Y"), seed=0)
    model = tagger(tmp_path, rows, f"{SHORT} --unit characters")
    saved = open_model(model)
    words = ["张三", "和", "李四", "在", "2019年", "去了", "北京 大学", "，", "Bob"]
    split = list("".join(words).replace(" ", ""))
    ours, characters = (answer.columns["tags"] for answer in shown_answers(saved, [words, split]))
    assert len(ours) == len(words)
    entities(words, ours, "")
    entities(split, characters, "")
    (line,) = shown_answers(saved, ["".join(words)])
    assert [pair.rpartition("/")[2] for pair in line.line.split()] == characters


def test_a_tokenizer_written_in_python_is_refused(tmp_path, capsys):
    vocabulary = {token: number for number, token in enumerate(["<unk>", "a</w>", "b</w>", "<p>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    files = (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    tokenizer = CTRLTokenizer(*files, pad_token="<p>")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertModel(BertConfig(vocab_size=len(tokenizer), intermediate_size=32, **sizes))
    for part in (bert, tokenizer):
        part.save_pretrained(tmp_path / "bert")
    data = write(tmp_path / "a.jsonl", rows_of(["a", "b"], ("X",), seed=0))
    command = ["train", "tag", "--train_file", str(data), "--output_dir", str(tmp_path / "m")]
    assert main([*command, "--model_name_or_path", str(tmp_path / "bert")]) == 2
    assert "CTRLTokenizer" in capsys.readouterr().err and not (tmp_path / "m").exists()
