"""Every block of the README runs, and prints the output that it shows; its links lead somewhere.

The blocks of a page run from top to bottom in one directory. Those that train are slow tests.
`test_pages.py` and `test_more_pages.py` run the blocks of docs.
"""

import re
from pathlib import Path

import pytest
from conftest import ROOT
from documentation import PAGES, README, REFERENCE, Block, blocks_of

CONVERSION = ROOT / "conversion" / "README.md"
QUICK = [
    block
    for page in (REFERENCE, CONVERSION)
    for block in blocks_of(page)
    if block.language == "python"
]


def trains(block: Block) -> bool:
    return ".train()" in block.code or "roformer-lite train" in block.code


RUNNING = [
    pytest.param(block, marks=[pytest.mark.slow] * trains(block), id=str(block))
    for block in blocks_of(README)
    if block.runs_here
]
LINKED = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "model_cards", "tutorials")),
    CONVERSION,
]


@pytest.mark.parametrize("block", RUNNING)
def test_block(block: Block, check_block):
    check_block(block)


def test_what_is_printed_is_shown():
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert not [
        str(block)
        for block in blocks
        if block.language == "python" and ("print(" in block.code) != bool(block.printed)
    ]


@pytest.mark.parametrize("block", QUICK, ids=str)
def test_quick_block(block: Block, monkeypatch, tmp_path, capsys):
    """Examples with small untrained models run in this process."""
    monkeypatch.chdir(tmp_path)
    exec(compile(block.code, str(block), "exec"), {})
    if block.printed is not None:
        assert capsys.readouterr().out == block.printed


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes from the headings of a page."""
    headings = re.findall(r"^#+ (.*)", page.read_text("utf-8"), flags=re.MULTILINE)
    words = [re.sub(r"[^\w -]", "", heading.lower()).strip() for heading in headings]
    return {text.replace(" ", "-") for text in words}


@pytest.mark.parametrize("page", LINKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    """The files and headings that links name exist.

    mkdocs checks the links between the pages of docs, but not those of the pages of `LINKED`."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if "://" in link or (target.exists() and not anchor):
            continue
        if not target.exists() or anchor not in anchors_of(target):
            broken.append(link)
    assert broken == []


def test_map_of_the_readme_names_files_that_exist():
    mapped = README.read_text("utf-8").partition("## Where things are")[2]
    names = re.findall(r"`((?:\w+/)+\w+\.py)`", mapped)
    assert len(names) > 9 and not [name for name in names if not (ROOT / name).exists()]


def test_the_readme_has_the_command_that_ci_installs_and_tests_with():
    """`.ci/run` cuts this line at its `&&`."""
    ending_in_pytest = [
        line for line in README.read_text("utf-8").splitlines() if line.endswith("pytest")
    ]
    assert len(ending_in_pytest) == 1
    first, *_, last = ending_in_pytest[0].split(" && ")
    assert first == "python3 -m venv .venv" and last == ".venv/bin/python -m pytest"
