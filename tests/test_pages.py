"""Every block of README and docs runs, and prints the output that its page shows.

Links of pages outside of docs lead somewhere (mkdocs checks the others), and the pictures are those
that a script draws from kept results.
"""

import re
import runpy
import shlex
import shutil
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from conftest import ROOT
from documentation import README, Block, blocks_of, run_command

DOCS = ROOT / "docs"
SKILL = ROOT / "skills" / "roformer-lite" / "SKILL.md"
REFERENCE = DOCS / "reference.md"
CONVERSION = ROOT / "conversion" / "README.md"
# All blocks of these two pages are quick examples with small untrained models.
QUICK_PAGES = (REFERENCE, CONVERSION)
DRAW_IMAGES = runpy.run_path(str(DOCS / "draw_images.py"))


def is_slow(block: Block) -> bool:
    trains = ".train()" in block.code or "roformer-lite train" in block.code
    return block.page != README or trains


def running_blocks() -> list:
    """The blocks of each page as parameters of a test."""
    pages = [README, *(page for page in sorted(DOCS.glob("*.md")) if page not in QUICK_PAGES)]
    params = []
    for page in pages:
        for block in blocks_of(page):
            if block.runs_here:
                marks = [pytest.mark.slow] * is_slow(block)
                params.append(pytest.param(block, marks=marks, id=str(block)))
    return params


@pytest.mark.parametrize("block", running_blocks())
def test_block(block: Block, check_block):
    check_block(block)


@pytest.mark.slow
def test_the_first_line_of_the_readme_ends_in_its_table(tmp_path):
    """The line that sets everything up also trains, which gives about the figures shown."""
    line = next(block for block in blocks_of(README) if "roformer-lite train" in block.code)
    command = line.code[line.code.index("roformer-lite train") :]
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    printed = run_command(command, tmp_path)
    row = re.compile(r"│ (\w.*?) *│ .* │ +([\d.]+) │")
    assert line.printed is not None
    shown = dict(row.findall(line.printed))
    found = dict(row.findall(printed))
    assert len(shown) == 4
    for name, accuracy in shown.items():
        assert float(found[name]) == pytest.approx(float(accuracy), abs=0.05)


@pytest.mark.parametrize(
    "block",
    [block for page in QUICK_PAGES for block in blocks_of(page) if block.language == "python"],
    ids=str,
)
def test_quick_block(block: Block, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.code, str(block), "exec"), {})
    if block.printed is not None:
        assert capsys.readouterr().out == block.printed


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes from the headings of a page."""
    headings = re.findall(r"^#+ (.*)", page.read_text("utf-8"), flags=re.MULTILINE)
    words = [re.sub(r"[^\w -]", "", heading.lower()).strip() for heading in headings]
    return {text.replace(" ", "-") for text in words}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), SKILL], ids=str)
def test_links_lead_somewhere(page):
    """Links that begin with ../../actions lead to the pages of the repository on a server."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith("../../actions/workflows/"):
            link = f".github/workflows/{link.split('/')[4]}"
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if "://" in link or (target.exists() and not anchor):
            continue
        if not target.exists() or anchor not in anchors_of(target):
            broken.append(link)
    assert broken == []


def test_llms_txt_lists_every_page():
    listed = re.findall(r"^- \[(.*?)\]\((.*?)\): \w", (DOCS / "llms.txt").read_text("utf-8"), re.M)
    titles = {page.name: page.read_text("utf-8").partition("\n")[0] for page in DOCS.glob("*.md")}
    assert {name: f"# {title}" for title, name in listed} == titles


def test_each_training_of_the_pages_has_a_directory_of_its_own():
    """A reader may run the blocks of all pages in one directory."""
    pages = [README, *sorted(DOCS.glob("*.md"))]
    code = [block.code for page in pages for block in blocks_of(page) if block.runs_here]
    pattern = r"--output_dir (\S+)|Arguments\(\s*\"([\w-]+)\""
    found = [name or other for text in code for name, other in re.findall(pattern, text)]
    assert len(found) > 30
    assert [name for name, number in Counter(found).items() if number > 1] == []


def commands_of_skill() -> list[str]:
    return re.findall(r"^\$ roformer-lite (.*)$", SKILL.read_text("utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("command", commands_of_skill())
def test_commands_of_the_skill_have_valid_options(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    name, *words = shlex.split(command)
    if name != "train":
        Path(words[0]).mkdir()
    for file in re.findall(r"file (\S+)", command):
        Path(file).touch()
    monkeypatch.setattr("roformer_lite.options.run.check_model_name", lambda *_: None)
    assert import_module(f"roformer_lite.commands.{name}_options").parse(words)


def texts_of(picture: Path) -> list[str]:
    """All texts of a drawing. matplotlib writes each one as a comment above its outlines."""
    return re.findall(r"<!-- (.*?) -->", picture.read_text("utf-8"))


@pytest.mark.parametrize("name", list(DRAW_IMAGES["DRAWINGS"]))
def test_pictures_are_what_the_script_draws(name, tmp_path):
    DRAW_IMAGES["main"](tmp_path)
    drawn = texts_of(tmp_path / f"{name}.svg")
    assert drawn == texts_of(DOCS / "images" / f"{name}.svg") != []
