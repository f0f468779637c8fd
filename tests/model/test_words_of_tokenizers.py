"""Tests that models read the words of a text from token ids, and that taggers tag these words.

This holds with every kind of tokenizer and in every script.
"""

import json
import random
import re
import unicodedata

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from many_tokenizers import TOKENIZERS, byte_level, sentencepiece_bpe
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, pipeline

import hf_roformer_lite as rl
from roformer_lite.answers import SavedModel
from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.options.tasks import TagDataArguments
from roformer_lite.recipes.tag import Tag
from roformer_lite.text_scores.fit import fit_document_scores, read
from roformer_lite.text_scores.token_bytes import find_misread, token_bytes, words_by_text

# The words are short, and some of them share beginnings and ends.
SCRIPTS = {
    "latin": "café naïve Zoë Ærø coöperate fine film filmed Bartholomew Šibenik x 20.5 be-ka U.S.",
    "cyrillic": "кот пёс дом домик река Анна Борис Москва Московский Киев щи ъ",
    "han": "电影 很 好看 推荐 音乐 北京 大学 学生 不 喜欢 天气",
    "thai": "การประชุม คณะกรรมการ คณะรัฐมนตรี วันนี้ เมื่อวาน ที่บ้าน ใน",
    "emoji": "😀 👍🏽 🎉🎉 ok wow ❤️ 👩‍👩‍👧 lol 😀😀",
}
WORD = re.compile(
    r"[\x80-\xbf\u2000-\u9fff\uf000-\U0010ffff]|[a-zA-Z0-9\xc0-\u1fff\ua000-\uefff]+|[!-/:-@\[-`{-~]"
)


def texts_of(script: str, seed: int, number: int = 40) -> list[str]:
    """Make random sentences with punctuation, in one script."""
    generator = random.Random(seed)
    texts = []
    for _ in range(number):
        words = generator.choices(SCRIPTS[script].split(), k=generator.randint(1, 9))
        joined = "".join(
            word + generator.choice(["  ", " ", " ", " ", ", ", " — "]) for word in words
        )
        texts.append(joined.strip() + generator.choice(["", ".", "!"]))
    return texts


def normal(name: str, text: str) -> str:
    """Normalize a text as the tokenizer of that name does before it looks for words."""
    if name in ("own wordpiece", "jieba", "word ends"):
        text = text.lower()
    if name in ("own wordpiece", "jieba"):
        decomposed = unicodedata.normalize("NFD", text)
        text = "".join(mark for mark in decomposed if unicodedata.category(mark) != "Mn")
    # BERT's cleaning removes joiners of emoji.
    if name in ("own wordpiece", "cased wordpiece", "jieba", "word ends"):
        text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf"))
    return text


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_are_those_of_the_text(name):
    """The words are found, or it is noticed that Jieba cuts words of other scripts into letters."""
    for script in SCRIPTS:
        tokenizer = TOKENIZERS[name](texts_of(script, seed=0, number=120))
        table = token_bytes(tokenizer)
        texts = texts_of(script, seed=1)
        misread = find_misread(tokenizer, table, texts)
        if name == "jieba" and script in ("latin", "cyrillic", "thai"):
            assert misread in texts
            continue
        assert misread is None
        found = words_by_text(table, tokenizer(texts)["input_ids"])
        has_unknown = ["\ufffd".encode() in words for words in found]
        assert sum(has_unknown) < len(texts) / 2
        for text, words, is_unknown in zip(texts, found, has_unknown, strict=True):
            expected = WORD.findall(normal(name, text))
            assert is_unknown or words == [word.encode() for word in expected], script


def tagged_rows(script: str, seed: int) -> list[dict]:
    """Make random sentences in which a word always has the same tag."""
    words = SCRIPTS[script].split()
    tags = {word: ("B-X", "O", "B-Y")[place % 3] for place, word in enumerate(words)}
    generator = random.Random(seed)
    rows = []
    for _ in range(60):
        tokens = generator.choices(words, k=generator.randint(1, 6))
        rows.append({"tokens": tokens, "tags": [tags[word] for word in tokens]})
    return rows


def tagger(tokenizer: PreTrainedTokenizerBase, rows: list[dict]) -> SavedModel:
    """Make a tagger whose random field is fitted to the rows, and whose encoder gives zeros."""
    recipe = Tag(TagDataArguments(dataset_name="-", unit="words"))
    train = Dataset.from_list(rows)
    recipe.inspect(DatasetDict({"train": train}))
    recipe.tokenizer = tokenizer
    tokenizer.model_max_length = 128
    recipe.adapt_tokenizer()
    recipe.token_bytes = recipe.readable_tokens(train, should_report=True)
    config = rl.RoFormerLiteConfig.from_preset(
        "tiny", vocab_size=len(tokenizer), **recipe.config_fields()
    )
    model = rl.RoFormerLiteForTokenClassification(config)
    encoded = recipe.encode(train, training=True)
    model.add_text_scores(recipe.fit_text_scores(encoded, model.config, calibrates=False))
    recipe.restrict_tags(model, encoded)
    for parameter in model.classifier.out_proj.parameters():
        torch.nn.init.zeros_(parameter)
    return SavedModel(recipe=recipe, model=model.eval(), tokenizer=tokenizer)


def entities_of(tokens: list[str], tags: list[str]) -> list[tuple[str, int, int]]:
    """Find the types and places of entities, each of one word, in the text of these words."""
    found = []
    start = 0
    for token, tag in zip(tokens, tags, strict=True):
        if tag != "O":
            found.append((tag[2:], start, start + len(token)))
        start += len(token) + 1
    return found


def places_of(entity: dict, text: str) -> tuple[str, int, int]:
    """Return type and place of an entity of a pipeline, without the space before it."""
    start = entity["start"]
    end = entity["end"]
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return entity["entity_group"], start, end


@pytest.mark.parametrize("name", [*sorted(TOKENIZERS.keys() - {"jieba"}), "tokens that span words"])
def test_tags_are_those_of_the_words(name):
    """The program and the pipelines of transformers give one tag to words of several tokens."""
    script = "cyrillic" if "sentencepiece" in name or "span" in name else "latin"
    rows = tagged_rows(script, seed=0)
    texts = [" ".join(row["tokens"]) for row in rows]
    if name in TOKENIZERS:
        tokenizer = TOKENIZERS[name](texts)
    else:
        tokenizer = sentencepiece_bpe(texts, spans_words=True)
        assert any(token.strip("▁").count("▁") for token in tokenizer.tokenize(texts[0]))
    saved = tagger(tokenizer, rows)
    asked = tagged_rows(script, seed=1)[:15]
    texts = [" ".join(row["tokens"]) for row in asked]
    answers = saved.answers([row["tokens"] for row in asked], batch_size=16)
    assert [answer["tags"] for answer in answers] == [row["tags"] for row in asked]

    parts = {"model": saved.model, "tokenizer": saved.tokenizer}
    strategies = ["average", "first", "max", "simple"]
    if name == "word ends":
        # The pipeline averages all tokens of `U.S.`, but the model reads several words in it.
        strategies.remove("average")
    for strategy in strategies:
        pipe = pipeline("token-classification", aggregation_strategy=strategy, **parts)
        for text, row, found in zip(texts, asked, pipe(texts, batch_size=15), strict=True):
            places = [places_of(each, text) for each in found]
            assert places == entities_of(row["tokens"], row["tags"]), strategy


def test_what_cannot_be_read_is_left_out_or_refused(capsys):
    """Words can't be read from a tokenizer that drops spaces without marking them in its tokens."""
    backend = byte_level(texts_of("latin", seed=0), has_unknown=False).backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")
    texts = ["fine", "fine film"] * 10
    assert find_misread(tokenizer, token_bytes(tokenizer), texts) == "fine film"
    assert find_misread(tokenizer, token_bytes(tokenizer), ["fine", "x"]) is None
    rows = Dataset.from_list([{"tokens": text.split()} for text in texts])
    for linear_model, should_report in ((None, True), (False, False), (True, True)):
        recipe = Tag(TagDataArguments(dataset_name="-", unit="words", linear_model=linear_model))
        recipe.tokenizer = tokenizer
        if linear_model:
            with pytest.raises(InputError, match='--linear_model.*"fine film"'):
                recipe.readable_tokens(rows, should_report)
            continue
        assert recipe.readable_tokens(rows, should_report) is None
        printed = capsys.readouterr().err
        assert ("--linear_model false" in printed) == should_report


def test_a_text_is_read_to_the_end_of_long_tokens():
    """Words differ even if they begin with the same 12 letters of three bytes each."""
    words = ["การประชุมคณะกรรมการ", "การประชุมคณะรัฐมนตรี"]
    vocabulary = {token: number for number, token in enumerate(["[UNK]", "[PAD]", *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]"
    )
    table = token_bytes(tokenizer)
    assert table.shape[1] > 32
    config = rl.RoFormerLiteConfig.from_preset(
        "tiny", vocab_size=4, num_labels=2, problem_type="single_label_classification"
    )
    scores = fit_document_scores(table, [[2], [3]] * 20, np.arange(40) % 2, config)
    model = rl.RoFormerLiteForSequenceClassification(config)
    model.add_text_scores(scores)
    with torch.no_grad():
        words_read, _, num_owners = next(read(model.text_scores, [[2], [3]]))
        logits = model.text_scores.score(words_read, num_owners)
        assert logits.argmax(-1).tolist() == [0, 1]
    assert model.config.classifier_token_bytes == table.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_tokenizer_without_unknown_token_and_mask_is_trained_with(task, tmp_path):
    """Such a tokenizer works with the defaults, including word dropout."""
    rows = tagged_rows("latin", seed=0)
    texts = [" ".join(row["tokens"]) for row in rows]
    byte_level(texts, has_unknown=False).save_pretrained(tmp_path / "tokenizer")
    if task == "classify":
        rows = [{"text": text, "label": str("film" in text)} for text in texts]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    options = "--size tiny --num_train_epochs 2 --use_cpu --disable_tqdm --baselines false".split()
    files = ["--train_file", str(file), "--test_file", str(file)]
    model = tmp_path / "m"
    command = ["train", task, *files, "--tokenizer", str(tmp_path / "tokenizer"), *options]
    assert main([*command, "--output_dir", str(model)]) == 0
    results = json.loads((model / "results.json").read_text("utf-8"))
    assert results["metrics"]["test"]["accuracy"] > 0.95
