"""Every private name of another library that the code uses, each with its reason."""

import ast
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from accelerate.hooks import ModelHook, add_hook_to_module
from conftest import ROOT
from peft.utils import constants
from sacrebleu.metrics import BLEU
from torch.nn.modules import module as torch_module

FOLDERS = ("hf_roformer_lite", "roformer_lite", "conversion")


def hooked_module() -> torch.nn.Module:
    return add_hook_to_module(torch.nn.Linear(1, 1), ModelHook())


# The reason for each name, and an object that has it.
HOOKS = "no public function tells which hooks a module has, of which some must not get a flat row"
COUNTS = "sacrebleu's paired tests use it, and no public function returns the counts of each line"
NAMES: dict[str, tuple[Any, str]] = {
    "_forward_hooks": (torch.nn.Module(), HOOKS),
    "_forward_pre_hooks": (torch.nn.Module(), HOOKS),
    "_backward_hooks": (torch.nn.Module(), HOOKS),
    "_backward_pre_hooks": (torch.nn.Module(), HOOKS),
    "_global_forward_hooks": (torch_module, HOOKS),
    "_global_forward_pre_hooks": (torch_module, HOOKS),
    "_global_backward_hooks": (torch_module, HOOKS),
    "_global_backward_pre_hooks": (torch_module, HOOKS),
    "_version": (
        torch.ones(1),
        "a flat row may be reused only if the batch was not changed in place",
    ),
    "_dynamo": (torch, "torch.compile must know that the number of tokens changes"),
    "_attn_implementation": (
        transformers.BertConfig(),
        "set_attn_implementation refuses models with attention modules of their own",
    ),
    "_can_set_attn_implementation": (
        transformers.PreTrainedModel,
        "it tells whether a class uses the attention interface",
    ),
    "_old_forward": (hooked_module(), "accelerate calls it in place of the class's `forward`"),
    "_extract_corpus_statistics": (BLEU(), COUNTS),
    "_compute_score_from_stats": (BLEU(), COUNTS),
    "_auto_class": (
        transformers.PreTrainedModel,
        "a bundle registers classes for a saving, and must forget them",
    ),
    "_replace": (
        namedtuple("Pair", "first second")(1, 2),
        "named tuples have this public method, whose underscore keeps it apart from their fields",
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
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr


def test_all_are_listed():
    assert set(used_names()) == set(NAMES) - STRINGS


@pytest.mark.parametrize("name", NAMES)
def test_they_exist(name):
    owner, reason = NAMES[name]
    assert hasattr(owner, name) and reason


def test_tables_of_peft_that_are_changed():
    """They have no public name, and no other place for the default targets of a model type."""
    names = [name for name in vars(constants) if name.endswith("_TARGET_MODULES_MAPPING")]
    assert names and all(isinstance(getattr(constants, name), dict) for name in names)


def test_the_size_of_a_result_in_a_graph():
    """`places_of` asks for a size in a way that torch has no public name for."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    assert hasattr(mode.from_tensor(torch.ones(1)).fake_mode.shape_env, "create_unbacked_symint")
