"""Every private name of another library that the code uses, each with its reason."""

import ast
from collections.abc import Iterator

from conftest import ROOT

FOLDERS = ("hf_roformer_lite", "roformer_lite", "conversion")

# The reason for each name.
HOOKS = "no public function tells which hooks a module has, of which some must not get a flat row"
COUNTS = "sacrebleu's paired tests use it, and no public function returns the counts of each line"
NAMES: dict[str, str] = {
    "_forward_hooks": HOOKS,
    "_forward_pre_hooks": HOOKS,
    "_backward_hooks": HOOKS,
    "_backward_pre_hooks": HOOKS,
    "_global_forward_hooks": HOOKS,
    "_global_forward_pre_hooks": HOOKS,
    "_global_backward_hooks": HOOKS,
    "_global_backward_pre_hooks": HOOKS,
    "_version": "a flat row may be reused only if the batch was not changed in place",
    "_dynamo": "torch.compile must know that the number of tokens changes",
    "_attn_implementation": (
        "set_attn_implementation refuses models with attention modules of their own"
    ),
    "_can_set_attn_implementation": "it tells whether a class uses the attention interface",
    "_old_forward": "accelerate calls it in place of the class's `forward`",
    "_extract_corpus_statistics": COUNTS,
    "_compute_score_from_stats": COUNTS,
    "_auto_class": "a bundle registers classes for a saving, and must forget them",
    "_replace": (
        "named tuples have this public method, whose underscore keeps it apart from their fields"
    ),
}
# These names are strings in the code.
STRINGS = {"_old_forward", "_auto_class"}


def used_names() -> Iterator[str]:
    """The private attributes and imports in the code that it does not define itself."""
    trees = [
        ast.parse(path.read_text("utf-8"))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    own = set(definitions(nodes))
    for node in nodes:
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield node.attr
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            parts = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from filter(is_private, parts)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def definitions(nodes: list[ast.AST]) -> Iterator[str]:
    yield "_asdict"  # a public method of named tuples
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in ("self", "cls"):
                yield node.attr


def test_all_are_listed():
    assert set(used_names()) == set(NAMES) - STRINGS
