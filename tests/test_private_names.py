"""Every private name of another library that the code uses is listed, each with its reason."""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import chain
from pydoc import locate

from conftest import ROOT, data_beside

# The names by owner. Those of the second list are strings in the code.
NAMES, STRINGS = (
    {owner: list(chain(*reasons.values())) for owner, reasons in names.items()}
    for names in data_beside(__file__).values()
)
NAMES_OF_OTHERS = set().union(*(dir(locate(owner)) for owner in NAMES))


def used_names() -> Iterator[str]:
    """The private attributes and imports in the code that their file does not define itself, and
    those that it defines in place of another library's."""
    for folder in ("hf_roformer_lite", "roformer_lite", "conversion"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            own = re.findall(
                r"(?:def |class |(?:self\.|^ *)(?=\w+(?::| =)))(_[A-Za-z]\w*)", text, re.MULTILINE
            )
            yield from NAMES_OF_OTHERS.intersection(own)
            for node in ast.walk(ast.parse(text)):
                names = []
                if isinstance(node, ast.Attribute):
                    names = [node.attr]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
                for name in names:
                    if re.match("_(?!.*__$)", name) and name not in own:
                        yield name


def test_all_are_listed():
    assert set(used_names()) == set(chain(*NAMES.values()))


def test_all_exist():
    for owner, names in (*NAMES.items(), *STRINGS.items()):
        found = locate(owner)
        # The attributes of an object are in the code of its class.
        others = set(names).difference(dir(found))
        assert all(name in inspect.getsource(found) for name in others)
