"""Names, options and files that pages, docstrings and comments show in backticks exist."""

import ast
import re
from collections.abc import Iterator

from conftest import ROOT, data_beside

CODE = "hf_roformer_lite roformer_lite conversion tests benchmarks tutorials".split()
CODE += ("examples", "docs")
MODULES = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *(path for folder in (*CODE, "model_cards") for path in (ROOT / folder).glob("README.md")),
    *ROOT.glob(".github/**/*.md"),
    *ROOT.glob("skills/*/SKILL.md"),
]
# The log of changes also names parts that only former versions had.
PAGES.remove(ROOT / "CHANGELOG.md")
OTHER_TEXT = "*.toml *.yml *.txt .ci/run tests/*/*.csv roformer_lite/*/*.jinja".split()
# Names that the pages contain and the code does not.
NOT_IN_CODE = set().union(*data_beside(__file__).values())
WORD = re.compile(r"[A-Za-z_]\w*")


def prose_and_code(text: str) -> tuple[str, str]:
    """The docstrings and comments of a module, and the rest of it."""
    tree = ast.parse(text)
    prose = re.findall(r"# .*", text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            prose.append(node.body[0].value.value)
            node.body[0].value.value = ""
    return "\n".join(prose), ast.unparse(tree)


def is_name(span: str) -> bool:
    """Whether the span looks like a name of code and not like a word or a placeholder."""
    looks_like_code = re.search(r"_|[a-z]\.[a-z]|[a-z][A-Z]", span) is not None
    has_placeholder = re.search(r"\b[A-Z_]{2,}\b", span) is not None
    return looks_like_code and not has_placeholder


def names_of_code(text: str, words: set[str]) -> Iterator[tuple[str, bool]]:
    """The names of code in a text, and whether each exists."""
    for span in set(re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text)):
        if is_name(span):
            yield span, words >= set(WORD.findall(span))
    # Names in capital letters are placeholders.
    for option in set(re.findall(r"`--([a-z][\w-]*)", text)):
        yield f"--{option}", option.replace("-", "_") in words
    for path in set(re.findall(r"`((?:\w+/)+[a-z_]\w*\.(?:py|md|sh))`", text)):
        yield path, any(ROOT.glob(path)) or any(ROOT.glob(f"*/{path}"))


def test_names_options_and_files_exist():
    prose = {}
    known = set(NOT_IN_CODE)
    for path in MODULES:
        prose[path], code = prose_and_code(path.read_text("utf-8"))
        known |= {*WORD.findall(code), *path.relative_to(ROOT).with_suffix("").parts}
    for path in PAGES:
        # Other tests run the blocks of code, so only the text around them is prose.
        prose[path] = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for pattern in OTHER_TEXT:
        for path in ROOT.glob(pattern):
            known |= set(WORD.findall(path.read_text("utf-8")))
    stale = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in prose.items()
        for name, exists in names_of_code(text, known)
        if not exists
    ]
    assert stale == []
