"""`padding_free(model)` makes the layers of a model compute only the real tokens of a batch.

The model's own code before the layers (embeddings, positions, masks) and after them (norm, pooling,
heads) does not change. The layers get hooks (`layers.py`). The `forward` of the model is wrapped,
to handle the cases in which a flat row would change the result: labels at padding, heads that read
padding, and packed rows. In training, the head of a language model computes only labelled
positions.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from . import attention  # noqa: F401  (registers the attention function)
from .attention_modules import (
    ATTENTION_MODULES,
    STOCK_CONFIG,
    unwrap_all,
    wrap,
    wrap_attention_modules,
)
from .heads import LANGUAGE_HEADS, SkippedLogits, Switch, head_of, select_states, stack_of
from .inputs import make_plan
from .layers import hook_layers, name_in_transformers, parameters_of, with_ordinary_mask
from .masks import EAGER_NAME, NAME
from .plan import Plan, current, planned, request_of_layers
from .trial import (
    PaddingFreeError,
    Trial,
    check_layers,
    copy_for_trial,
    explained,
    ignores_first_label,
    random_batches,
    run_module,
    trials_of,
)

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def padding_free(model: ModuleT, enabled: bool = True, skip_logits: bool = True) -> ModuleT:
    """Make the layers of `model` skip padding. The outputs of the model at real tokens stay the
    same.

    The model is changed in place: its attention implementation is set, its layers get hooks, and
    its `forward` is wrapped. None of this is saved. First, a copy that shares the weights and has
    no hooks runs on random texts, with and without padding, and the results must agree. Call
    this function before the model is sharded.

    Padding is still computed if a cache already holds tokens, if outputs of all layers are
    requested, and in question answering. Outputs at padding have no meaning, so a loss outside the
    model, such as the label smoothing of the Trainer, needs labels that are -100 at padding.

    Args:
        model: A `PreTrainedModel` with any head, or a module that contains one or more, such as a
            `PeftModel` or a `SentenceTransformer`.
        enabled: False restores the stock model, and makes a RoFormerLite model an ordinary padded
            model with "sdpa".
        skip_logits: Whether, in training with labels, the head of a language model computes only
            the labelled positions. Using `logits` of the output then raises an error. For
            RoFormerLite models, set the field `skip_logits` of the configuration instead.

    Returns:
        `model` itself.

    Raises:
        TypeError: if there is no transformers model in `model`.
        PaddingFreeError: a `ValueError`, if a model can't be padding-free, with the reason. All
            models in `model` are then restored.
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
    """Whether a model is a RoFormerLite model, whose layers have the hooks from the start."""
    return model.config.model_type.startswith("roformer_lite")


def outermost_models(module: nn.Module) -> list[PreTrainedModel]:
    """The transformers models in `module` that are not part of another one."""
    if isinstance(module, PreTrainedModel):
        return [module]
    if not isinstance(module, nn.Module):
        return []
    models = [part for child in module.children() for part in outermost_models(child)]
    return list(dict.fromkeys(models))


# On and off


@torch.no_grad()
def tried(module: nn.Module, skip_logits: bool) -> list[Switch]:
    """Make a copy of the models in `module` padding-free, and compare its outputs for random rows
    before and after.

    Returns:
        The switch of each model, for `switch_on`.

    Raises:
        PaddingFreeError: if a flat row would change outputs, with the reason.
    """
    copied = copy_for_trial(module)
    models = [model for model in outermost_models(copied) if not is_own(model)]
    trials: list[Trial] = []
    switches = []
    for model in models:
        check_interface(model)
        head = head_of(model)
        with explained(model, "it cannot run on input_ids and attention_mask alone"):
            batches = random_batches(model)
            trials += trials_of(model, head, batches)
            switches.append(
                Switch(
                    head=head,
                    skip_logits=skip_logits,
                    shifts_labels=head in LANGUAGE_HEADS and ignores_first_label(model, batches[0]),
                    has_summary=any(
                        "SequenceSummary" in type(part).__name__ for part in model.modules()
                    ),
                )
            )
    if not isinstance(copied, PreTrainedModel):
        with suppress(Exception):  # The module may take other arguments, and raise any exception.
            trials.append(Trial(copied, run_module, trials[0].batches[:1]))
    for model, switch in zip(models, switches, strict=True):
        switch_on(model, replace(switch))
    with explained(module, "its layers use the mask, the cache or the rows of the batch directly"):
        for model in models:
            check_layers(model)
        for trial in trials:
            trial.compare()
    return switches


def check_modules(module: nn.Module) -> None:
    """Reject what a trial would not detect: models that are to return attentions in each call,
    experts whose tokens depend on the size of the batch, and modules of sentence-transformers that
    compare the states of padding, which they do for queries only."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if hasattr(config, "expert_capacity"):
            raise PaddingFreeError(
                module, "its experts take a fixed number of tokens from a batch, padding included."
            )
        if getattr(config, "output_attentions", False):
            raise PaddingFreeError(
                module,
                "its configuration has output_attentions=True, which requires eager attention. Set "
                "it to False, and pass output_attentions=True in a call that needs attentions.",
            )
        expansion = getattr(part, "query_expansion", None)
        if isinstance(expansion, dict) and not expansion.get("attend"):
            raise PaddingFreeError(
                module,
                "it extends queries with padding and compares the states of this padding. Set "
                "attend=True in query_expansion, or query_expansion=None.",
            )


def check_interface(model: PreTrainedModel) -> None:
    """Reject models with attention of their own, because a trial would report less clearly what is
    wrong with them. Reject T5Gemma, too: it makes masks from padding tokens, but its
    cross-attention reads these tokens if no mask is passed."""
    if model.config.model_type == "t5gemma":
        raise PaddingFreeError(model, "it looks for padding tokens itself, and reads some of them.")
    stacks = configs_of_stack(model)
    if not any(config is stack for config, _ in chosen_implementations(model) for stack in stacks):
        raise PaddingFreeError(
            model,
            "its attention does not go through transformers' attention interface, and "
            "padding_free has no implementation for its modules.",
        )


def switch_on(model: PreTrainedModel, switch: Switch) -> None:
    """Set the attention implementation of a model, add hooks to its layers, and wrap its
    `forward`."""
    wrap_attention_modules(model)
    chosen = list(chosen_implementations(model))
    switch.previous = [
        (config, config._attn_implementation)
        for config, _ in chosen
        if config._attn_implementation not in (NAME, EAGER_NAME)
    ]
    for config, implementation in chosen:
        config._attn_implementation = implementation
    switch.handles = hook_layers(model)
    base: Any = model.base_model
    vars(base)["_padding_free"] = replace(switch, head=head_of(base))
    vars(model)["_padding_free"] = switch  # Some models are their own base model.
    stack = stack_of(model)
    if stack is not None:
        switch.stack = next(name for name, part in model.named_modules() if part is stack)
        switch.handles.append(stack.register_forward_hook(select_states))
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


def configs_of_stack(model: PreTrainedModel) -> tuple[PreTrainedConfig, PreTrainedConfig]:
    """The configurations of a model and of its text model, which may be the same."""
    return model.config, model.config.get_text_config()


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
        elif any(name_in_transformers(part) in ATTENTION_MODULES for part in module.modules()):
            is_eager = module.config._attn_implementation == "eager"
            name = EAGER_NAME if is_eager else NAME
    if STOCK_CONFIG in vars(module):  # An attention module that keeps its implementation.
        return
    config = getattr(module, "config", None)
    if isinstance(config, PreTrainedConfig) and name is not None:
        yield config, name
    for child in module.children():
        yield from chosen_implementations(child, name)


def is_switched(model: PreTrainedModel) -> bool:
    # FSDP2 makes a subclass of the model's class, which remains when the model is switched off.
    if "_padding_free" not in vars(model):
        return False
    configs = configs_of_stack(model)
    return any(config._attn_implementation in (NAME, EAGER_NAME) for config in configs)


# Around `forward`


def run(
    model: PreTrainedModel,
    forward: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run the `forward` of a padding-free model.

    The base model within another one needs a plan of its own only if it gets other arguments than
    the whole model, as in a model that computes two texts one after the other.
    """
    names = parameters_of(model)
    if not is_switched(model) or len(args) > len(names):
        reason = "the model is switched off, or arguments without names cannot be understood"
        with planned(Plan(why_padded=reason, base=model.base_model)):
            return forward(model, *args, **kwargs)
    values = dict(zip(names, args, strict=False)) | kwargs
    # For a cache of a fixed size, `generate` makes the mask and gives it to the model.
    given = {name: with_ordinary_mask(value) for name, value in values.items() if value is not None}
    outer: Any = current.plan
    is_within_a_call = outer is not None and outer.base is model
    if is_within_a_call and covers(outer, given):
        return forward(model, **given)
    plan = make_plan(model, vars(model)["_padding_free"], given)
    tokens = plan.head_tokens
    if is_within_a_call:
        plan.include(outer)
    with planned(plan, mask=given.get("attention_mask")):
        output = forward(model, **given)
    if plan.skips_logits:
        output["logits"] = SkippedLogits()
    elif tokens is not None:
        for name in {"logits", "last_hidden_state"} & output.keys():
            output[name] = tokens.restore(output[name], padding="last")
    return output


def covers(plan: Plan, given: dict[str, Any]) -> bool:
    """Whether the current plan, which was made for the whole model, holds for a call of its base
    model with the arguments `given`."""
    has_same_mask = given.get("attention_mask") is current.mask
    wants_more = "labels" in given or request_of_layers(given)
    return plan.why_padded != "" or (has_same_mask and not wants_more)
