"""Makes the plan of a batch from the arguments of the call.

A plan is exact for any head: a state that is read after the layers is computed, even at padding.
Only where all of them count is the padded batch computed.
"""

import math
from typing import Any

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.utils import logging
from transformers.utils.import_utils import is_tracing

from .heads import IGNORE_INDEX, Switch, choose_row, reads_row
from .layers import CACHES, parameters_of
from .masks import is_nearly_full
from .plan import Plan, ReadPositions, current, on_cpu, request_of_layers

logger = logging.get_logger(__name__)


def make_plan(
    model: PreTrainedModel,
    switch: Switch,
    given: dict[str, Any],
) -> Plan:
    """The plan of a call.

    Args:
        given: The arguments of the call by name, without those that are None. Some are replaced,
            for example so that the head of a language model computes only labelled positions.
    """
    base: Any = model.base_model
    has_cache = any(name in given for name in CACHES)
    if has_cache and has_single_tokens(model, given):
        return Plan(why_padded="a step of generation has no padding", base=base)
    values = read_values(switch, given)
    mask = values.get("attention_mask")
    # A tagger or an encoder has none, even if its configuration is that of an encoder–decoder.
    has_target = model.config.is_encoder_decoder and hasattr(base, "decoder")
    plan = Plan(
        why_padded=reason_for_padding(model, given),
        base=base,
        has_cross_attention=has_target or getattr(model.config, "add_cross_attention", False),
        is_real=None if mask is None else mask != 0,
        read=read_positions(has_target, values, num_last_read(model, switch, given, has_cache)),
        ends=ends_of_rows(model, switch, values),
        reads_target=has_target and switch.head == "" and base is not model,
    )
    if not has_cache:
        adapt_to_labels(model, switch, given, values)
    leave_with_mask(plan, given)
    if reads_row(plan, model, switch, given):
        is_real = values.get("decoder_attention_mask") if has_target else plan.is_real
        tokens = None
        if is_real is not None and not has_cache and not is_nearly_full(is_real != 0):
            tokens = plan.tokens(is_real != 0, is_causal=has_target)
        choose_row(plan, model, switch, given, values, tokens)
    return plan


def leave_with_mask(plan: Plan, given: dict[str, Any]) -> None:
    """Leave the plan with a mask of four dimensions, which the model hands on to its layers. They
    find the plan by the memory of the mask, so no other call may use this memory."""
    mask: Any = given.get("attention_mask")
    if getattr(mask, "ndim", 0) == 4 and not is_tracing():
        given["attention_mask"] = mask.clone()
        given["attention_mask"].untyped_storage().padding_free_plan = plan


def has_single_tokens(model: PreTrainedModel, given: dict[str, Any]) -> bool:
    """Whether a call computes one token of each text, and no source."""
    is_pair = model.config.is_encoder_decoder
    ids = given.get("decoder_input_ids" if is_pair else "input_ids")
    is_encoded = not is_pair or "encoder_outputs" in given
    return is_encoded and ids is not None and ids.shape[-1] == 1


def read_values(switch: Switch, given: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The arguments whose values a plan depends on, on the CPU. Labels that the model shifts are
    shifted here: each stands at the state that predicts it."""
    names = ["attention_mask", "decoder_attention_mask", "decoder_input_ids", "labels"]
    if switch.head == "":
        names.append("input_ids")  # A sequence-level head looks for its position there.
    values = {name: given[name] for name in names if isinstance(given.get(name), torch.Tensor)}
    mask = values.get("attention_mask")
    if mask is not None and mask.ndim == 3:
        values["attention_mask"] = mask.flatten(0, 1)  # The model makes rows of all choices.
    elif mask is not None and mask.ndim == 4:
        values["attention_mask"] = visible_tokens(mask)
    for name in ("attention_mask", "decoder_attention_mask", "labels"):
        if name in values and values[name].ndim != 2:
            del values[name]  # Only a matrix `(B, L)` has a value for each token.
    values = on_cpu(values)
    if switch.shifts_labels and "labels" in values:
        values["labels"] = F.pad(values["labels"][:, 1:], pad=(0, 1), value=IGNORE_INDEX)
    return values


def reason_for_padding(model: PreTrainedModel, given: dict[str, Any]) -> str:
    """Why the layers must compute the padded batch, which is logged once; empty if they need not
    compute it."""
    reason = request_of_layers(given, model.config, model.config.get_text_config())
    if "start_positions" in parameters_of(model):
        reason = "the probability of an answer depends on the scores of padding"
    if reason:
        logger.warning_once(
            f"padding_free: {type(model).__name__} computes padding, because {reason}."
        )
    return reason


def adapt_to_labels(
    model: PreTrainedModel,
    switch: Switch,
    given: dict[str, Any],
    values: dict[str, torch.Tensor],
) -> None:
    """Make no cache for a text with labels, because it is not continued, and hide the padding of a
    target, which its labels show.

    Without a cache, transformers separates packed documents. The decoder is causal, so no label
    depends on tokens after the last one. Gaps usually hold padding tokens, which some stock
    decoders read and others do not. A target that is passed may go on after its labels. Unless a
    target is passed, an `EncoderDecoderModel` hides padding tokens itself, also those that have
    labels.
    """
    if "labels" not in values:
        return
    if "use_cache" in parameters_of(model):
        given.setdefault("use_cache", False)
    reads_padding = (
        switch.head == "seq2seq"
        and model.config.is_encoder_decoder
        and (model.config.model_type != "encoder-decoder" or "decoder_input_ids" in values)
    )
    if not reads_padding or "decoder_attention_mask" in given:
        return
    is_read = values["labels"] != IGNORE_INDEX
    has_gaps = (~is_read[:, :-1] & is_read[:, 1:]).any()
    if not (model.training and switch.skip_logits) and "decoder_input_ids" in values:
        is_read |= values["decoder_input_ids"] != model.config.pad_token_id
    values["decoder_attention_mask"] = mask = is_read | has_gaps
    given["decoder_attention_mask"] = mask.long().to(given["labels"].device)


def visible_tokens(mask: torch.Tensor) -> torch.Tensor:
    """The real tokens, `(B, L)`, of a mask of four dimensions: those that a token attends to."""
    is_seen = mask > torch.finfo(mask.dtype).min if mask.is_floating_point() else mask != 0
    return is_seen.flatten(1, 2).any(dim=1)


def num_last_read(
    model: PreTrainedModel, switch: Switch, given: dict[str, Any], has_cache: bool
) -> float:
    """The number of last positions that may be read to continue a text, even at padding: infinity
    for all, 0 if the call is known to be for another purpose."""
    if switch.head not in ("causal", "seq2seq"):
        return 0
    kept = given.get("logits_to_keep")
    if isinstance(kept, int) and kept > 0:
        return kept
    # To models without this argument, `generate` does not say which positions it reads. It has
    # encoded the source of an encoder–decoder before.
    is_told = "logits_to_keep" in parameters_of(model)
    is_scored = model.config.is_encoder_decoder and "encoder_outputs" not in given
    has_loss = "labels" in given or torch.is_grad_enabled()
    return int(has_cache) if is_told or is_scored or has_loss else math.inf


def read_positions(
    has_target: bool, values: dict[str, torch.Tensor], num_last: float
) -> list[ReadPositions]:
    """The positions whose states a loss or a head may read although they are padding.

    Args:
        has_target: Whether they belong to the target of an encoder–decoder, which is causal.
        num_last: As `num_last_read` returns it.
    """
    causal = True if has_target else None
    read: list[ReadPositions] = []
    if "labels" in values:
        read.append((causal, values["labels"] != IGNORE_INDEX))
    text = values.get("decoder_attention_mask" if has_target else "attention_mask")
    if num_last > 0 and text is not None:
        places = torch.arange(text.shape[1], device=text.device)
        read.append((causal, (places >= text.shape[1] - num_last).expand(text.shape)))
    return read


def ends_of_rows(
    model: PreTrainedModel, switch: Switch, values: dict[str, torch.Tensor]
) -> list[ReadPositions]:
    """The positions that a pooler or a sequence-level head may read: the last one whose id is not
    the padding token if attention is causal, and the first one if not."""
    rows = values.get("attention_mask")
    if rows is None or switch.head != "" or model.config.is_encoder_decoder:
        return []
    places = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape)
    is_first = places == 0
    is_last = places == rows.shape[1] - 1
    if switch.has_summary:
        return [(None, is_first | is_last)]
    if model.base_model is model and current.plan is None:
        return [(False, is_first)]  # There is no head.
    ids = values.get("input_ids")
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    if ids is not None and padding is not None and ids.numel() == rows.numel():
        last = (places * (ids.reshape_as(rows) != padding)).argmax(dim=1, keepdim=True)
        is_last = places == last
    return [(False, is_first), (True, is_last)]
