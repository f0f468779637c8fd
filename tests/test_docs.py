"""Pictures of the documentation: drawn by the script, from the results that are kept."""

import re
import runpy
from pathlib import Path

import pytest
from conftest import ROOT

IMAGES = ROOT / "docs" / "images"
SCRIPT = runpy.run_path(str(ROOT / "docs" / "draw_images.py"))


def texts_of(picture: Path) -> list[str]:
    """All texts of a drawing; matplotlib writes each as a comment above its outlines."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text("utf-8"))


@pytest.mark.parametrize("name", list(SCRIPT["DRAWINGS"]))
def test_pictures_are_what_the_script_draws(name, tmp_path):
    SCRIPT["main"](tmp_path)
    assert texts_of(tmp_path / f"{name}.svg") == texts_of(IMAGES / f"{name}.svg") != []


def test_speed_picture_says_what_the_table_says():
    """Each bar is a row of the table; models that are only fast by an option have their own column there."""
    table = (
        (ROOT / "docs" / "speed.md").read_text("utf-8").lower().replace("modernbert with sparse prediction", "sparse")
    )
    bars = [text for text in texts_of(IMAGES / "speed.svg") if " × " in text]
    assert len(bars) == len(SCRIPT["RACES"])
    for bar in bars:
        times, peer = bar.split(" × ")
        assert f"{times} {peer.removeprefix('modernbert, ')}" in table, bar


def test_readme_shows_rows_of_the_table():
    readme = (ROOT / "README.md").read_text("utf-8").partition("## Speed")[2].partition("## ")[0]
    rows = [line for line in readme.splitlines() if line.startswith("| ")]
    assert len(rows) > 3 and set(rows) <= set((ROOT / "docs" / "speed.md").read_text("utf-8").splitlines())


def test_every_page_is_in_the_navigation_and_every_picture_on_a_page():
    pages = sorted((ROOT / "docs").glob("*.md"))
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert not [page.name for page in pages if f": {page.name}\n" not in navigation]
    shown = "".join(page.read_text("utf-8") for page in pages)
    pictures = [path for path in IMAGES.rglob("*") if path.is_file()]
    assert not [path for path in pictures if path.relative_to(IMAGES.parent).as_posix() not in shown]
    assert max(path.stat().st_size for path in pictures) < 150_000
