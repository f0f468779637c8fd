"""Names, options and files that pages, docstrings and comments show in backticks exist."""

import ast
import pkgutil
import re
from pathlib import Path

import pytest
from conftest import ROOT

CODE = ("hf_roformer_lite", "roformer_lite", "conversion", "tests", "benchmarks", "tutorials")
CODE += ("examples", "docs")
MODULES = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *(path for folder in (*CODE, "model_cards") for path in (ROOT / folder).glob("README.md")),
    *ROOT.glob(".github/**/*.md"),
]
# The log of changes also names parts that only former versions had.
PAGES.remove(ROOT / "CHANGELOG.md")
OTHER_TEXT = ("*.toml", "*.yml", "*.txt", ".ci/run", "tests/*.csv", "roformer_lite/*/*.jinja")
# These names belong to other libraries, and the code here does not use them.
OF_OTHERS = {
    "AdaptiveLayerLoss",
    "DataParallel",
    "DistributedDataParallel",
    "Matryoshka2dLoss",
    "MultiheadAttention",
    "RoFormerTokenizerFast",
    "TorchDynamoPlugin",
    "TransformersKwargs",
    "add_adapter",
    "auto_find_batch_size",
    "convert_hf_to_gguf",
    "convert_roformer_original_tf_checkpoint_to_pytorch",
    "forced_bos_token_id",
    "hf_xet",
    "interleave_datasets",
    "limit_alphabet",
    "register_pipeline",
    "restore_callback_states_from_checkpoint",
}
# The code composes these names from a part of a name and an ending.
MADE = {"_64", "generated_token_ids", "validation_loss"}
WORD = re.compile(r"[A-Za-z_]\w*")


def docstrings_of(tree: ast.Module) -> list[ast.Constant]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, holders) and ast.get_docstring(node) is not None
    ]


def words_of(tree: ast.Module, docstrings: list[ast.Constant]) -> set[str]:
    """All words of names and of strings other than docstrings."""
    words = set()
    for node in ast.walk(tree):
        values = [getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module")]
        if isinstance(node, ast.Constant) and node not in docstrings:
            values.append(node.value)
        for value in values:
            if isinstance(value, str):
                words |= set(WORD.findall(value))
    return words


@pytest.fixture(scope="module")
def prose_and_words() -> tuple[dict[Path, str], set[str]]:
    """The prose of each file, and all words of the code."""
    prose = {}
    words = {part for path in MODULES for part in path.relative_to(ROOT).with_suffix("").parts}
    for path in MODULES:
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        docstrings = docstrings_of(tree)
        words |= words_of(tree, docstrings)
        comments = re.findall(r"# .*", text)
        prose[path] = "\n".join([*(node.value for node in docstrings), *comments])
    for path in PAGES:
        # Other tests run the blocks of code, so only the text around them is prose.
        prose[path] = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    for pattern in OTHER_TEXT:
        for path in ROOT.glob(pattern):
            words |= set(WORD.findall(path.read_text("utf-8")))
    return prose, words


def is_name(span: str) -> bool:
    """Whether the span looks like a name of code and not like a word or a placeholder."""
    looks_like_code = re.search(r"_|[a-z]\.[a-z]|[a-z][A-Z]", span) is not None
    has_placeholder = re.search(r"\b[A-Z_]{2,}\b", span) is not None
    return looks_like_code and not has_placeholder


def is_importable(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_names_exist(prose_and_words):
    prose, words = prose_and_words
    known = words | OF_OTHERS | MADE
    stale = []
    for path, text in prose.items():
        for span in set(re.findall(r"`([A-Za-z_][\w.]*)(?:\(\))?`", text)):
            if re.match(r"(hf_)?roformer_lite\.\w", span):
                exists = is_importable(span)
            else:
                exists = not is_name(span) or known >= set(WORD.findall(span))
            if not exists:
                stale.append(f"{path.relative_to(ROOT)}: {span}")
    assert stale == []


def test_options_exist(prose_and_words):
    prose, words = prose_and_words
    stale = []
    for path, text in prose.items():
        for option in set(re.findall(r"`--(\w[\w-]*)", text)):
            name = option.replace("-", "_")
            # Names in capital letters are placeholders.
            if name not in words and name.upper() != option:
                stale.append(f"{path.relative_to(ROOT)}: --{option}")
    assert stale == []


def test_files_exist(prose_and_words):
    prose, _ = prose_and_words
    folders = (*CODE, "model_cards")
    files = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.*")]
    stale = []
    for path, text in prose.items():
        for span in set(re.findall(r"`((?:\w+/)+\w+\.(?:py|md|sh))`", text)):
            is_placeholder = re.search(r"/[A-Z]+\.py", span) is not None
            if not is_placeholder and not any(file.endswith(f"/{span}") for file in files):
                stale.append(f"{path.relative_to(ROOT)}: {span}")
    assert stale == []
