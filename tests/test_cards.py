"""The tables of trained models have the figures that the trainings wrote."""

import json
import re

import pytest
from conftest import ROOT

CARDS = ROOT / "model_cards"
ROW = re.compile(r"\| \[.*?\]\((?P<link>[^)]*)\).*? \| .*? \| (?P<time>.*?) \| (?P<result>.*?) \|")
METRICS = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "exact match": "exact_match",
    "perplexity": "perplexity",
    "accuracy": "accuracy",
    "F1": "f1",
    "Spearman": "spearman",
}
BASELINES = {
    "linear SVM": "linear SVM on n-grams",
    "linear model of whole reviews": "linear SVM on n-grams",
    "CRF": "CRF",
}
SCORE = re.compile(
    rf"(?P<metric>{'|'.join(METRICS)}) (?P<mean>\d+\.\d+)(?: ± (?P<deviation>\d+\.\d+))?"
)
BASELINE = re.compile(r"\((?P<name>[^:()]+): (?P<score>\d+\.\d+)\)")
LINES = (CARDS / "README.md").read_text("utf-8").splitlines()
SHOWN = {match["link"]: match for match in map(ROW.match, LINES) if match}


def is_rounded(shown: str, exact: float) -> bool:
    """Whether `shown` is the exact number, rounded to the decimals that the table shows."""
    decimals = len(shown.partition(".")[2])
    return shown == f"{exact:.{decimals}f}"


def test_every_directory_has_a_row_and_what_a_reader_needs():
    directories = sorted(path.name for path in CARDS.iterdir() if path.is_dir())
    assert sorted(SHOWN) == directories
    for name in directories:
        found = {path.name for path in (CARDS / name).iterdir()}
        card = (CARDS / name / "README.md").read_text("utf-8")
        pictures = re.findall(r"\((\w+\.png)\)", card)
        assert found == {"README.md", "results.json", "recipe.sh", *pictures}


@pytest.mark.parametrize("name", SHOWN)
def test_figures_are_those_of_the_training(name):
    """Each metric of a row is compared with the field of the same name for the test data."""
    results = json.loads((CARDS / name / "results.json").read_text("utf-8"))
    seeds = results.get("seeds")
    scores = seeds["mean"]["test"] if seeds else results["metrics"]["test"]
    cell = SHOWN[name]["result"]
    found = list(SCORE.finditer(cell))
    assert found
    for score in found:
        metric = METRICS[score["metric"]]
        assert is_rounded(score["mean"], scores[metric]), score[0]
        assert (score["deviation"] is not None) == (seeds is not None)
        if seeds:
            assert is_rounded(score["deviation"], seeds["standard_deviation"]["test"][metric])
    for baseline in BASELINE.finditer(cell):
        measured = results["baselines"][BASELINES[baseline["name"]]]["test"]
        assert is_rounded(baseline["score"], measured[results["main_metric"]]), baseline[0]
    rest = BASELINE.sub("", SCORE.sub("", cell))
    assert not re.search(r"\d", rest), "a figure that no rule compares"


@pytest.mark.parametrize("name", SHOWN)
def test_times_are_those_of_the_training(name):
    """A row shows the time of the whole command, and of several seeds the second fastest."""
    results = json.loads((CARDS / name / "results.json").read_text("utf-8"))
    minutes = results["training"]["whole_command_minutes"]
    if "seeds" in results:
        minutes = sorted(results["seeds"]["whole_minutes"].values())[1]
    shown = SHOWN[name]["time"].removesuffix("*").removesuffix(" min")
    assert is_rounded(shown, minutes)


def test_readme_shows_rows_of_the_table():
    readme = (ROOT / "README.md").read_text("utf-8").partition("## Results")[2].partition("## ")[0]
    rows = [
        line.replace("](model_cards/", "](")
        for line in readme.splitlines()
        if line.startswith("| [")
    ]
    assert len(rows) > 3 and set(rows) <= set(LINES)
