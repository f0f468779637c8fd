"""`padding_free(model)`: the layers of a model compute the real tokens of a batch only.

Everything before the layers (embeddings, positions, masks) and after them (norm, pooling, heads)
stays the model's own. The hooks of its layers (`layers.py`) do the rest. Around `forward` of the
model itself stands what a flat row must not change: the loss of labels at padding, heads that read
padding, packed rows. In training the head of a language model computes the labelled positions only.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
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

from .attention import NAME, FlatMask, computes_padding, set_to_true
from .layers import CACHES, hook_layers, layers_of, parameters_of, wants_all_layers

logger = logging.get_logger(__name__)

IGNORE_INDEX = -100  # The label that losses ignore.
MAX_DIFFERENCE = 5e-5  # Of two ways to the same numbers in float32.
MAX_HALF_PRECISION_DIFFERENCE = 5e-2
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
    others = [part for part in models if not is_our_own(part)]
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
        if is_our_own(part):
            part.set_attn_implementation(NAME if enabled else "sdpa")
    return model


def outermost_models(module: nn.Module) -> list[PreTrainedModel]:
    """The models of transformers in `module` that are in no other one."""
    if isinstance(module, PreTrainedModel):
        return [module]
    models = [part for child in module.children() for part in outermost_models(child)]
    return list(dict.fromkeys(models))


def is_our_own(model: PreTrainedModel) -> bool:
    """Whether the layers of a model have had their hooks since it was made."""
    return model.config.model_type.startswith("roformer_lite")


@dataclass
class Switch:
    """What `padding_free` knows of a model. It holds no module, so that a copy of a model has a
    switch of its own.

    Args:
        head: The key in `HEADS` of the model's class, or an empty string.
        previous: The attention implementations of the model and its parts before; empty for the
            base model within another one.
        skip_logits: As for `padding_free`.
        handles: The hooks.
        is_causal: Whether no token sees those after it.
        shifts_labels: Whether the head compares each place with the label after it.
    """

    head: str
    previous: dict[str, str]
    skip_logits: bool
    handles: list[RemovableHandle]
    is_causal: bool = False
    shifts_labels: bool = False


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
    stack = stack_below(model, switch.head)
    if stack is not None:
        switch.handles.append(stack.register_forward_hook(select_labelled))
    model._padding_free = switch
    base = model.base_model
    if base is not model:
        base._padding_free = Switch(head="", previous={}, skip_logits=False, handles=[])
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            try_out(model, switch)
    finally:
        for module, mode in modes:
            module.training = mode


def switch_off(model: PreTrainedModel) -> None:
    """Undo `switch_on`, also where it ended early."""
    for part in {model, model.base_model}:
        switch = vars(part).pop("_padding_free", None)
        if switch is None:
            continue
        for handle in switch.handles:
            handle.remove()
        if switch.previous:
            part.set_attn_implementation(switch.previous)
        stock_class = vars(type(part)).get("_stock_class")
        if stock_class is not None:  # Others, such as FSDP2, may have made a class of it since.
            part.__class__ = stock_class


def head_of(model: PreTrainedModel) -> str:
    name = type(model).__name__
    for head, table in HEADS.items():
        if name in table.values():
            return head
    return ""


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
    stack = model.base_model
    if head != "masked":
        decoder = model.get_decoder()
        if isinstance(decoder, PreTrainedModel):
            stack = decoder
    # Some models are their own base model, and some decoders have a head of their own.
    return stack if stack is not model and head_of(stack) == "" else None


def is_switched(model: PreTrainedModel) -> bool:
    config = model.config
    return NAME in (config._attn_implementation, config.get_text_config()._attn_implementation)


@lru_cache
def padding_free_class(model_class: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class of a model with `run` around its `forward`, under the same name.

    A hook would not do: PEFT and sentence-transformers call `forward` itself. Nor would a `forward`
    of the instance, which `DataParallel` would share among all replicas.
    """

    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        return run(self, model_class.forward, args, kwargs)

    def reduce(self: PreTrainedModel, protocol: int) -> tuple[Any, ...]:
        return new_padding_free, (model_class,), vars(self)

    forward.__signature__ = inspect.signature(model_class.forward)  # type: ignore[attr-defined]
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


def new_padding_free(model_class: type[PreTrainedModel]) -> PreTrainedModel:
    switched_class = padding_free_class(model_class)
    return switched_class.__new__(switched_class)


# Whether `run` is at work on a model, so that the base model within it has nothing to decide.
_is_running: ContextVar[bool] = ContextVar("is_running", default=False)


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
    switch: Switch = model._padding_free
    token = _is_running.set(True)
    try:
        if needs_padding(model, switch, given):
            with set_to_true(computes_padding):
                return forward(model, **given)
        separate_packed_rows(given, names)
        places = keep_labelled(model, switch, given)
        if places is None:
            return forward(model, **given)
        return run_labelled(model, forward, given, places)
    finally:
        _is_running.reset(token)


def run_labelled(
    model: PreTrainedModel,
    forward: Callable[..., Any],
    given: dict[str, Any],
    places: torch.Tensor,
) -> Any:
    """`forward` of a language model whose head computes the states at `places` only."""
    stack = stack_below(model, model._padding_free.head)
    # The hook of the stack reads them here. It could not read a context variable where the stack
    # is compiled.
    stack._labelled_places = places
    try:
        output = forward(model, **given)
    finally:
        del stack._labelled_places
    fields = {name: value for name, value in output.items() if name != "logits"}
    return type(output)(**fields)


def needs_padding(model: PreTrainedModel, switch: Switch, given: dict[str, Any]) -> bool:
    """Whether the output depends on the states of padding."""
    if wants_all_layers(given, model.config, model.config.get_text_config()):
        return True
    name = type(model).__name__
    mask = given.get("attention_mask")
    if not isinstance(mask, torch.Tensor) or mask.ndim not in (2, 3):
        mask = None
    if switch.head == "question" and mask is not None:
        logger.warning_once(
            f"padding_free: {name} computes padding, as the probability of an answer counts the "
            "scores of padding."
        )
        return True
    if has_labels_at_padding(model, switch, given):
        logger.warning_once(
            f"padding_free: {name} computes padding, as labels of padding, or of the token after "
            "padding on the left, count in its loss. Set them to -100, or pad on the right."
        )
        return True
    if model.config.is_encoder_decoder:
        return switch.head == "seq2seq" and has_unlabelled_tokens(given)
    if mask is None or switch.head != "":
        return False
    return reads_padding(model, switch, given, mask.flatten(0, -2))  # of all choices


def reads_padding(
    model: PreTrainedModel, switch: Switch, given: dict[str, Any], mask: torch.Tensor
) -> bool:
    """Whether a pooler or head may read a state of padding: the first place of a row, or in causal
    models the last one that is no padding token."""
    is_real = mask != 0  # (B, L)
    if not switch.is_causal:
        return not bool(is_real[:, 0].all())
    if not bool(is_real.any(dim=1).all()):
        return True
    ids = given.get("input_ids")
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    if model.base_model is model or bool(is_real[:, -1].all()):
        return False
    if ids is None or padding is None or ids.shape != mask.shape:
        return True
    places = torch.arange(ids.shape[1], device=ids.device)
    last = (places * (ids != padding)).argmax(dim=1, keepdim=True)
    return not bool(is_real.to(ids.device).gather(1, last).all())


def has_unlabelled_tokens(given: dict[str, Any]) -> bool:
    """Whether a target, which is to be made of labels, has tokens without a label between others.

    They become padding tokens, which some decoders mask by themselves, and others don't.
    """
    labels = given.get("labels")
    if not isinstance(labels, torch.Tensor) or labels.ndim != 2:
        return False
    if has_decoder_inputs(given):
        return False
    is_labelled = labels != IGNORE_INDEX
    return bool((~is_labelled[:, :-1] & is_labelled[:, 1:]).any())


def has_decoder_inputs(given: dict[str, Any]) -> bool:
    """Whether the target of an encoder–decoder is given, and not to be made of labels."""
    names = ("decoder_input_ids", "decoder_inputs_embeds", "decoder_attention_mask")
    return any(given.get(name) is not None for name in names)


def has_labels_at_padding(model: PreTrainedModel, switch: Switch, given: dict[str, Any]) -> bool:
    labels = given.get("labels")
    is_of_decoder = model.config.is_encoder_decoder
    mask = given.get("decoder_attention_mask" if is_of_decoder else "attention_mask")
    if not isinstance(labels, torch.Tensor) or not isinstance(mask, torch.Tensor):
        return False
    if mask.ndim != 2 or mask.shape != labels.shape:
        return False
    is_padding = mask.to(labels.device) == 0
    if switch.shifts_labels:
        is_padding = is_padding | F.pad(is_padding[:, :-1], pad=(1, 0))
    return bool(((labels != IGNORE_INDEX) & is_padding).any())


def separate_packed_rows(given: dict[str, Any], names: tuple[str, ...]) -> None:
    """Let transformers see that rows are packed.

    Where positions restart, its causal masks keep documents apart, but only without a cache and
    without a mask, even one that says that all tokens are real.
    """
    positions = given.get("position_ids")
    if not isinstance(positions, torch.Tensor) or positions.ndim != 2:
        return
    mask = given.get("attention_mask")
    has_cache = any(given.get(name) is not None for name in CACHES)
    if has_cache or given.get("use_cache") or (mask is not None and not is_all_ones(mask)):
        return
    goes_on = positions.diff(dim=1) == 1
    restarts = ~goes_on & (positions[:, 1:] == 0)
    if bool(restarts.any()) and bool((goes_on | restarts).all()):
        given["attention_mask"] = None
        if "use_cache" in names:
            given["use_cache"] = False


def is_all_ones(mask: Any) -> bool:
    return isinstance(mask, torch.Tensor) and mask.ndim == 2 and bool((mask == 1).all())


def keep_labelled(
    model: PreTrainedModel, switch: Switch, given: dict[str, Any]
) -> torch.Tensor | None:
    """In training, keep the labels that count, and return the places `(n,)` of the states that
    the head needs for them, among the B * L; None where it needs all."""
    labels = given.get("labels")
    if not isinstance(labels, torch.Tensor) or labels.ndim != 2:
        return None
    names = parameters_of(model)
    if "use_cache" in names and given.get("use_cache") is None:
        given["use_cache"] = False  # Nobody goes on from a text that has labels.
    if not skips_logits(model, switch, given) or not has_target(model, given, labels):
        return None
    if switch.shifts_labels:
        labels = F.pad(labels[:, 1:], pad=(0, 1), value=IGNORE_INDEX)
    places = (labels.flatten() != IGNORE_INDEX).nonzero().squeeze(1)
    if len(places) == 0:
        return None
    labels = labels.flatten()[places].unsqueeze(0)
    if switch.shifts_labels:
        # The head compares each state with the label after it: the last state, compared with
        # nothing, takes the place that the head cuts off.
        labels = F.pad(labels, pad=(1, 0), value=IGNORE_INDEX)
        places = F.pad(places, pad=(0, 1))
    given["labels"] = labels
    return places


def skips_logits(model: PreTrainedModel, switch: Switch, given: dict[str, Any]) -> bool:
    """Whether the head computes labelled positions only."""
    has_stack = stack_below(model, switch.head) is not None
    # A loss of the user's own may look at rows; transformers' own losses see positions only.
    is_loss_of_positions = model.loss_function in LOSS_MAPPING.values()
    returns_dict = given.get("return_dict", model.config.return_dict)
    return bool(
        switch.skip_logits
        and model.training
        and has_stack
        and is_loss_of_positions
        and returns_dict is not False
        and given.get("shift_labels") is None
        and not isinstance(given.get("logits_to_keep"), torch.Tensor)
        and not given.get("logits_to_keep")
    )


def has_target(model: PreTrainedModel, given: dict[str, Any], labels: torch.Tensor) -> bool:
    """Whether the target of an encoder–decoder is known without its labels, which is made so here
    if it can be.

    The decoder then reads the shifted labels, up to the last one: it is causal, so that no label
    depends on what comes after it. (Labels have no gaps here, see `has_unlabelled_tokens`.)
    """
    if not model.config.is_encoder_decoder or has_decoder_inputs(given):
        return True
    if not hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return False
    given["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=labels)
    given["decoder_attention_mask"] = (labels != IGNORE_INDEX).long()
    return True


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


# The trial


def try_out(model: PreTrainedModel, switch: Switch) -> None:
    """Switch the attention of a model, and compare what it gives for random rows before and after.

    Raises:
        ValueError: with the reason why a flat row would change its outputs.
    """
    batches = random_batches(model)
    expected = [outputs_of(model, switch, batch) for batch in batches]
    is_causal = sees_no_later_token(model, batches[0])
    switch.shifts_labels = switch.head in LANGUAGE_HEADS and shifts_labels(model, batches[0])
    model.set_attn_implementation(NAME)
    if not is_switched(model):
        raise ValueError("its attention does not go through transformers' attention interface.")
    for part in {model, model.base_model}:
        part._padding_free.is_causal = is_causal
        part.__class__ = padding_free_class(type(part))
    if switch.head != "question" and not computes_flat_rows(model, batches[0]):
        raise ValueError("no layer of it takes a mask that transformers' mask functions make.")
    is_exact = model.dtype in (torch.float32, torch.float64)
    limit = MAX_DIFFERENCE if is_exact else MAX_HALF_PRECISION_DIFFERENCE
    for batch, outputs in zip(batches, expected, strict=True):
        difference = largest_difference(outputs_of(model, switch, batch), outputs, batch)
        if not difference <= limit:
            raise ValueError(
                f"its outputs differ by {difference:.1e} of their size; tokens of other rows or "
                "padding count."
            )
    if not keeps_rows_apart(model, batches[0]):
        raise ValueError("tokens of different rows meet outside its attention.")


def random_batches(model: PreTrainedModel) -> list[dict[str, torch.Tensor]]:
    """Random rows with labels, padded on the right, on the left, and not at all."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or 512
    lengths = torch.tensor((17, 11, 5) if limit > 24 else (7, 5, 3))
    generator = torch.Generator().manual_seed(0)
    shape = (len(lengths), int(lengths[0]))
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    padding = getattr(config, "pad_token_id", None) or 0
    ids[ids == padding] = (padding + 1) % config.vocab_size
    mask_token = getattr(config, "mask_token_id", None) or 0
    if 0 < mask_token < config.vocab_size:
        ids[0, 3] = mask_token  # Some models count them.
    labels = ids.clone()
    if head_of(model) == "token":
        labels = ids % max(getattr(config, "num_labels", 2), 1)
    labels[torch.rand(shape, generator=generator) < 0.5] = IGNORE_INDEX
    on_the_right = (torch.arange(shape[1]) < lengths[:, None]).long()
    batches = []
    for mask in (on_the_right, on_the_right.flip(1), torch.ones_like(on_the_right)):
        batch = {
            "input_ids": ids.where(mask != 0, padding),
            "attention_mask": mask,
        }
        # A causal head compares a token after padding with the state of padding.
        is_counted = mask * F.pad(mask[:, :-1], pad=(1, 0), value=1)
        batch["labels"] = labels.where(is_counted != 0, IGNORE_INDEX)
        batches.append({name: value.to(model.device) for name, value in batch.items()})
    return batches


def inputs_of(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch["input_ids"]
        inputs["decoder_attention_mask"] = batch["attention_mask"]
    return inputs


def outputs_of(
    model: PreTrainedModel, switch: Switch, batch: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors that a model returns, by name: those of its base, of its head, and the loss."""
    inputs = inputs_of(model, batch)
    outputs = {f"base.{name}": value for name, value in run_base(model, inputs).items()}
    if switch.head not in ("", "question"):
        model.training = True  # of the model only, so that there is no dropout below
        try:
            loss = model(**inputs, labels=batch["labels"], return_dict=True)["loss"]
        finally:
            model.training = False
        outputs["loss"] = loss
    else:
        outputs |= outputs_of_other_head(model, batch)
    return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def outputs_of_other_head(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """What a head returns for texts, if that is all it needs: others want choices, or images."""
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    try:
        outputs = model(**inputs, return_dict=True)
    except Exception:
        return {}
    return {f"head.{name}": value for name, value in outputs.items()}


def run_base(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> Any:
    return model.base_model(**inputs, return_dict=True)


def sees_no_later_token(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> bool:
    """Whether the first state of a row stays the same when the last token is another one."""
    inputs = inputs_of(model, {name: value[:1] for name, value in batch.items()})
    first = run_base(model, inputs)[0][:, 0]
    ids = inputs["input_ids"].clone()
    ids[:, -1] = ids[:, 0]
    again = run_base(model, inputs | {"input_ids": ids})[0][:, 0]
    return torch.equal(first, again)


def shifts_labels(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> bool:
    """Whether the label of the first token counts for nothing, as nothing stands before it."""
    labels = torch.full_like(batch["labels"], IGNORE_INDEX)
    labels[:, 0] = batch["input_ids"][:, 0]
    loss = model(**inputs_of(model, batch), labels=labels, return_dict=True)["loss"]
    return not (bool(loss.isfinite()) and float(loss) > 0)


def computes_flat_rows(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> bool:
    """Whether any layer gets a flat row."""
    seen = []

    def look(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(any(isinstance(value, FlatMask) for value in (*args, *kwargs.values())))

    handles = [
        layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers_of(model)
    ]
    try:
        run_base(model, inputs_of(model, batch))
    finally:
        for handle in handles:
            handle.remove()
    return any(seen)


def keeps_rows_apart(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> bool:
    """Whether a row in the middle of a flat row stays finite where all other tokens are NaN.

    This test needs no tolerance, which in half precision hides a small leak.
    """
    kept = len(batch["input_ids"]) // 2

    def spoil(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        is_other = torch.arange(len(output), device=output.device) != kept
        return output.masked_fill(is_other[:, None, None], float("nan"))

    handle = model.get_input_embeddings().register_forward_hook(spoil)
    try:
        states = run_base(model, inputs_of(model, batch))[0]
    finally:
        handle.remove()
    is_real = batch["attention_mask"][kept] != 0
    return bool(states[kept][is_real].isfinite().all())


def largest_difference(
    found: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    batch: dict[str, torch.Tensor],
) -> float:
    """The largest difference at real tokens, as a part of the size of the largest value."""
    is_real = batch["attention_mask"] != 0
    worst = 0.0
    for name, value in expected.items():
        if name not in found:
            raise ValueError(f"it has no output {name} any more.")
        other = found[name]
        if other.shape != value.shape:
            raise ValueError(
                f"its output {name} has shape {tuple(other.shape)}, not {tuple(value.shape)}."
            )
        if value.shape[:2] == is_real.shape:
            value = value[is_real]
            other = other[is_real]
        size = value.float().abs().max().clamp(min=1)
        difference = float((value.float() - other.float()).abs().max() / size)
        if not difference <= worst:  # NaN is no number to compare with.
            worst = difference
    return worst
