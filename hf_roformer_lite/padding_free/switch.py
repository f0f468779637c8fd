"""`padding_free(model)`: the layers of a model compute the real tokens of a batch only.

Everything before the layers (embeddings, positions, masks) and after them (norm, pooling, heads)
stays the model's own. The hooks of its layers (`layers.py`) do the rest. Around `forward` of the
model itself stands what a flat row must not change: the loss of labels at padding, heads that read
padding, packed rows. In training the head of a language model computes the labelled positions only.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING
from transformers.models.auto import modeling_auto
from transformers.utils import logging

from . import trial
from .attention import NAME, computes_padding, set_to_true
from .layers import CACHES, hook_layers, parameters_of, wants_all_layers
from .trial import IGNORE_INDEX

logger = logging.get_logger(__name__)

# What transformers calls the heads whose labels or answers belong to tokens, in this order: some
# classes stand in several tables.
HEADS = {
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "token": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "question": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}
LANGUAGE_HEADS = ("seq2seq", "causal", "masked")

ModuleT = TypeVar("ModuleT", bound=nn.Module)

# Whether `run` is at work on a model, so that the base model within it has nothing to decide.
_is_running: ContextVar[bool] = ContextVar("is_running", default=False)


def padding_free(model: ModuleT, enabled: bool = True, skip_logits: bool = True) -> ModuleT:
    """Let the layers of `model` compute real tokens only; its outputs stay those of transformers.

    The model is changed in place: its attention implementation, hooks of its layers, and what
    stands around `forward`. Nothing of that is saved. Before it is returned, random rows go through
    it both ways and must give the same. Call it before the model is sharded.

    Padding is computed as ever where a cache holds tokens, where outputs of all layers are wanted,
    under masks of four dimensions, and in a model that is compiled as a whole. What outputs hold at
    padding has no meaning.

    Args:
        model: A `PreTrainedModel` with any head, or a module that holds one or several, such as a
            `PeftModel` or a `SentenceTransformer`. Its attention must go through the attention
            interface of transformers.
        enabled: False undoes it.
        skip_logits: Whether, in training with labels, the head of a language model computes the
            labelled positions only. The output then has no `logits`. Models of this package have
            a field of their configuration for it.

    Returns:
        `model` itself.

    Raises:
        TypeError: if there is no model of transformers in `model`.
        ValueError: if a model can't be padding-free, with the reason. All others are switched off
            as well.
    """
    models = outermost_models(model)
    if not models:
        raise TypeError(
            f"padding_free: {type(model).__name__} is no model of transformers, and holds none."
        )
    # The layers of our own models have had their hooks since they were made.
    others = [part for part in models if not part.config.model_type.startswith("roformer_lite")]
    for part in others:
        switch_off(part)
    for part in others if enabled else ():
        try:
            switch_on(part, skip_logits=skip_logits)
        except Exception as error:
            for other in others:
                switch_off(other)
            reason = str(error) or type(error).__name__
            raise ValueError(f"{type(part).__name__} can't be padding-free: {reason}") from error
    for part in models:
        if part not in others:
            part.set_attn_implementation(NAME if enabled else "sdpa")
    return model


def outermost_models(module: nn.Module) -> list[PreTrainedModel]:
    """The models of transformers in `module` that are in no other one."""
    if isinstance(module, PreTrainedModel):
        return [module]
    models = [part for child in module.children() for part in outermost_models(child)]
    return list(dict.fromkeys(models))


# On and off


@dataclass
class Switch:
    """What `padding_free` knows of a model. It holds no module, so that a copy of a model has a
    switch of its own.

    Args:
        head: The key in `HEADS` of the model's class; empty for all other classes.
        previous: The attention implementations of the model and its parts before; empty for the
            base model within another one.
        skip_logits: As for `padding_free`.
        handles: The hooks.
        is_causal: Whether no token sees those after it.
        shifts_labels: Whether the head compares each place with the label after it.
    """

    head: str = ""
    previous: dict[str, str] = field(default_factory=dict)
    skip_logits: bool = False
    handles: list[RemovableHandle] = field(default_factory=list)
    is_causal: bool = False
    shifts_labels: bool = False


def switch_of(model: nn.Module) -> Switch:
    return vars(model)["_padding_free"]


def switch_on(model: PreTrainedModel, skip_logits: bool) -> None:
    """Make a model padding-free, or say in an error why it can't be."""
    if any(isinstance(weight, DTensor) for weight in model.parameters()):
        raise ValueError("it was sharded before; call padding_free first.")
    if hasattr(model.config.get_text_config(), "expert_capacity"):
        raise ValueError("its experts take so many tokens of a batch, those of padding among them.")
    switch = Switch(
        head=head_of(model),
        previous=attention_implementations(model),
        skip_logits=skip_logits,
        handles=hook_layers(model),
    )
    vars(model.base_model)["_padding_free"] = Switch()
    vars(model)["_padding_free"] = switch  # Some models are their own base model.
    stack = stack_below(model, switch.head)
    if stack is not None:
        switch.handles.append(stack.register_forward_hook(select_labelled))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            switch_forward(model, switch)
    finally:
        for module, mode in modes:
            module.training = mode


def switch_forward(model: PreTrainedModel, switch: Switch) -> None:
    """Switch attention and `forward` of a model, and compare what it gives for random rows.

    Raises:
        ValueError: with the reason why a flat row would change its outputs.
    """
    batches = trial.random_batches(model, switch.head)
    expected = [trial.outputs_of(model, switch.head, batch) for batch in batches]
    is_causal = trial.sees_no_later_token(model, batches[0])
    switch.shifts_labels = switch.head in LANGUAGE_HEADS and trial.shifts_labels(model, batches[0])
    model.set_attn_implementation(NAME)
    if not is_switched(model):
        raise ValueError("its attention does not go through transformers' attention interface.")
    for part in {model, model.base_model}:
        switch_of(part).is_causal = is_causal
        stock_class: Any = type(part)
        part.__class__ = padding_free_class(stock_class)
    if switch.head != "question" and not trial.computes_flat_rows(model, batches[0]):
        raise ValueError("no layer of it takes a mask that transformers' mask functions make.")
    for batch, outputs in zip(batches, expected, strict=True):
        found = trial.outputs_of(model, switch.head, batch)
        trial.check_outputs(found, outputs, batch["attention_mask"] != 0, model.dtype)
    if not trial.keeps_rows_apart(model, batches[0]):
        raise ValueError("tokens of different rows meet outside its attention.")


def switch_off(model: PreTrainedModel) -> None:
    """Undo `switch_on`, also where it ended early."""
    for part in {model, model.base_model}:
        switch = vars(part).pop("_padding_free", None)
        if switch is None:
            continue
        for handle in switch.handles:
            handle.remove()
        if switch.previous:
            model.set_attn_implementation(switch.previous)
        stock_class = vars(type(part)).get("_stock_class")
        if stock_class is not None:  # Others, such as FSDP2, may have made a class of it since.
            part.__class__ = stock_class


def is_switched(model: PreTrainedModel) -> bool:
    config = model.config
    return NAME in (config._attn_implementation, config.get_text_config()._attn_implementation)


def head_of(model: nn.Module) -> str:
    name = type(model).__name__
    return next((head for head, table in HEADS.items() if name in table.values()), "")


def attention_implementations(model: PreTrainedModel) -> dict[str, str]:
    """The attention implementation of a model, under an empty key, and of its parts by name."""
    whole = model.config._attn_implementation  # transformers documents this field.
    implementations = {"": whole}
    for name in model.config.sub_configs:
        part = getattr(model.config, name)
        implementations[name] = getattr(part, "_attn_implementation", None) or whole
    return implementations


def stack_below(model: PreTrainedModel, head: str) -> nn.Module | None:
    """The module whose last hidden states the head of a language model reads."""
    if head not in LANGUAGE_HEADS:
        return None
    stack: nn.Module = model.base_model
    if head != "masked":
        decoder = model.get_decoder()
        if isinstance(decoder, PreTrainedModel):
            stack = decoder
    # Some models are their own base model, and some decoders have a head of their own.
    return stack if stack is not model and head_of(stack) == "" else None


@lru_cache
def padding_free_class(model_class: Any) -> Any:
    """The class of a model with `run` around its `forward`, under the same name.

    A hook would not do: PEFT and sentence-transformers call `forward` itself. Nor would a `forward`
    of the instance, which `DataParallel` would share among all replicas.
    """

    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        return run(self, model_class.forward, args, kwargs)

    def reduce(self: PreTrainedModel, protocol: int) -> tuple[Any, ...]:
        return new_padding_free, (model_class,), vars(self)

    signature = inspect.signature(model_class.forward)
    forward.__signature__ = signature  # type: ignore[attr-defined]  # mypy knows no such field.
    forward.__doc__ = model_class.forward.__doc__
    fields = {
        "__module__": model_class.__module__,
        "__qualname__": model_class.__qualname__,
        "__doc__": model_class.__doc__,
        "__reduce_ex__": reduce,  # for copies, and for processes that are sent the model
        "_stock_class": model_class,
        "forward": forward,
    }
    return type(model_class.__name__, (model_class,), fields)


def new_padding_free(model_class: Any) -> PreTrainedModel:
    switched_class = padding_free_class(model_class)
    return switched_class.__new__(switched_class)


# Around `forward`


def run(
    model: PreTrainedModel,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`forward` of a model that is switched on."""
    if torch.compiler.is_compiling() or _is_running.get() or not is_switched(model):
        return forward(model, *args, **kwargs)
    names = parameters_of(model)
    if len(args) > len(names):
        return forward(model, *args, **kwargs)
    given = dict(zip(names, args, strict=False)) | kwargs
    with set_to_true(_is_running):
        if needs_padding(model, given):
            with set_to_true(computes_padding):
                return forward(model, **given)
        separate_packed_rows(model, given)
        stack = stack_below(model, switch_of(model).head)
        places = keep_labelled(model, given, has_stack=stack is not None)
        if stack is None or places is None:
            return forward(model, **given)
        # The hook of the stack reads them here. It could not read a context variable where the
        # stack is compiled.
        stack._labelled_places = places
        try:
            output = forward(model, **given)
        finally:
            del stack._labelled_places
    fields = {name: value for name, value in output.items() if name != "logits"}
    return type(output)(**fields)


def matrix(given: dict[str, Any], name: str) -> torch.Tensor | None:
    """A tensor of two dimensions among the arguments."""
    value = given.get(name)
    return value if isinstance(value, torch.Tensor) and value.ndim == 2 else None


def needs_padding(model: PreTrainedModel, given: dict[str, Any]) -> bool:
    """Whether the output depends on the states of padding."""
    if wants_all_layers(given, model.config, model.config.get_text_config()):
        return True
    head = switch_of(model).head
    mask = given.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.ndim not in (2, 3):
        mask = None
    reason = ""
    if head == "question" and mask is not None:
        reason = "the probability of an answer counts the scores of padding."
    elif has_labels_at_padding(model, given):
        reason = (
            "labels of padding, or of the token after padding on the left, count in its loss. Set "
            "them to -100, or pad on the right."
        )
    if reason:
        name = type(model).__name__
        logger.warning_once(f"padding_free: {name} computes padding, as {reason}")
        return True
    if model.config.is_encoder_decoder:
        return head == "seq2seq" and has_unlabelled_tokens(given)
    if mask is None or head != "":
        return False
    return reads_padding(model, given, is_real=mask.flatten(0, -2) != 0)  # of all choices


def reads_padding(model: PreTrainedModel, given: dict[str, Any], is_real: torch.Tensor) -> bool:
    """Whether a pooler or head may read a state of padding: the first place of a row, or in causal
    models the last one that is no padding token."""
    if not switch_of(model).is_causal:
        return not bool(is_real[:, 0].all())
    if not bool(is_real.any(dim=1).all()):
        return True
    if model.base_model is model or bool(is_real[:, -1].all()):
        return False
    ids = given.get("input_ids")
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    if ids is None or padding is None or ids.shape != is_real.shape:
        return True
    places = torch.arange(ids.shape[1], device=ids.device)
    last = (places * (ids != padding)).argmax(dim=1, keepdim=True)
    return not bool(is_real.to(ids.device).gather(1, last).all())


def has_labels_at_padding(model: PreTrainedModel, given: dict[str, Any]) -> bool:
    labels = matrix(given, "labels")
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    mask = matrix(given, prefix + "attention_mask")
    if labels is None or mask is None or mask.shape != labels.shape:
        return False
    is_padding = mask.to(labels.device) == 0
    if switch_of(model).shifts_labels:
        is_padding = is_padding | F.pad(is_padding[:, :-1], pad=(1, 0))
    return bool(((labels != IGNORE_INDEX) & is_padding).any())


def has_decoder_inputs(given: dict[str, Any]) -> bool:
    """Whether the target of an encoder–decoder is given, and not to be made of labels."""
    names = ("decoder_input_ids", "decoder_inputs_embeds", "decoder_attention_mask")
    return any(given.get(name) is not None for name in names)


def has_unlabelled_tokens(given: dict[str, Any]) -> bool:
    """Whether a target, which is to be made of labels, has tokens without a label between others.

    They become padding tokens, which some decoders mask by themselves, and others don't.
    """
    labels = matrix(given, "labels")
    if labels is None or has_decoder_inputs(given):
        return False
    is_labelled = labels != IGNORE_INDEX
    return bool((~is_labelled[:, :-1] & is_labelled[:, 1:]).any())


def separate_packed_rows(model: PreTrainedModel, given: dict[str, Any]) -> None:
    """Let transformers see that rows are packed.

    Where positions restart, its causal masks keep documents apart, but only without a cache and
    without a mask, even one that says that all tokens are real.
    """
    positions = matrix(given, "position_ids")
    has_cache = any(given.get(name) is not None for name in CACHES)
    if positions is None or has_cache or given.get("use_cache"):
        return
    if given.get("attention_mask") is not None:
        mask = matrix(given, "attention_mask")
        if mask is None or not bool((mask == 1).all()):
            return
    goes_on = positions.diff(dim=1) == 1
    restarts = ~goes_on & (positions[:, 1:] == 0)
    if bool(restarts.any()) and bool((goes_on | restarts).all()):
        given["attention_mask"] = None
        if "use_cache" in parameters_of(model):
            given["use_cache"] = False


def keep_labelled(
    model: PreTrainedModel, given: dict[str, Any], has_stack: bool
) -> torch.Tensor | None:
    """In training, keep the labels that count, and return the places `(n,)` of the states that
    the head needs for them, among the B * L; None where it needs all."""
    labels = matrix(given, "labels")
    if labels is None:
        return None
    if "use_cache" in parameters_of(model) and given.get("use_cache") is None:
        given["use_cache"] = False  # Nobody goes on from a text that has labels.
    if not has_stack or not skips_logits(model, given):
        return None
    if model.config.is_encoder_decoder and not has_decoder_inputs(given):
        prepare: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if prepare is None:
            return None
        # The decoder reads the shifted labels, up to the last one: it is causal, so that no label
        # depends on what comes after it. (Labels have no gaps here, see `has_unlabelled_tokens`.)
        given["decoder_input_ids"] = prepare(labels=labels)
        given["decoder_attention_mask"] = (labels != IGNORE_INDEX).long()
    shifts_labels = switch_of(model).shifts_labels
    if shifts_labels:
        labels = F.pad(labels[:, 1:], pad=(0, 1), value=IGNORE_INDEX)
    places = (labels.flatten() != IGNORE_INDEX).nonzero().squeeze(1)
    if len(places) == 0:
        return None
    labels = labels.flatten()[places].unsqueeze(0)
    if shifts_labels:
        # The head compares each state with the label after it: the last state, compared with
        # nothing, takes the place that the head cuts off.
        labels = F.pad(labels, pad=(1, 0), value=IGNORE_INDEX)
        places = F.pad(places, pad=(0, 1))
    given["labels"] = labels
    return places


def skips_logits(model: PreTrainedModel, given: dict[str, Any]) -> bool:
    """Whether the head of a language model computes labelled positions only."""
    if not model.training or not switch_of(model).skip_logits:
        return False
    # A loss of the user's own may look at rows; transformers' own losses see positions only.
    is_loss_of_positions = model.loss_function in LOSS_MAPPING.values()
    returns_tuple = given.get("return_dict", model.config.return_dict) is False
    kept = given.get("logits_to_keep")
    keeps_all = not isinstance(kept, torch.Tensor) and not kept
    has_shifted_labels = given.get("shift_labels") is not None
    return is_loss_of_positions and keeps_all and not returns_tuple and not has_shifted_labels


def select_labelled(stack: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """What the head of a language model reads: the states of labelled positions, `(1, n, hidden)`."""
    places = getattr(stack, "_labelled_places", None)
    if places is None:
        return None
    states = output[0].flatten(0, 1)
    states = states.index_select(0, places.to(states.device)).unsqueeze(0)
    if isinstance(output, tuple):
        return states, *output[1:]
    output["last_hidden_state"] = states
    return output
