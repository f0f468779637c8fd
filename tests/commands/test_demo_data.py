"""The demo's data against an independent reading of it."""

import hashlib
import re

from roformer_lite.commands.demo_data import (
    chinese_number,
    english_number,
    is_held_out,
    unique_examples,
)

SAMPLE = [*range(1200), *range(9_990, 10_120), *range(0, 1_000_000, 997), 100_010, 120_010, 312_005, 999_999]
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
VALUES = {word: number for number, word in enumerate(f"{ONES} eighteen nineteen".split())}
VALUES |= {word: 10 * n for n, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)}


def read_english(words: str) -> int:
    """Another way round: words to number, by adding and multiplying from the left."""
    total = part = 0
    for word in re.split(r"[ -]", words):
        if word == "thousand":
            total, part = part * 1000, 0
        elif word == "hundred":
            part *= 100
        elif word != "and":
            part += VALUES[word]
    return total + part


def read_chinese(words: str) -> int:
    """The same for Chinese, in everyday and in formal characters."""
    words = words.translate(str.maketrans("壹贰叁肆伍陆柒捌玖拾佰仟", "一二三四五六七八九十百千"))
    total = part = digit = 0
    for character in words:
        if character in "十百千":
            part += (digit or 1) * {"十": 10, "百": 100, "千": 1000}[character]
            digit = 0
        elif character == "万":
            total, part, digit = (part + digit) * 10_000, 0, 0
        else:
            digit = "零一二三四五六七八九".index(character)
    return total + part + digit


def test_numbers_read_back():
    for number in SAMPLE:
        assert read_english(english_number(number)) == read_english(english_number(number, " ")) == number
        assert read_chinese(chinese_number(number)) == read_chinese(chinese_number(number, formal=True)) == number


def test_nothing_held_out_is_trained_on():
    train, held_out = unique_examples(20_000, 1, held_out=False), unique_examples(2_000, 1, held_out=True)
    assert not {example.standard for example in train} & {example.standard for example in held_out}
    assert not {example.written for example in train} & {example.written for example in held_out}
    share = sum(is_held_out(str(number)) for number in range(10_000)) / 10_000
    assert 0.09 < share < 0.11


def test_the_data_never_change():
    text = "\n".join(f"{e.written}\t{e.standard}\t{e.kind}" for e in unique_examples(5_000, 1, held_out=False))
    digest = "51269d6fa7eab08b5c04c68c9cc9912251d376d942d69c783b3dbbf822eedbe9"
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    assert {e.kind for e in unique_examples(100, 1, held_out=True)} == {"date-en", "date-zh", "number-en", "number-zh"}
