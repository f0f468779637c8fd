"""Data for the demo, made by the package itself: dates and numbers as people write them, and in one standard form.

    March 5th, 2024 · the fifth of March, twenty twenty-four · 二〇二四年三月五日 · 03/05/2024   →  2024-03-05
    three hundred and twelve thousand and five · 三十一万二千零五 · 叁拾壹万贰仟零伍            →  312005

With slashes the month comes first unless the year does; with dots the day comes first. A hash decides which dates and
numbers are held out: training never sees them in any form.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
FIRST_DAY, LAST_DAY = date(1900, 1, 1), date(2099, 12, 31)
HELD_OUT_SHARE = 0.1

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_CHINESE_WEEKDAYS = "一二三四五六日"
_DIGITS = "零一二三四五六七八九"
_FORMAL = str.maketrans("一二三四五六七八九十百千", "壹贰叁肆伍陆柒捌玖拾佰仟")


@dataclass(frozen=True)
class Example:
    """One way of writing something, and its standard form."""

    written: str
    standard: str
    kind: str  # date-en, date-zh, number-en, number-zh


def english_number(number: int, conjunction: str = " and ") -> str:
    """Cardinal number below a million in words. `conjunction` stands after hundreds, and before a last part below one
    hundred: " and " (British), " " (American)."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, one = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[one]}" if one else "")
    unit, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    count, rest = divmod(number, unit)
    words = f"{english_number(count, conjunction)} {name}"
    if not rest:
        return words
    return words + (conjunction if rest < 100 else " ") + english_number(rest, conjunction)


def english_ordinal(number: int) -> str:
    """Ordinal number from 1 to 99 in words."""
    head, hyphen, last = english_number(number).rpartition("-")
    last = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return head + hyphen + last


def english_year(year: int) -> str:
    """A year from 1900 to 2099 as it is said: nineteen oh five, two thousand nine, twenty twenty-four."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return english_number(year, " ")
    if rest == 0:
        return f"{english_number(century)} hundred"
    return f"{english_number(century)} {'oh ' if rest < 10 else ''}{english_number(rest)}"


def _abbreviated(month: int) -> str:
    name = MONTHS[month - 1]
    return name if len(name) == 3 else name[:3] + "."


def _suffixed(day: int) -> str:
    suffix = "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


def chinese_number(number: int) -> str:
    """Number below a hundred million in words: 三十一万二千零五, 十二, 一百一十二."""
    words = _chinese_in_full(number)
    return words[1:] if words.startswith("一十") else words


def formal_chinese_number(number: int) -> str:
    """The same in the characters of cheques, hard to alter: 叁拾壹万贰仟零伍, 壹拾贰."""
    return _chinese_in_full(number).translate(_FORMAL)


def _chinese_in_full(number: int) -> str:
    if number < 10_000:
        return _chinese_below_myriad(number)
    count, rest = divmod(number, 10_000)
    words = _chinese_below_myriad(count) + "万"
    return words if not rest else words + ("零" if rest < 1000 else "") + _chinese_below_myriad(rest)


def _chinese_below_myriad(number: int) -> str:
    if number == 0:
        return "零"
    words, pending_zero = "", False
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit = number // unit % 10
        if digit:
            words += ("零" if pending_zero and words else "") + _DIGITS[digit] + name
        pending_zero = not digit
    return words


def chinese_digits(number: int, zero: str) -> str:
    """A number digit by digit, as years are read: 二〇二四."""
    return "".join(zero if digit == "0" else _DIGITS[int(digit)] for digit in str(number))


_ENGLISH_DATES: tuple[Callable[[date], str], ...] = (
    lambda d: f"{MONTHS[d.month - 1]} {_suffixed(d.day)}, {d.year}",
    lambda d: f"{MONTHS[d.month - 1]} {d.day}, {d.year}",
    lambda d: f"{d.day} {MONTHS[d.month - 1]} {d.year}",
    lambda d: f"{d.day} {_abbreviated(d.month).rstrip('.')} {d.year}",
    lambda d: f"{_abbreviated(d.month)} {d.day}, {d.year}",
    lambda d: f"the {_suffixed(d.day)} of {MONTHS[d.month - 1]} {d.year}",
    lambda d: f"{WEEKDAYS[d.weekday()]}, {MONTHS[d.month - 1]} {d.day}, {d.year}",
    lambda d: f"the {english_ordinal(d.day)} of {MONTHS[d.month - 1]}, {english_year(d.year)}",
    lambda d: f"{MONTHS[d.month - 1]} the {english_ordinal(d.day)}, {english_year(d.year)}",
    lambda d: f"{d.month:02}/{d.day:02}/{d.year}",
    lambda d: f"{d.year}/{d.month}/{d.day}",
    lambda d: f"{d.day}.{d.month}.{d.year}",
)
_CHINESE_DATES: tuple[Callable[[date], str], ...] = (
    lambda d: f"{chinese_digits(d.year, '〇')}年{chinese_number(d.month)}月{chinese_number(d.day)}日",
    lambda d: f"{chinese_digits(d.year, '零')}年{chinese_number(d.month)}月{chinese_number(d.day)}号",
    lambda d: f"{d.year}年{d.month}月{d.day}日",
    lambda d: f"{d.year}年{d.month}月{d.day}号",
    lambda d: f"{d.year}年{d.month:02}月{d.day:02}日",
    lambda d: f"{d.year}年{d.month}月{d.day}日，星期{_CHINESE_WEEKDAYS[d.weekday()]}",
    lambda d: (
        f"{chinese_digits(d.year, '〇')}年{chinese_number(d.month)}月{chinese_number(d.day)}日"
        f"星期{_CHINESE_WEEKDAYS[d.weekday()]}"
    ),
)
_ENGLISH_NUMBERS: tuple[Callable[[int], str], ...] = (
    lambda n: english_number(n, " and "),
    lambda n: english_number(n, " "),
    lambda n: f"{n:,}",
)
_CHINESE_NUMBERS: tuple[Callable[[int], str], ...] = (
    chinese_number,
    formal_chinese_number,
)


def is_held_out(standard: str) -> bool:
    """Whether a date or number, in its standard form, is kept from training."""
    digest = hashlib.sha256(standard.encode()).digest()
    return int.from_bytes(digest[:8], "big") < HELD_OUT_SHARE * 2**64


def examples(seed: int, held_out: bool) -> Iterator[Example]:
    """Examples without end, always the same for a seed: dates and numbers, English and Chinese, in equal shares."""
    source = random.Random(f"{seed}-{held_out}")
    days = (LAST_DAY - FIRST_DAY).days
    while True:
        is_date, is_english = source.random() < 0.5, source.random() < 0.5
        if is_date:
            day = FIRST_DAY + timedelta(source.randint(0, days))
            standard, value, ways = day.isoformat(), day, _ENGLISH_DATES if is_english else _CHINESE_DATES
        else:
            value = source.randrange(10 ** source.randint(1, 6))  # short numbers are as frequent as long ones
            standard, ways = str(value), _ENGLISH_NUMBERS if is_english else _CHINESE_NUMBERS
        if is_held_out(standard) == held_out:
            written = source.choice(ways)(value)
            yield Example(written, standard, f"{'date' if is_date else 'number'}-{'en' if is_english else 'zh'}")


def unique_examples(count: int, seed: int, held_out: bool) -> list[Example]:
    """The first `count` examples of a seed, none written like another."""
    found: dict[str, Example] = {}
    for example in examples(seed, held_out):
        if len(found) == count:
            break
        found.setdefault(example.written, example)
    return list(found.values())
