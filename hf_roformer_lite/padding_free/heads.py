"""What the head of a language model computes: a flat row, as the layers do.

In training with labels, the row has the labelled tokens, and the output has no logits. Otherwise it
has the tokens that the layers compute, and the logits become a padded batch again. A last state of
zeros stands for all other positions.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING
from transformers.models.auto import modeling_auto
from transformers.utils.import_utils import is_tracing

from .batch import FlatTokens
from .layers import has_other_hook, is_foreign
from .plan import Plan, current

# The classes whose labels or answers belong to tokens, from transformers' tables. Some classes are
# in several tables, of which the first counts.
HEADS = {
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "token": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
}
LANGUAGE_HEADS = ("seq2seq", "causal", "masked")

IGNORE_INDEX = -100  # The label that losses ignore.

MESSAGE = (
    "There are no logits: in training, a language model computes them at labelled tokens only, for "
    "its loss. To get all logits, call padding_free(model, skip_logits=False), or set "
    "skip_logits=False in the call or the configuration of a RoFormerLite model."
)


class SkippedLogits(tuple):
    """Takes the place of the logits in an output. Any use of it raises an error that says why there
    are none.

    It is an empty tuple, because `DataParallel`, DDP, FSDP and accelerate go through all tuples in
    an output to find tensors.
    """

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(MESSAGE)

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(MESSAGE)

    def _refuse(self, *args: Any) -> Any:
        raise TypeError(MESSAGE)

    __getitem__ = __len__ = __array__ = __eq__ = __ne__ = __add__ = __mul__ = __rmul__ = _refuse


@dataclass
class Switch:
    """The settings of a padding-free model. They contain no module, so that a copy of a model has
    its own.

    Args:
        head: The kind of the model's class: "seq2seq", "causal", "masked" or "token"; empty for
            all other classes.
        stack: The name of the module whose last hidden states the head of a language model reads;
            None if there is none.
        skip_logits: As for `padding_free`.
        previous: The configurations of the model and its parts, each with its previous attention
            implementation. A model and its base model share this list.
        handles: The hooks.
        shifts_labels: Whether the head compares each position with the next label.
        has_summary: Whether the head has a "sequence summary" of transformers, which may read the
            first or the last position.
    """

    head: str = ""
    stack: str | None = None
    skip_logits: bool = False
    previous: list[tuple[PreTrainedConfig, str]] = field(default_factory=list)
    handles: list[RemovableHandle] = field(default_factory=list)
    shifts_labels: bool = False
    has_summary: bool = False


def head_of(model: nn.Module) -> str:
    """The kind of head of a transformers class; empty for any other class, even of the same
    name."""
    name = type(model).__name__
    if not type(model).__module__.startswith("transformers."):
        return ""
    return next((head for head, table in HEADS.items() if name in table.values()), "")


def stack_of(model: PreTrainedModel) -> nn.Module | None:
    """The module whose last hidden states the head of a language model reads."""
    if head_of(model) not in LANGUAGE_HEADS:
        return None
    stacks = [model.get_decoder(), model.base_model]
    if not model.config.is_encoder_decoder:
        stacks += model.children()
    # Some models are their own base model, and some decoders have a head of their own.
    for stack in stacks:
        if isinstance(stack, PreTrainedModel) and stack is not model and head_of(stack) == "":
            return stack
    return None


def reads_row(plan: Plan, model: PreTrainedModel, switch: Switch, given: dict[str, Any]) -> bool:
    """Whether the head of a language model may get a flat row instead of the states of the
    batch."""
    if switch.stack is None or plan.why_padded:
        return False
    # A user's own loss may depend on rows; transformers' losses depend on single positions.
    has_own_loss = "labels" in given and model.loss_function not in LOSS_MAPPING.values()
    returns_tuple = not given.get("return_dict", model.config.return_dict)
    if has_own_loss or returns_tuple or "shift_labels" in given or "logits_to_keep" in given:
        return False
    hooks = model.get_submodule(switch.stack)._forward_hooks.values()
    parts = [part for part in model.children() if not isinstance(part, PreTrainedModel)]
    return not any(map(is_foreign, hooks)) and not any(map(has_other_hook, parts))


def choose_row(
    plan: Plan,
    model: PreTrainedModel,
    switch: Switch,
    given: dict[str, Any],
    values: dict[str, torch.Tensor],
    tokens: FlatTokens | None,
) -> None:
    """Choose the tokens that the head computes. Labels in `given` become those of its row.

    Args:
        plan: The plan of the call, which gets these tokens.
        values: The arguments on the CPU, with the label of each state.
        tokens: The tokens that the layers compute; None if they are unknown.
    """
    may_skip = switch.skip_logits and model.training and not is_tracing()
    skips_logits = may_skip and "labels" in values
    if skips_logits:
        tokens = FlatTokens((values["labels"] != IGNORE_INDEX).long())
    if tokens is None or tokens.index is None or ("labels" in given) != ("labels" in values):
        return
    if "labels" in given:
        has_target = "decoder_input_ids" in given or "decoder_inputs_embeds" in given
        if model.config.is_encoder_decoder and not has_target:
            prepare: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
            if prepare is None:
                return
            given["decoder_input_ids"] = prepare(labels=given["labels"])
        # The last state has no label. A head that compares each state with the next label drops
        # it, and the first label.
        pad = (1, 0) if switch.shifts_labels else (0, 1)
        labels = F.pad(tokens.collect(values["labels"]), pad=pad, value=IGNORE_INDEX)
        given["labels"] = labels.to(given["labels"].device)
    plan.head_tokens = tokens
    plan.skips_logits = skips_logits


def select_states(stack: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Reduce the output of `stack`, which the head reads, to the states of the row of the head,
    `(1, n + 1, hidden)`."""
    plan = current.plan
    if plan is None or plan.head_tokens is None:
        return None
    states = plan.head_tokens.collect(output[0])
    output["last_hidden_state"] = F.pad(states, pad=(0, 0, 0, 1))
    return output
