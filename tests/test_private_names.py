"""Every private name of another library that the code uses, each with its reason."""

import ast
import inspect
import re
from collections.abc import Iterator

import torch
from accelerate.hooks import ModelHook, add_hook_to_module
from conftest import ROOT
from sacrebleu.metrics import BLEU
from torch.nn.modules import module as torch_module
from transformers import BertConfig, GenerationMixin, PreTrainedModel, TokenizersBackend, Trainer

# The reason for each name.
HOOKS = "no public function tells which hooks a module has, of which some must not get a flat row"
CLASSES = "transformers reads it in the class of a model, and its own models set it"
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
    "_check": "torch documents it under this name; it tells a graph what holds for a size",
    "_attn_implementation": (
        "set_attn_implementation refuses models with attention modules of their own"
    ),
    "_can_set_attn_implementation": "it tells whether a class uses the attention interface",
    "_old_forward": "accelerate calls it in place of the class's `forward`",
    "_hf_hook": "accelerate's hook loads offloaded weights, for a copy of the model, too",
    "_extract_corpus_statistics": COUNTS,
    "_compute_score_from_stats": COUNTS,
    "_auto_class": "a bundle registers classes for a saving, and must forget them",
    "_replace": (
        "named tuples have this public method, whose underscore keeps it apart from their fields"
    ),
    # The code defines the following names again.
    "_apply": "every conversion calls it, and must not round the frequencies of rotary positions",
    "_encode_plus": "all ways of encoding call it, and no public function",
    "_get_eval_sampler": "predictions are compared with references by position",
    "_prepare_position_ids_for_generation": "`generate` continues the last position of a row",
    "_is_stateful": "`generate` reads it from every model, including those in ONNX",
    "_save": "sentence-transformers would write a card of its own",
    "_init_weights": CLASSES,
    "_can_compile_fullgraph": CLASSES,
    "_can_record_outputs": CLASSES,
    "_input_embed_layer": CLASSES,
    "_no_split_modules": CLASSES,
    "_skip_keys_device_placement": CLASSES,
    "_supports_attention_backend": CLASSES,
    "_supports_flash_attn": CLASSES,
    "_supports_flex_attn": CLASSES,
    "_supports_sdpa": CLASSES,
    "_tied_weights_keys": CLASSES,
    "_tp_plan": CLASSES,
}
# These names are strings in the code.
STRINGS = {"_old_forward", "_hf_hook", "_auto_class"}
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
    assert set(used_names()) == NAMES.keys() - STRINGS
    assert NAMES.keys() <= NAMES_OF_OTHERS
