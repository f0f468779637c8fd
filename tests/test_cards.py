"""The figures in the table of trained models are those that the trainings wrote."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT
from program import results_of

from roformer_lite.commands import train_options

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
    numbers = set(numbers_in(results_of(CARDS / name)))
    figures = re.findall(r"(?<!\w)\d+(?:\.\d+)?", cells)
    assert len(figures) > 1
    for figure in figures:
        decimals = len(figure.partition(".")[2])
        assert figure in {f"{number:.{decimals}f}" for number in numbers}


def commands_of(recipe: str) -> Iterator[list[str]]:
    """The arguments of each `roformer-lite train` of a recipe."""
    for line in recipe.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True) if line.strip().startswith("roformer-lite") else []
        if words[1:2] == ["train"]:
            yield words[2:]


@pytest.mark.parametrize("name", [name for name, _ in ROWS])
def test_recipes_use_options_of_this_version(name, current_folder):
    recipe = (CARDS / name / "recipe.sh").read_text("utf-8")
    for words in commands_of(recipe.replace("$length", "512")):
        for word in words:
            if re.search(r"\.(csv|tsv|txt|conll|gz)$", word):
                (current_folder / word).parent.mkdir(parents=True, exist_ok=True)
                (current_folder / word).touch()
        if "--model_name_or_path" in words:
            model = current_folder / words[words.index("--model_name_or_path") + 1]
            model.mkdir(parents=True)
            (model / "config.json").write_text("{}")
        train_options.parse(words)
