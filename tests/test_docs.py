"""The navigation of the documentation, and its pictures, which a script draws."""

import re
import runpy
from pathlib import Path

import pytest
from conftest import ROOT

IMAGES = ROOT / "docs" / "images"
SCRIPT = runpy.run_path(str(ROOT / "docs" / "draw_images.py"))


def texts_of(picture: Path) -> list[str]:
    """All texts of a drawing. matplotlib writes each one as a comment above its outlines."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text("utf-8"))


@pytest.mark.parametrize("name", list(SCRIPT["DRAWINGS"]))
def test_pictures_are_what_the_script_draws(name, tmp_path):
    SCRIPT["main"](tmp_path)
    assert texts_of(tmp_path / f"{name}.svg") == texts_of(IMAGES / f"{name}.svg") != []


def test_every_page_is_in_the_navigation_and_every_picture_on_a_page():
    pages = sorted((ROOT / "docs").glob("*.md"))
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert not [page.name for page in pages if f": {page.name}\n" not in navigation]
    shown = "".join(page.read_text("utf-8") for page in pages)
    pictures = [path for path in IMAGES.rglob("*") if path.is_file()]
    names = {path: path.relative_to(IMAGES.parent).as_posix() for path in pictures}
    assert not [path for path, name in names.items() if name not in shown]
    assert max(path.stat().st_size for path in pictures) < 150_000


def test_contributing_names_tests_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    names = re.findall(r"`(?:tests/)?((?:\w+/)*test_[\w*]+\.py)`", page)
    missing = [name for name in names if not list((ROOT / "tests").rglob(name))]
    assert len(names) > 9 and not missing
