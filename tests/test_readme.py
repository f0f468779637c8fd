"""Every block of README and docs runs, and prints the output that the page shows.

The blocks of a page run from top to bottom in one directory. The blocks of docs, and the trainings
of the README, are slow tests.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from documentation import PAGES, README, Block, blocks_of, run_bash, run_python, write_examples
from hub_server import running_hub
from safetensors.torch import load_file

REFERENCE = ROOT / "docs" / "reference.md"
CONVERSION = ROOT / "conversion" / "README.md"
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
QUICK = [
    block
    for page in (REFERENCE, CONVERSION)
    for block in blocks_of(page)
    if block.language == "python"
]


def is_slow(block: Block) -> bool:
    """Whether a block trains, or belongs to the pages of docs."""
    trains = ".train()" in block.code or "roformer-lite train" in block.code
    return block.page != README or trains


RUNNING = [
    pytest.param(block, marks=[pytest.mark.slow] * is_slow(block), id=str(block))
    for block in BLOCKS
    if block.runs_here and block.page != REFERENCE
]
SAVED = {
    "train": {
        "model.safetensors",
        "tokenizer.json",
        "config.json",
        "README.md",
        "run.yaml",
    },
    "evaluate": {"results.json", "report.txt", "predictions.csv", "confusion.png"},
}
LINKED = [
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "model_cards", "tutorials")),
    CONVERSION,
]


@pytest.fixture(scope="module")
def hub():
    with running_hub() as server:
        yield server


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory) -> Callable[[Path], Path]:
    """A function that returns the directory of a page.

    Pages of docs that use the model `dates` find it there, trained by the example of the README."""
    directories: dict[Path, Path] = {}
    examples = tmp_path_factory.mktemp("examples")
    write_examples(examples)

    def directory_of(page: Path) -> Path:
        if page not in directories:
            directories[page] = tmp_path_factory.mktemp(page.stem)
            shutil.copytree(examples, directories[page], dirs_exist_ok=True)
            if page != README and '"dates"' in page.read_text("utf-8"):
                dates = directory_of(README) / "dates"
                if not (dates / "config.json").exists():
                    example = next(
                        block for block in blocks_of(README) if "Seq2SeqTrainer(" in block.code
                    )
                    run_python(example, directory_of(README), "")
                shutil.copytree(dates, directories[page] / "dates")
        return directories[page]

    return directory_of


@pytest.mark.parametrize("block", RUNNING)
def test_block(block: Block, directory_of, hub):
    folder = directory_of(block.page)
    is_python = block.language == "python"
    out = run_python(block, folder, hub.url) if is_python else run_bash(block, folder)
    if block.printed is not None:
        # A Trainer prints its log first, which the page does not show.
        shown = out[-len(block.printed) :] if "Trainer(" in block.code else out
        assert shown == block.printed
    lines = block.code.replace("\\\n", " ")
    for command, name in re.findall(r"\b(train|evaluate) [^\n]*--output_dir (\S+)", lines):
        saved = {path.name for path in (folder / name).iterdir()}
        assert SAVED[command] <= saved
        if command == "train":
            results = json.loads((folder / name / "results.json").read_text())
            assert ("loss_curve.png" in saved) == (results["training"]["steps"] > 0)
    if "dates-again" in block.code:
        before = load_file(folder / "dates" / "model.safetensors")
        after = load_file(folder / "dates-again" / "model.safetensors")
        assert all(torch.equal(after[name], weight) for name, weight in before.items())
    for name in re.findall(r'push_to_hub\("([^"]*)"', block.code):
        there = hub.files(name)
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= there.keys()
        weights = (folder / "dates" / "model.safetensors").read_bytes()
        assert there["model.safetensors"].content == weights


def test_what_is_printed_is_shown():
    assert not [
        str(block)
        for block in BLOCKS
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
