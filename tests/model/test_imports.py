"""`model/` travels to the Hub: it imports itself and published libraries, nothing else of this package."""

import ast

import pytest
from conftest import ROOT

FILES = sorted((ROOT / "hf_roformer_lite" / "model").glob("*.py"))
MODULES = {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_siblings_and_libraries(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            # One dot and one name: transformers bundles no other relative import.
            assert node.level == 1 and node.module in MODULES, ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert not [name for name in names if name.split(".")[0] == "hf_roformer_lite"], ast.unparse(node)


def test_the_folder_is_flat():
    assert [path.name for path in FILES[0].parent.iterdir() if path.is_dir() and path.name != "__pycache__"] == []
