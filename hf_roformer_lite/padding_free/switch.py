"""`padding_free(model)` makes the layers of a model compute only the real tokens of a batch.

The model's own code before the layers (embeddings, positions, masks) and after them (norm, pooling,
heads) does not change. The layers get hooks (`layers.py`). The `forward` of the model is wrapped,
to handle the cases in which a flat row would change the result: labels at padding, heads that read
padding, and packed rows. In training, the head of a language model computes only labelled
positions.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.loss.loss_utils import LOSS_MAPPING
from transformers.models.auto import modeling_auto
from transformers.utils import logging

from . import trial
from .attention import NAME, OWN_NAME, DocumentMask
from .attention_modules import (
    has_own_attention,
    hook_own_masks,
    unwrap_all,
    wrap,
    wrap_attention_modules,
)
from .batch import changed_state, state
from .layers import CACHES, hook_layers, parameters_of, wants_all_layers
from .outputs import without_logits
from .trial import IGNORE_INDEX, LANGUAGE_HEADS

logger = logging.get_logger(__name__)

# The classes whose labels or answers belong to tokens, from transformers' tables. Some classes are
# in several tables, of which the first counts.
HEADS = {
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "token": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "question": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def padding_free(model: ModuleT, enabled: bool = True, skip_logits: bool = True) -> ModuleT:
    """Make the layers of `model` compute only real tokens. Its outputs at real tokens stay the
    same.

    The model is changed in place: its attention implementation is set, its layers get hooks, and
    its `forward` is wrapped. None of this is saved. First, a copy that shares the weights and has
    no hooks computes random rows in both ways, and the results must agree. Call this function
    before the model is sharded.

    Padding is still computed if a cache already holds tokens, if outputs of all layers are
    requested, with masks of four dimensions, and in a model that is compiled as a whole. Outputs at
    padding have no meaning.

    Args:
        model: A `PreTrainedModel` with any head, or a module that contains one or more, such as a
            `PeftModel` or a `SentenceTransformer`.
        enabled: False restores the original model.
        skip_logits: Whether, in training with labels, the head of a language model computes only
            the labelled positions. Using `logits` of the output then raises an error. Models of
            this package have a field of their configuration for it instead.

    Returns:
        `model` itself.

    Raises:
        TypeError: if there is no transformers model in `model`.
        ValueError: if a model can't be padding-free, with the reason. All other models in `model`
            are then restored as well.
    """
    models = outermost_models(model)
    if not models:
        raise TypeError(
            "padding_free takes a transformers model, such as AutoModel.from_pretrained returns, "
            f"or a module that contains one. This is a {type(model).__name__} without one."
        )
    others = [part for part in models if not is_own(part)]
    for part in others:
        switch_off(part)
    if enabled:
        check_modules(model)
    if enabled and others:
        for part, switch in zip(others, tried(model, skip_logits=skip_logits), strict=True):
            switch_on(part, switch)
    for part in filter(is_own, models):
        part.set_attn_implementation(NAME if enabled else "sdpa")
    return model


def is_own(model: PreTrainedModel) -> bool:
    """Whether a model is one of this package, whose layers have the hooks from the start."""
    return model.config.model_type.startswith("roformer_lite")


def separates_documents(model: PreTrainedModel) -> bool:
    """Whether a padding-free causal model keeps the documents of packed rows apart."""
    return is_own(model) or switch_of(model).separates_documents


def outermost_models(module: nn.Module) -> list[PreTrainedModel]:
    """The transformers models in `module` that are not part of another one."""
    if isinstance(module, PreTrainedModel):
        return [module]
    if not isinstance(module, nn.Module):
        return []
    models = [part for child in module.children() for part in outermost_models(child)]
    return list(dict.fromkeys(models))


# On and off


@dataclass
class Switch:
    """The settings of a padding-free model. They contain no module, so that a copy of a model has
    its own.

    Args:
        head: The key in `HEADS` of the model's class; empty for all other classes.
        skip_logits: As for `padding_free`.
        previous: The configurations of the model and its parts, each with its previous attention
            implementation; empty for the base model within another model.
        handles: The hooks.
        is_causal: Whether no token attends to later ones.
        shifts_labels: Whether the head compares each position with the next label.
        summary: How a sequence-level head summarises the states of a row, as the `summary_type` of
            transformers: "last" reads the last position. Empty for all other heads.
        separates_documents: Whether documents of packed rows do not attend to each other.
    """

    head: str = ""
    skip_logits: bool = False
    previous: list[tuple[PreTrainedConfig, str]] = field(default_factory=list)
    handles: list[RemovableHandle] = field(default_factory=list)
    is_causal: bool = False
    shifts_labels: bool = False
    summary: str = ""
    separates_documents: bool = False


def switch_of(model: nn.Module) -> Switch:
    return vars(model)["_padding_free"]


def tried(module: nn.Module, skip_logits: bool) -> list[Switch]:
    """Make a copy of the models in `module` padding-free, and compare its outputs for random rows
    before and after.

    Returns:
        The switch of each model, for `switch_on`.

    Raises:
        ValueError: if a flat row would change outputs, with the reason.
    """
    with torch.no_grad(), changed_state(is_trial=True):
        with named_error(module):  # Shards, such as FSDP2's, cannot be copied.
            copied = trial.copy_for_trial(module)
        trial.shorten(copied)
        try:
            trials = stock_trials(copied)
        except ValueError:  # Some models need all of their layers.
            copied = trial.copy_for_trial(module)
            trials = stock_trials(copied)
        batch = trials[0].batches[0]
        expected = trial.outputs_of_module(copied, batch)
        switches = []
        for each in trials:
            with named_error(each.model):
                switches.append(try_model(each, skip_logits))
        with named_error(module):
            found = trial.outputs_of_module(copied, batch)
            trial.check_outputs(
                found, expected, batch["attention_mask"] != 0, trials[0].model.dtype
            )
    return switches


@contextmanager
def named_error(module: nn.Module) -> Iterator[None]:
    """Raise any error as a `ValueError` that names the module."""
    try:
        yield
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{type(module).__name__} can't be padding-free: {reason}") from error


def stock_trials(module: nn.Module) -> list[trial.Trial]:
    """The trials of the models in `module` that are not models of this package."""
    trials = []
    for model in outermost_models(module):
        if is_own(model):
            continue
        with named_error(model):
            check_model(model)
            trials.append(trial.Trial(model, head=head_of(model)))
    return trials


def check_modules(module: nn.Module) -> None:
    """Refuse what a trial would not detect: models that are to return attentions in each call, and
    modules of sentence-transformers that compare the states of padding, which they do for queries
    only."""
    for part in module.modules():
        if getattr(getattr(part, "config", None), "output_attentions", False):
            raise ValueError(
                f"{type(module).__name__} can't be padding-free: its configuration has "
                "output_attentions=True, which requires eager attention. Set it to False, and pass "
                "output_attentions=True in a call that needs attentions."
            )
        expansion = getattr(part, "query_expansion", None)
        if isinstance(expansion, dict) and not expansion.get("attend"):
            raise ValueError(
                f"{type(module).__name__} can't be padding-free: it extends queries with padding "
                "and compares the states of this padding. Set attend=True in query_expansion, or "
                "query_expansion=None."
            )


def check_model(model: PreTrainedModel) -> None:
    """Refuse models whose fault a trial would not detect or would report less clearly."""
    if hasattr(model.config.get_text_config(), "expert_capacity"):
        raise ValueError("its experts take so many tokens of a batch, those of padding among them.")
    chosen = [config for config, _ in chosen_implementations(model)]
    if not any(config is stack for config in chosen for stack in configs_of_stack(model)):
        raise ValueError(
            "its attention does not go through transformers' attention interface, and its modules "
            "are not among those that are known here."
        )


def try_model(before: trial.Trial, skip_logits: bool) -> Switch:
    """Make the copy of a trial padding-free, and compare its outputs."""
    model = before.model
    switch = Switch(
        head=before.head,
        skip_logits=skip_logits,
        is_causal=before.sees_no_later_token(),
        shifts_labels=before.head in LANGUAGE_HEADS and before.shifts_labels(),
        summary=summary_of(model),
    )
    switch_on(model, switch)
    before.compare(needs_flat_rows=switch.head != "question")
    switch.separates_documents = switch.is_causal and before.separates_documents()
    return replace(switch, previous=[], handles=[])


def switch_on(model: PreTrainedModel, switch: Switch) -> None:
    """Set the attention implementation of a model, add hooks to its layers, and wrap its
    `forward`."""
    chosen = list(chosen_implementations(model))
    switch.previous = [
        (config, config._attn_implementation)
        for config, _ in with_parts(chosen)
        if config._attn_implementation not in (NAME, OWN_NAME)
    ]
    for config, implementation in chosen:
        config._attn_implementation = implementation
    switch.handles = hook_own_masks(model) + hook_layers(model)
    wrap_attention_modules(model)
    base: Any = model.base_model
    vars(base)["_padding_free"] = Switch(
        is_causal=switch.is_causal, separates_documents=switch.separates_documents
    )
    vars(model)["_padding_free"] = switch  # Some models are their own base model.
    stack = stack_of(model)
    if stack is not None:
        switch.handles.append(stack.register_forward_hook(select_labelled))
    for part in {model, base}:
        wrap(part, run)


def switch_off(model: PreTrainedModel) -> None:
    """Undo `switch_on`."""
    unwrap_all(model)
    for part in {model, model.base_model}:
        switch = vars(part).pop("_padding_free", None)
        if switch is None:
            continue
        for handle in switch.handles:
            handle.remove()
        for config, implementation in switch.previous:
            config._attn_implementation = implementation


def configs_of_stack(model: PreTrainedModel) -> Iterator[PreTrainedConfig]:
    """The configurations of a model and of its text model, which may be the same."""
    yield model.config
    text_config = model.config.get_text_config()
    if text_config is not model.config:
        yield text_config


def chosen_implementations(
    module: nn.Module, name: str | None = None
) -> Iterator[tuple[PreTrainedConfig, str]]:
    """The configurations of a model and its parts, each with its attention implementation.

    A part may have another configuration object than its model: an `EncoderDecoderModel` gives its
    two models new configurations, while their layers keep the old ones.

    Args:
        name: The implementation of the model around `module`, or None if it can't be padding-free.
    """
    if isinstance(module, PreTrainedModel):
        name = None
        if type(module)._can_set_attn_implementation():
            name = NAME
        elif has_own_attention(module):
            name = OWN_NAME
    config = getattr(module, "config", None)
    if isinstance(config, PreTrainedConfig) and name is not None:
        yield config, name
    for child in module.children():
        yield from chosen_implementations(child, name)


def with_parts(
    chosen: list[tuple[PreTrainedConfig, str]],
) -> Iterator[tuple[PreTrainedConfig, str]]:
    """The configurations and all configurations within them, which change together."""
    for config, name in chosen:
        yield config, name
        parts = [getattr(config, part, None) for part in config.sub_configs]
        yield from with_parts([(part, name) for part in parts if part is not None])


def is_switched(model: PreTrainedModel) -> bool:
    # FSDP2 makes a subclass of the model's class, which remains when the model is switched off.
    if "_padding_free" not in vars(model):
        return False
    configs = configs_of_stack(model)
    return any(config._attn_implementation in (NAME, OWN_NAME) for config in configs)


def head_of(model: nn.Module) -> str:
    """The kind of head of a transformers class; empty for any other class, even of the same
    name."""
    name = type(model).__name__
    if not type(model).__module__.startswith("transformers."):
        return ""
    return next((head for head, table in HEADS.items() if name in table.values()), "")


def summary_of(model: PreTrainedModel) -> str:
    """The type of transformers' "sequence summary"; empty for models without one."""
    has_summary = any("SequenceSummary" in type(module).__name__ for module in model.modules())
    return getattr(model.config, "summary_type", "last") if has_summary else ""


def stack_of(model: PreTrainedModel) -> nn.Module | None:
    """The module whose last hidden states the head of a language model reads."""
    head = switch_of(model).head
    if head not in LANGUAGE_HEADS:
        return None
    stack: nn.Module = model.base_model
    if head != "masked":
        decoder = model.get_decoder()
        if isinstance(decoder, PreTrainedModel):
            stack = decoder
    # Some models are their own base model, and some decoders have a head of their own.
    return stack if stack is not model and head_of(stack) == "" else None


# Around `forward`


def run(
    model: PreTrainedModel,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the `forward` of a padding-free model."""
    is_within = model is state.running_base
    if torch.compiler.is_compiling() or is_within or not is_switched(model):
        return forward(model, *args, **kwargs)
    names = parameters_of(model)
    if len(args) > len(names):
        return forward(model, *args, **kwargs)
    given = dict(zip(names, args, strict=False)) | kwargs
    for name, value in given.items():
        # For a cache of a fixed size, `generate` makes the mask and gives it to the model.
        if isinstance(value, DocumentMask):
            given[name] = value.dense
    computes_padding = needs_padding(model, given)
    with changed_state(running_base=model.base_model, computes_padding=computes_padding):
        separate_packed_rows(model, given)
        if computes_padding:
            return forward(model, **given)
        places = keep_labelled(model, given)
        if places is None:
            return forward(model, **given)
        with changed_state(stack=stack_of(model), labelled=places):
            output = forward(model, **given)
    return without_logits(output)


def matrix(given: dict[str, Any], name: str) -> torch.Tensor | None:
    """The argument `name` if it is a tensor of two dimensions, else None."""
    value = given.get(name)
    return value if isinstance(value, torch.Tensor) and value.ndim == 2 else None


def needs_padding(model: PreTrainedModel, given: dict[str, Any]) -> bool:
    """Whether the output depends on the states of padding."""
    if wants_all_layers(given, *configs_of_stack(model)):
        return True
    reason = reason_for_padding(model, given)
    if reason:
        warn(f"{type(model).__name__} computes padding, because {reason}")
    return reason != ""


def reason_for_padding(model: PreTrainedModel, given: dict[str, Any]) -> str:
    """Why the loss or the head of a model depends on the states of padding; empty if it does
    not."""
    head = switch_of(model).head
    mask = given.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.ndim not in (2, 3):
        mask = None
    if head == "question" and mask is not None:
        return "the probability of an answer depends on the scores of padding."
    if has_labels_at_padding(model, given):
        return (
            "labels of padding, or of the token after left padding, count in its loss. Set them to "
            "-100, or pad on the right."
        )
    if model.config.is_encoder_decoder:
        has_head_for_rows = head == "" and model.base_model is not model
        if has_head_for_rows and has_decoder_inputs(given):
            return "its head may read a position of the decoder that is padding."
        if head == "seq2seq" and has_unlabelled_tokens(given):
            return "target tokens without a label become padding between others."
    elif head == "" and mask is not None:
        is_real = mask.flatten(0, -2) != 0  # (B, L), of all choices
        if reads_padding(model, given, is_real=is_real):
            return "its pooler or head may read a position that is padding. Pad on the other side."
    return ""


def warn(message: str) -> None:
    if not state.is_trial:
        logger.warning_once(f"padding_free: {message}")


def reads_padding(model: PreTrainedModel, given: dict[str, Any], is_real: torch.Tensor) -> bool:
    """Whether a pooler or head may read a state of padding: the first position of a row, or in
    causal models the last one whose id is not the padding token."""
    switch = switch_of(model)
    if switch.summary:
        places_read = {"first": [0], "last": [-1]}.get(switch.summary, [0, -1])
        return not bool(is_real[:, places_read].all())
    if not switch.is_causal:
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
    switch = switch_of(model)
    labels = matrix(given, "labels")
    if labels is None:
        return False
    names = ["decoder_attention_mask"]
    has_target = model.config.is_encoder_decoder and switch.head == "seq2seq"
    if not has_target:  # Other classes, such as taggers, have labels for the source.
        names.append("attention_mask")
    for name in names:
        mask = matrix(given, name)
        if mask is None or mask.shape != labels.shape:
            continue
        is_padding = mask.to(labels.device) == 0
        if switch.shifts_labels:
            is_padding = is_padding | F.pad(is_padding[:, :-1], pad=(1, 0))
        if bool(((labels != IGNORE_INDEX) & is_padding).any()):
            return True
    return False


def has_decoder_inputs(given: dict[str, Any]) -> bool:
    """Whether the target of an encoder–decoder is given, so that it is not made from labels."""
    names = ("decoder_input_ids", "decoder_inputs_embeds", "decoder_attention_mask")
    return any(given.get(name) is not None for name in names)


def has_unlabelled_tokens(given: dict[str, Any]) -> bool:
    """Whether a target that is made from labels has tokens without a label between others.

    They become padding tokens, which some decoders mask and others do not.
    """
    labels = matrix(given, "labels")
    if labels is None or has_decoder_inputs(given):
        return False
    is_labelled = labels != IGNORE_INDEX
    return bool((~is_labelled[:, :-1] & is_labelled[:, 1:]).any())


def separate_packed_rows(model: PreTrainedModel, given: dict[str, Any]) -> None:
    """Change the arguments so that transformers recognises packed rows.

    Its causal masks separate documents where positions restart, but only if there is no cache and
    no mask, not even a mask of ones.
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
        if not separates_documents(model):
            warn(
                f"in {type(model).__name__} documents of packed rows attend to each other, because "
                "transformers' own class does not separate them by position_ids."
            )
        given["attention_mask"] = None
        if "use_cache" in parameters_of(model):
            given["use_cache"] = False


def keep_labelled(model: PreTrainedModel, given: dict[str, Any]) -> torch.Tensor | None:
    """In training, keep only the labels that are not ignored, and return the places `(n,)` among
    the B * L of the states that the head needs for them; None if it needs all states."""
    labels = matrix(given, "labels")
    if labels is None:
        return None
    if "use_cache" in parameters_of(model) and given.get("use_cache") is None:
        given["use_cache"] = False  # A text that has labels is not continued.
    if not skips_logits(model, given):
        return None
    if model.config.is_encoder_decoder and not has_decoder_inputs(given):
        prepare: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if prepare is None:
            return None
        # The decoder reads the shifted labels up to the last one. It is causal, so no label depends
        # on later tokens. (Labels have no gaps here; see `has_unlabelled_tokens`.)
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
        # The head compares each state with the next label and drops the last state, so an ignored
        # label is prepended and an unused state appended.
        labels = F.pad(labels, pad=(1, 0), value=IGNORE_INDEX)
        places = F.pad(places, pad=(0, 1))
    given["labels"] = labels
    return places


def skips_logits(model: PreTrainedModel, given: dict[str, Any]) -> bool:
    """Whether the head of a language model computes only labelled positions."""
    if not model.training or not switch_of(model).skip_logits or stack_of(model) is None:
        return False
    # A user's own loss may depend on rows; transformers' losses depend on single positions.
    is_loss_of_positions = model.loss_function in LOSS_MAPPING.values()
    returns_tuple = given.get("return_dict", model.config.return_dict) is False
    kept = given.get("logits_to_keep")
    keeps_all = not isinstance(kept, torch.Tensor) and not kept
    has_shifted_labels = given.get("shift_labels") is not None
    return is_loss_of_positions and keeps_all and not returns_tuple and not has_shifted_labels


def select_labelled(stack: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Reduce the output of `stack`, which the head reads, to the states of labelled positions, `(1,
    n, hidden)`."""
    places = state.labelled
    if places is None or state.stack is not stack:
        return None
    states = output[0].flatten(0, 1)
    states = states.index_select(0, places.to(states.device)).unsqueeze(0)
    if isinstance(output, tuple):
        return states, *output[1:]
    output["last_hidden_state"] = states
    return output
