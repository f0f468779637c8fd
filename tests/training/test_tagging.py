"""A tagger gives the same entities in every way of using it, and its card agrees with `predict`."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from answering import shown_answers
from program import predicted, refused, results_of, train, write_rows
from seqeval.metrics import f1_score
from transformers import AutoTokenizer, CTRLTokenizer

from roformer_lite.answers import open_model

SHORT = "--size tiny --num_train_epochs 1 --use_cpu --baselines false --validation_fraction 0"
ENGLISH = (
    "Anna 's U.S. trip , on 5 May 2019 , cost $20.50 ( more than Bartholomew-Smith 's to "
    "Llanfairpwll 7 years ago )"
).split()
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


def tagger(folder: Path, rows: list[dict], options: str) -> Path:
    data = write_rows(folder / "a.jsonl", rows)
    train(f"tag {options}", data, folder / "m")
    return folder / "m"


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
    words = list(CHINESE) if by_character else ENGLISH
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


def test_a_checkpoint_is_chosen_by_the_metric_of_the_card(tmp_path):
    """A model that hardly knows the tags ranks impossible sequences first, which no answer has."""
    data = write_rows(tmp_path / "train.jsonl", rows_of(ENGLISH, ("X", "Y"), seed=0))
    held_out = write_rows(tmp_path / "held_out.jsonl", rows_of(ENGLISH, ("X", "Y"), seed=1))
    options = "tag --size tiny --vocab_size 330 --num_train_epochs 4 --learning_rate 3e-3"
    options += " --ema_decay 0 --join_baseline false --baselines false --use_cpu"
    results = train(options, data, tmp_path / "m", validation_file=held_out)
    of_card = results["metrics"]["validation"]["f1"]
    assert 0 < of_card == pytest.approx(results["training"]["best_metric"])


def test_tags_of_rows_to_measure_only_are_missed(tmp_path, capsys):
    """Some sentences are too long to be read at once."""
    rows = rows_of(ENGLISH, ("X",), seed=0)
    longer = rows_of(ENGLISH, ("X", "NEW"), seed=1, lengths=(1, 60))
    test = write_rows(tmp_path / "test.jsonl", longer)
    options = f"{SHORT} --num_train_epochs 3 --learning_rate 3e-3 --max_length 24"
    model = tagger(tmp_path, rows, f"{options} --test_file {test}")
    message = r"2 tags that the training data lack \([BI]-NEW, [BI]-NEW\)"
    assert re.search(message, capsys.readouterr().err)
    found = predicted(model, test, prefix="our_")
    wanted = f1_score([row["tags"] for row in found], [row["our_tags"] for row in found])
    results = results_of(model)
    assert results["metrics"]["test"]["f1"] == pytest.approx(wanted, abs=1e-9) and 0 < wanted < 1
    assert results["by_label"]["test"]["NEW"]["recall"] == 0


def test_the_side_of_padding_does_not_matter(tmp_path):
    """The weight of the random field depends on the logits of all tokens."""
    rows = rows_of(ENGLISH, ("X",), seed=0)
    options = f"{SHORT} --num_train_epochs 3 --learning_rate 3e-3 --validation_fraction 0.5"
    options += " --join_baseline true"
    first = tagger(tmp_path, rows, options)
    left = tmp_path / "left"
    tokenizer = AutoTokenizer.from_pretrained(first, padding_side="left")
    tokenizer.save_pretrained(left / "tokenizer")
    second = tagger(left, rows, f"{options} --tokenizer {left / 'tokenizer'}")
    for name in ("parts", "metrics"):
        assert results_of(first)[name] == results_of(second)[name]


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


def test_a_tokenizer_written_in_python_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "a</w>": 1, "b</w>": 2, "<p>": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    files = (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    tokenizer = tmp_path / "tokenizer"
    CTRLTokenizer(*files, pad_token="<p>").save_pretrained(tokenizer)
    data = write_rows(tmp_path / "a.jsonl", rows_of(["a", "b"], ("X",), seed=0))
    out = tmp_path / "m"
    message = refused("train tag", train_file=data, output_dir=out, tokenizer=tokenizer)
    assert "CTRLTokenizer" in message and not out.exists()
