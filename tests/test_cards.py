"""The figures in the table of trained models are those that the trainings wrote."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT

CARDS = ROOT / "model_cards"
ROW = re.compile(r"^\| \[.*?\]\((.*?)\).*? \| .*? \| (.*)$", re.MULTILINE)
ROWS = ROW.findall((CARDS / "README.md").read_text("utf-8"))


def test_every_model_has_a_row_and_a_recipe():
    names = sorted(name for name, _ in ROWS)
    assert names == sorted(path.parent.name for path in CARDS.glob("*/results.json"))
    assert all((CARDS / name / "recipe.sh").is_file() for name in names)


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers_in(part)
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize(("name", "cells"), ROWS)
def test_figures_are_those_of_the_training(name, cells):
    numbers = set(numbers_in(json.loads((CARDS / name / "results.json").read_text("utf-8"))))
    figures = re.findall(r"(?<!\w)\d+(?:\.\d+)?", cells)
    assert len(figures) > 1
    for figure in figures:
        decimals = len(figure.partition(".")[2])
        assert figure in {f"{number:.{decimals}f}" for number in numbers}
