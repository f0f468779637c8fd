"""The notebooks run from top to bottom. Their own cells assert the claims of their text."""

import json
from pathlib import Path

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells_of(notebook: Path) -> list[dict]:
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, monkeypatch, tmp_path):
    """The cells run in one namespace, as in Jupyter, in an empty folder of a checkout."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for number, cell in enumerate(cells_of(notebook)):
        code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec")
        exec(code, names)


def test_notebooks_are_kept_without_outputs():
    assert len(NOTEBOOKS) == 2
    for notebook in NOTEBOOKS:
        assert not [cell for cell in cells_of(notebook) if cell["outputs"]]
