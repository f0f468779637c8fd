"""The tables of trained models have the figures that the trainings wrote."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT

CARDS = ROOT / "model_cards"
ROW = re.compile(r"\| \[.*?\]\((?P<link>[^)]*)\).*? \| .*? \| (?P<time>.*?) \| (?P<result>.*?) \|")
SHOWN = {
    match["link"]: match
    for match in map(ROW.match, (CARDS / "README.md").read_text("utf-8").splitlines())
    if match
}


def figures(values: Any) -> Iterator[float]:
    """All numbers inside `values`, as results of JSON."""
    if isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from figures(value)
    elif isinstance(values, int | float) and not isinstance(values, bool):
        yield values


def test_every_directory_has_a_row_and_what_a_reader_needs():
    directories = sorted(path.name for path in CARDS.iterdir() if path.is_dir())
    assert sorted(SHOWN) == directories
    for name in directories:
        found = {path.name for path in (CARDS / name).iterdir()}
        card = (CARDS / name / "README.md").read_text("utf-8")
        assert found == {
            "README.md",
            "results.json",
            "recipe.sh",
            *re.findall(r"\((\w+\.png)\)", card),
        }


@pytest.mark.parametrize("name", SHOWN)
def test_figures_are_those_of_the_training(name):
    results = json.loads((CARDS / name / "results.json").read_text("utf-8"))
    minutes = [results["training"]["minutes"], results["training"]["whole_command_minutes"]]
    minutes += results.get("seeds", {}).get("whole_minutes", {}).values()
    for known, cell in (
        (minutes, SHOWN[name]["time"]),
        (list(figures(results)), SHOWN[name]["result"]),
    ):
        numbers = re.findall(r"\d+(?:\.\d+)?", cell.replace(",", ""))
        assert numbers
        for number in numbers:
            places = len(number.partition(".")[2])
            assert any(round(figure, places) == float(number) for figure in known), (
                f"{number} of {cell!r}"
            )


def test_readme_shows_rows_of_the_table():
    readme = (ROOT / "README.md").read_text("utf-8").partition("## Results")[2].partition("## ")[0]
    rows = [
        line.replace("](model_cards/", "](")
        for line in readme.splitlines()
        if line.startswith("| [")
    ]
    assert len(rows) > 3 and set(rows) <= set((CARDS / "README.md").read_text("utf-8").splitlines())
