"""Data for the demo, made by the package itself: dates and numbers as people write them, and in one
standard form.

    March 5th, 2024 · the fifth of March, twenty twenty-four · 二〇二四年三月五日 · 03/05/2024   →
    2024-03-05 three hundred and twelve thousand and five · 三十一万二千零五 · 叁拾壹万贰仟零伍            →  312005

With slashes the month comes first unless the year does; with dots the day comes first. A hash
decides which dates and numbers are held out: training never sees them in any form.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
HELD_OUT_SHARE = 0.1

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
}
_ORDINALS["twelve"] = "twelfth"
_DIGITS = "零一二三四五六七八九"
_FORMAL = str.maketrans(
    "一二三四五六七八九十百千", "壹贰叁肆伍陆柒捌玖拾佰仟"
)  # of cheques, hard to alter


@dataclass(frozen=True)
class Example:
    """One way of writing something, and its standard form."""

    written: str
    standard: str
    kind: str  # date-en, date-zh, number-en, number-zh


def english_number(number: int, conjunction: str = " and ") -> str:
    """Cardinal number below a million in words. `conjunction` stands after hundreds, and before a
    last part below one hundred: " and " (British), " " (American)."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    unit, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    count, rest = divmod(number, unit)
    words = f"{english_number(count, conjunction)} {name}"
    return (
        words + (conjunction if rest < 100 else " ") + english_number(rest, conjunction)
        if rest
        else words
    )


def english_ordinal(number: int) -> str:
    """Ordinal number from 1 to 99 in words."""
    head, hyphen, last = english_number(number).rpartition("-")
    return (
        head
        + hyphen
        + (_ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th"))
    )


def english_year(year: int) -> str:
    """A year from 1900 to 2099 as it is said: nineteen oh five, two thousand nine, twenty
    twenty-four."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return english_number(year, " ")
    after = (
        "hundred"
        if rest == 0
        else f"oh {english_number(rest)}"
        if rest < 10
        else english_number(rest)
    )
    return f"{english_number(century)} {after}"


def chinese_number(number: int, formal: bool = False) -> str:
    """Number below a hundred million in words: 三十一万二千零五, 十二; in the characters of cheques 壹拾贰."""
    words, pending_zero = "", False
    for place, name in reversed(list(enumerate(("", "十", "百", "千", "万", "十", "百", "千")))):
        digit = number // 10**place % 10
        if digit:
            words += ("零" if pending_zero and words else "") + _DIGITS[digit] + name
        elif place == 4 and number >= 10_000:
            words += name
        pending_zero = not digit and place != 4
    words = words or _DIGITS[0]
    return (
        words.translate(_FORMAL)
        if formal
        else words.removeprefix("一")
        if words.startswith("一十")
        else words
    )


def _digits(year: int, zero: str) -> str:
    return "".join(_DIGITS[int(digit)] for digit in str(year)).replace("零", zero)


def _suffixed(day: int) -> str:
    return f"{day}" + ("th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th"))


def _chinese_date(day: date, zero: str) -> str:
    return f"{_digits(day.year, zero)}年{chinese_number(day.month)}月{chinese_number(day.day)}"


def _chinese_weekday(day: date) -> str:
    return f"星期{'一二三四五六日'[day.weekday()]}"


# What a value may be written as, each as likely as the others of its kind.
_WAYS: dict[str, tuple[Callable[..., str], ...]] = {
    "date-en": (
        lambda d: f"{d:%B} {_suffixed(d.day)}, {d.year}",
        lambda d: f"{d:%B} {d.day}, {d.year}",
        lambda d: f"{d.day} {d:%B} {d.year}",
        lambda d: f"{d.day} {d:%b} {d.year}",
        lambda d: f"{d:%b}{'' if d.month == 5 else '.'} {d.day}, {d.year}",
        lambda d: f"the {_suffixed(d.day)} of {d:%B} {d.year}",
        lambda d: f"{d:%A, %B} {d.day}, {d.year}",
        lambda d: f"the {english_ordinal(d.day)} of {d:%B}, {english_year(d.year)}",
        lambda d: f"{d:%B} the {english_ordinal(d.day)}, {english_year(d.year)}",
        lambda d: f"{d:%m/%d}/{d.year}",
        lambda d: f"{d.year}/{d.month}/{d.day}",
        lambda d: f"{d.day}.{d.month}.{d.year}",
    ),
    "date-zh": (
        lambda d: f"{_chinese_date(d, '〇')}日",
        lambda d: f"{_chinese_date(d, '零')}号",
        lambda d: f"{d.year}年{d.month}月{d.day}日",
        lambda d: f"{d.year}年{d.month}月{d.day}号",
        lambda d: f"{d.year}年{d:%m月%d}日",
        lambda d: f"{d.year}年{d.month}月{d.day}日，{_chinese_weekday(d)}",
        lambda d: f"{_chinese_date(d, '〇')}日{_chinese_weekday(d)}",
    ),
    "number-en": (english_number, lambda n: english_number(n, " "), lambda n: f"{n:,}"),
    "number-zh": (chinese_number, lambda n: chinese_number(n, formal=True)),
}


def is_held_out(standard: str) -> bool:
    """Whether a date or number, in its standard form, is kept from training."""
    digest = hashlib.sha256(standard.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def examples(seed: int, held_out: bool) -> Iterator[Example]:
    """Examples without end, always the same for a seed: dates and numbers, English and Chinese, in
    equal shares."""
    source = random.Random(f"{seed}-{held_out}")
    while True:
        is_date, is_english = source.random() < 0.5, source.random() < 0.5
        if is_date:
            value: date | int = FIRST_DAY + timedelta(
                source.randint(0, (LAST_DAY - FIRST_DAY).days)
            )
        else:
            # short numbers are as frequent as long ones
            value = source.randrange(10 ** source.randint(1, 6))
        standard, kind = (
            str(value),
            f"{'date' if is_date else 'number'}-{'en' if is_english else 'zh'}",
        )
        if is_held_out(standard) == held_out:
            yield Example(source.choice(_WAYS[kind])(value), standard, kind)


def unique_examples(count: int, seed: int, held_out: bool) -> list[Example]:
    """The first `count` examples of a seed, none written like another."""
    found: dict[str, Example] = {}
    for example in examples(seed, held_out):
        if len(found) == count:
            break
        found.setdefault(example.written, example)
    return list(found.values())
