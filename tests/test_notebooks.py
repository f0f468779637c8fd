"""The notebooks run from top to bottom, and show what their cells print. Their own cells assert the
claims of their text."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from conftest import ROOT
from program import read_json

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells_of(notebook: Path) -> list[dict]:
    cells = read_json(notebook)["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def kept(cell: dict) -> str:
    """What a cell printed when the notebook was saved."""
    assert not [output for output in cell["outputs"] if output["output_type"] == "error"]
    printed = [output["text"] for output in cell["outputs"] if output["output_type"] == "stream"]
    return "".join("".join(text) for text in printed)


def without_numbers(text: str) -> str:
    """A text without its numbers, which depend on the machine, and without the white space that
    aligns them."""
    return "".join(re.sub(r"[\d.,]+(e-\d+)?", "0", text).split())


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, current_folder):
    """The cells run in one namespace, as in Jupyter, in an empty folder of a checkout."""
    (current_folder / "examples").symlink_to(ROOT / "examples")
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(cells_of(notebook)):
        code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec")
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(code, names)
        assert without_numbers(printed.getvalue()) == without_numbers(kept(cell)), number
