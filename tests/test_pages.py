"""Every block of README and docs runs, and prints the output that its page shows.

Links of pages outside of docs lead somewhere (mkdocs checks the others), and the pictures are those
that a script draws from kept results.
"""

import re
import runpy
import shlex
import shutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from conftest import ROOT
from documentation import Block, blocks_of, run_block, run_command, write_examples

README = ROOT / "README.md"
DOCS = ROOT / "docs"
SKILL = ROOT / "skills" / "roformer-lite" / "SKILL.md"
PAGES = [README, *sorted(DOCS.glob("*.md")), ROOT / "conversion" / "README.md"]
DRAW_IMAGES = runpy.run_path(str(DOCS / "draw_images.py"))


def is_slow(block: Block) -> bool:
    trains = ".train()" in block.code or "roformer-lite train" in block.code
    return block.page != README or trains


def running_blocks() -> list:
    """The blocks of each page as parameters of a test."""
    params = []
    for page in PAGES:
        for block in blocks_of(page):
            if block.runs_here:
                marks = [pytest.mark.slow] * is_slow(block)
                params.append(pytest.param(block, marks=marks, id=str(block)))
    return params


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory) -> Callable[[Path], Path]:
    """The folder of each page, in which its blocks find the files that the pages name."""
    examples = tmp_path_factory.mktemp("examples")
    write_examples(examples)

    @cache
    def folder_of(page: Path) -> Path:
        return shutil.copytree(examples, tmp_path_factory.mktemp("pages") / page.stem)

    return folder_of


@pytest.mark.parametrize("block", running_blocks())
def test_block(block: Block, folder_of):
    printed = run_block(block, folder_of(block.page))
    if block.printed is not None and "Trainer(" in block.code:
        # A Trainer prints its log first, which the page does not show.
        assert printed.endswith(block.printed)
    elif block.printed is not None:
        assert printed == block.printed


@pytest.mark.slow
def test_the_first_line_of_the_readme_ends_in_its_table(tmp_path):
    """The line that sets everything up also trains, which gives about the figures shown."""
    line = next(block for block in blocks_of(README) if "roformer-lite train" in block.code)
    command = line.code[line.code.index("roformer-lite train") :]
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    printed = run_command(command, tmp_path)
    row = re.compile(r"^(\w.*?) {2,}[\d.]+ +([\d.]+)$", re.MULTILINE)
    assert line.printed is not None
    shown = dict(row.findall(line.printed))
    found = dict(row.findall(printed))
    assert len(shown) == 4
    for name, accuracy in shown.items():
        assert float(found[name]) == pytest.approx(float(accuracy), abs=0.05)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), SKILL], ids=str)
def test_links_lead_somewhere(page):
    """Links that begin with ../../actions lead to the pages of the repository on a server."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith("../../actions/workflows/"):
            link = f".github/workflows/{link.split('/')[4]}"
        if "://" not in link and not (page.parent / link.partition("#")[0]).exists():
            broken.append(link)
    assert broken == []


def test_llms_txt_lists_every_page():
    listed = re.findall(r"^- \[(.*?)\]\((.*?)\): \w", (DOCS / "llms.txt").read_text("utf-8"), re.M)
    titles = {
        f"{page.stem}.html": page.read_text("utf-8").partition("\n")[0]
        for page in DOCS.glob("*.md")
    }
    assert {name: f"# {title}" for title, name in listed} == titles


def commands_of_skill() -> list[str]:
    return re.findall(r"^\$ roformer-lite (.*)$", SKILL.read_text("utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("command", commands_of_skill())
def test_commands_of_the_skill_have_valid_options(command, current_folder):
    name, *words = shlex.split(command)
    if name != "train":
        Path(words[0]).mkdir()
    for file in re.findall(r"file (\S+)", command):
        Path(file).touch()
    assert import_module(f"roformer_lite.commands.{name}_options").parse(words)


def texts_of(picture: Path) -> list[str]:
    """All texts of a drawing. matplotlib writes each one as a comment above its outlines."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text("utf-8"))


@pytest.mark.parametrize("name", list(DRAW_IMAGES["DRAWINGS"]))
def test_pictures_are_what_the_script_draws(name, tmp_path):
    DRAW_IMAGES["main"](tmp_path)
    drawn = texts_of(tmp_path / f"{name}.svg")
    assert drawn == texts_of(DOCS / "images" / f"{name}.svg") != []
