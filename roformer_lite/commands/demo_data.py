"""Generates data for the demo: dates as people write them in English and Chinese, and their
standard form.

    March 5th, 2024 · the fifth of March, twenty twenty-four · 二〇二四年三月五日 · 03/05/2024

All of these have the standard form 2024-03-05.

With slashes, the month comes first unless the year does. With dots, the day comes first. A hash
decides which dates are held out from training in all their forms.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

FIRST_DAY = date(1900, 1, 1)
LAST_DAY = date(2099, 12, 31)
HELD_OUT_SHARE = 0.1

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
    "twenty": "twentieth",
    "thirty": "thirtieth",
}
_ZERO_TO_NINE = "〇一二三四五六七八九"


@dataclass(frozen=True)
class Example:
    """One way of writing a date, and its standard form."""

    written: str
    standard: str
    kind: str  # date-en or date-zh


def english_number(number: int) -> str:
    """A cardinal number below a hundred in words."""
    if number < 20:
        return _ONES[number]
    tens, ones = divmod(number, 10)
    return f"{_TENS[tens]}-{_ONES[ones]}" if ones else _TENS[tens]


def english_ordinal(day: int) -> str:
    """The number of a day in words: first, twenty-third."""
    head, hyphen, last = english_number(day).rpartition("-")
    return head + hyphen + _ORDINALS.get(last, f"{last}th")


def english_year(year: int) -> str:
    """A year from 1900 to 2099 as it is spoken: nineteen oh five, two thousand nine, twenty
    twenty-four."""
    century, rest = divmod(year, 100)
    if year == 2000:
        return "two thousand"
    if 2000 < year < 2010:
        return f"two thousand {english_number(rest)}"
    if rest == 0:
        return f"{english_number(century)} hundred"
    if rest < 10:
        return f"{english_number(century)} oh {english_number(rest)}"
    return f"{english_number(century)} {english_number(rest)}"


def chinese_number(number: int) -> str:
    """A number from 1 to 99 in words: 五, 十二, 三十一."""
    tens, ones = divmod(number, 10)
    words = _ZERO_TO_NINE[ones] if ones else ""
    if tens:
        words = f"十{words}"
    if tens > 1:
        words = f"{_ZERO_TO_NINE[tens]}{words}"
    return words


def _suffixed(day: int) -> str:
    """The number of a day with the letters of its ordinal: 1st, 22nd."""
    return f"{day}{english_ordinal(day)[-2:]}"


def _chinese_date(day: date) -> str:
    """The date in Chinese characters, without the last one."""
    year = "".join(_ZERO_TO_NINE[int(digit)] for digit in str(day.year))
    return f"{year}年{chinese_number(day.month)}月{chinese_number(day.day)}"


def _chinese_weekday(day: date) -> str:
    return f"星期{'一二三四五六日'[day.weekday()]}"


# The ways of writing a date. Those of one language are equally likely.
_WAYS: dict[str, tuple[Callable[[date], str], ...]] = {
    "date-en": (
        lambda d: f"{d:%B} {_suffixed(d.day)}, {d.year}",
        lambda d: f"{d:%B} {d.day}, {d.year}",
        lambda d: f"{d.day} {d:%B} {d.year}",
        lambda d: f"{d.day} {d:%b} {d.year}",
        lambda d: f"the {_suffixed(d.day)} of {d:%B} {d.year}",
        lambda d: f"{d:%A, %B} {d.day}, {d.year}",
        lambda d: f"the {english_ordinal(d.day)} of {d:%B}, {english_year(d.year)}",
        lambda d: f"{d:%B} the {english_ordinal(d.day)}, {english_year(d.year)}",
        lambda d: f"{d:%m/%d}/{d.year}",
        lambda d: f"{d.year}/{d.month}/{d.day}",
        lambda d: f"{d.day}.{d.month}.{d.year}",
    ),
    "date-zh": (
        lambda d: f"{_chinese_date(d)}日",
        lambda d: f"{_chinese_date(d)}号",
        lambda d: f"{d.year}年{d.month}月{d.day}日",
        lambda d: f"{d.year}年{d:%m月%d}日",
        lambda d: f"{d.year}年{d.month}月{d.day}日，{_chinese_weekday(d)}",
        lambda d: f"{_chinese_date(d)}日{_chinese_weekday(d)}",
    ),
}


def is_held_out(standard: str) -> bool:
    """Whether a date in its standard form is held out from training."""
    digest = hashlib.sha256(standard.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def unique_examples(count: int, seed: int, held_out: bool) -> list[Example]:
    """Different examples, which depend only on the arguments. English and Chinese dates are equally
    likely."""
    source = random.Random(f"{seed}-{held_out}")
    found: dict[str, Example] = {}
    while len(found) < count:
        day = FIRST_DAY + timedelta(source.randint(0, (LAST_DAY - FIRST_DAY).days))
        if is_held_out(str(day)) == held_out:
            kind = source.choice(list(_WAYS))
            written = source.choice(_WAYS[kind])(day)
            found.setdefault(written, Example(written, str(day), kind))
    return list(found.values())
