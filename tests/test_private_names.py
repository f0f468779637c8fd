"""Every private name of another library that the code uses is listed, each with its reason."""

import ast
import inspect
import re
from collections.abc import Iterator

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from conftest import ROOT, data_beside
from sacrebleu.metrics import BLEU
from torch.nn.modules import module as torch_module
from transformers import BertConfig, GenerationMixin, PreTrainedModel, TokenizersBackend, Trainer

FILE = data_beside(__file__)
NAMES = set().union(*FILE["names"].values())
# These names are strings in the code.
STRINGS = set().union(*FILE["strings"].values())
# Each name belongs to one of these.
OWNERS = [
    torch,
    torch_module,
    torch.ones(1),
    add_hook_to_module(torch.nn.Linear(1, 1), ModelHook()),
    BertConfig(),
    PreTrainedModel,
    GenerationMixin,
    TokenizersBackend,
    Trainer,
    BLEU(),
    inspect.FullArgSpec,
]
NAMES_OF_OTHERS = set().union(*map(dir, OWNERS))


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


def test_all_are_listed_and_exist():
    assert set(used_names()) == NAMES
    assert NAMES | STRINGS <= NAMES_OF_OTHERS
