"""`padding_free(model)`: a model of transformers computes the real tokens of a batch alone, on any device.

The model stays what it is. Around its `forward` the input becomes one flat row of real tokens, `(1, N)`, and the
output `(B, L, ...)` again. Who sees whom in a flat row is said by a mask of one dimension that transformers' mask
functions return under the attention implementation `padding_free`, and which a model hands to its attention layers as
it does any mask: whether attention is causal, its window, and the borders of the documents. (Removing padding before
the layers is the idea of Zeng et al. 2022, arXiv:2208.08124; flash attention is not needed for it.)
"""

import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_outputs import ModelOutput
from transformers.modeling_utils import AttentionInterface
from transformers.models.auto import modeling_auto
from transformers.utils import logging
from transformers.utils.import_utils import is_tracing

from .model.attention_functions import sdpa_attention_by_document
from .model.modeling_roformer_lite import has_hooks
from .model.padding import FlatTokens, find_documents

logger = logging.get_logger(__name__)

NAME = "padding_free"
IGNORE_INDEX = -100  # transformers' label of positions that count for nothing
TABLES = ("MASKED_LM", "CAUSAL_LM", "TOKEN_CLASSIFICATION")
CAUSAL_HEADS = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
TOKEN_HEADS = {
    name for table in TABLES for name in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").values()
}
POSITIONS = ("columns", "tokens", "ids")  # how a model counts positions by itself: see `_Switch.positions_of`
MAX_CHECKED_TOKENS = 1100  # beyond the table of positions of most models


def padding_free(model: nn.Module, enabled: bool = True, skip_logits: bool = True) -> nn.Module:
    """Let `model` compute the real tokens of a batch alone; its outputs stay those of transformers.

    The model is changed in place, its `forward` and its attention implementation; nothing of that is saved. Before it
    is returned, random rows go through it both ways and must give the same. Call it before a model is sharded.

    Padding is computed as ever where a cache is used, `output_attentions` are wanted, a mask has four dimensions, or
    the model is compiled as a whole. Heads for each token compute real tokens alone, too. Outputs are 0 at padding.

    Args:
        model: A `PreTrainedModel` whose attention goes through transformers' attention interface, with any head; or
            what holds one, such as a `PeftModel` or a `SentenceTransformer`.
        enabled: False undoes it.
        skip_logits: Whether, in training with labels, the head of a language model or token classifier computes the
            labelled positions alone; the output then has no `logits`.

    Returns:
        `model` itself.

    Raises:
        TypeError: where there is no model of transformers in it.
        ValueError: for a model that can't be padding-free, with the reason; it is left as it was.
    """
    target = next((part for part in model.modules() if isinstance(part, PreTrainedModel)), None)
    if target is None:
        raise TypeError(f"padding_free: {type(model).__name__} is not, and does not hold, a model of transformers.")
    switch: _Switch | None = getattr(target, "_padding_free", None)
    if switch is not None:
        switch.off(target)
    if enabled and not target.config.model_type.startswith("roformer_lite"):  # ours is padding-free by itself
        previous = {"": target.config._attn_implementation}  # the field that transformers documents
        for part in target.config.sub_configs:
            previous[part] = getattr(getattr(target.config, part), "_attn_implementation", None) or previous[""]
        switch = _Switch(previous, skip_logits)
        try:
            switch.on(target)
        except Exception as error:
            switch.off(target)
            message = f"{type(target).__name__} can't be padding-free: {str(error) or type(error).__name__}"
            raise ValueError(message) from error
    return model


@dataclass
class _Flat:
    """A batch on its way through a model."""

    tokens: FlatTokens | None  # None: as it is, with its padding
    owner: nn.Module  # whose input was flattened, and whose output is restored
    selected: torch.Tensor | None = None  # (K,) tokens of the flat row that go through the head; None: all
    is_selected: bool = False
    is_causal: bool = False
    attention_calls: int = 0


_current: ContextVar[_Flat | None] = ContextVar("padding_free", default=None)


def _current_flat() -> _Flat | None:
    if torch.compiler.is_compiling():  # which can't read a ContextVar
        return None
    flat = _current.get()
    return None if flat is None or flat.tokens is None else flat


@dataclass
class _Switch:
    """What `padding_free` adds to a model, and how that model wants its flat rows. It holds no module, so that a copy
    of a model has a switch of its own."""

    previous: dict[str, str]  # attention implementations, of the model and of its parts
    skip_logits: bool
    head: str = ""  # the class of a head for each token, which others, such as FSDP2, rename
    has_base: bool = True  # a few models with a head call themselves their base model
    positions: str = "columns"
    is_causal: bool = False
    is_checking: bool = False
    handles: list[Any] = field(default_factory=list)

    def on(self, model: PreTrainedModel) -> None:
        if model.config.is_encoder_decoder:
            raise ValueError("it is an encoder–decoder, whose parts take no position_ids.")
        base = model.base_model
        if "input_ids" not in _parameters(type(base)):
            raise ValueError(f"its base model, a {type(base).__name__}, takes no input_ids.")
        if "forward" in vars(base) or any(isinstance(weight, DTensor) for weight in model.parameters()):
            raise ValueError("it was sharded, dispatched or wrapped before; call padding_free before that.")
        if type(model).__name__ in TOKEN_HEADS and "forward" not in vars(model):
            self.head = type(model).__name__  # a forward that somebody put in its place may return anything
        self.has_base = base is not model
        model._padding_free = self
        is_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                model.set_attn_implementation(NAME)
                if NAME not in (model.config._attn_implementation, base.config.get_text_config()._attn_implementation):
                    raise ValueError("its attention does not go through transformers' attention interface.")
                model.set_attn_implementation(self.previous)
                expected = [_run(model, batch) for batch in _batches(model)]
                model.set_attn_implementation(NAME)
                for module in {base, model} if self.head else {base}:
                    module._padding_free, module.__class__ = self, _flat_class(type(module))
                stacks = {base, getattr(base, "decoder", base)} - {model}  # what a head reads its states from
                for part in stacks or {part for part in model.children() if isinstance(part, PreTrainedModel)}:
                    self.handles.append(part.register_forward_hook(self.select_states))
                if isinstance(pooler := getattr(base, "pooler", None), nn.Module):  # reads the first place of each row
                    if isinstance(encoder := getattr(base, "encoder", None), nn.Module):
                        self.handles.append(encoder.register_forward_hook(self.restore_states))
                    else:
                        self.handles.append(pooler.register_forward_pre_hook(self.restore_states))
                self._check(model, expected)
        finally:
            model.train(is_training)

    def off(self, model: PreTrainedModel) -> None:
        for handle in self.handles:
            handle.remove()
        model.set_attn_implementation(self.previous)
        for module in (model.base_model, model):
            vars(module).pop("_padding_free", None)
            if stock_class := vars(type(module)).get("_stock_class"):  # not where others have renamed it since
                module.__class__ = stock_class

    def run(self, module: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        """`forward` of a model, on a flat row where its input may be one."""
        current = None if torch.compiler.is_compiling() else _current.get()
        if torch.compiler.is_compiling() or current is not None:  # the latter: within a model that is flat already
            return forward(*args, **kwargs)
        try:
            inputs = self.flatten(module, args, kwargs)
            output = forward(*args, **kwargs) if inputs is None else forward(**inputs)
            return output if inputs is None else self.restore(output)
        finally:
            _current.set(None)

    def flatten(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """The input `(B, L)` of a model as a flat row `(1, N)`; None where it goes through as it is."""
        inputs = dict(zip(_parameters(type(module)), args, strict=False)) | kwargs
        inputs = {name: value for name, value in inputs.items() if value is not None}
        given = inputs.get("inputs_embeds", inputs.get("input_ids"))
        if given is None or is_tracing(given):
            return None
        if not self._may_be_flat(module, given, inputs):
            _current.set(_Flat(None, module))  # nor may the base model within a head
            return None
        shape, device = tuple(given.shape[:2]), given.device
        if not self.gains(module, inputs):
            return None
        mask, borders = inputs.pop("attention_mask", None), inputs.pop("cu_seq_lens_q", None)
        position_ids = inputs.pop("position_ids", None)
        for name in ("cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"):
            inputs.pop(name, None)
        documents = find_documents(shape, device, mask, position_ids, borders)
        flat = _Flat(documents.flatten("length"), module)  # neighbours of equal length are one call of attention
        names = _parameters(type(module))
        if "position_ids" in names:
            if position_ids is None:
                counted = documents.position_ids if borders is not None else None
                position_ids = self.positions_of(module, mask, inputs.get("input_ids"), counted, shape, device)
            inputs["position_ids"] = position_ids.to(device).expand(shape)
        if "token_type_ids" in names and getattr(module.config, "type_vocab_size", 0):
            inputs.setdefault("token_type_ids", torch.zeros(shape, dtype=torch.long, device=device))
        if "input_ids" in inputs and has_hooks(embeddings := module.get_input_embeddings()):
            inputs["inputs_embeds"] = embeddings(inputs.pop("input_ids"))  # NEFTune's noise expects (B, L, width)
        for name, value in inputs.items():
            if isinstance(value, torch.Tensor) and tuple(value.shape[:2]) == shape:
                inputs[name] = flat.tokens.flatten(value)
        if "attention_mask" in names:  # without one, transformers takes a gap in the positions for another document
            inputs["attention_mask"] = torch.ones_like(flat.tokens.position_ids)
        if "use_cache" in names:
            inputs["use_cache"] = False
        if self.is_head(module) and isinstance(inputs.get("labels"), torch.Tensor):
            self._select(module, flat, inputs)
        _current.set(flat)
        return inputs

    def gains(self, module: nn.Module, inputs: dict[str, Any]) -> bool:
        """Whether there is padding, packing, or a head that needs not see every token: else a flat row only costs."""
        mask = inputs.get("attention_mask")
        is_packed = "position_ids" in inputs or "cu_seq_lens_q" in inputs
        selects = self.is_head(module) and module.training and "labels" in inputs and self.skip_logits
        return is_packed or selects or mask is not None and not bool(mask.all())

    def is_head(self, module: nn.Module) -> bool:
        """Whether it is a model with a head for each token, and not the base model within one."""
        return bool(self.head) and (module.base_model is not module or not self.has_base)

    def _may_be_flat(self, module: nn.Module, given: torch.Tensor, inputs: dict[str, Any]) -> bool:
        shape, mask = tuple(given.shape[:2]), inputs.get("attention_mask")
        if (
            mask is not None
            and (not isinstance(mask, torch.Tensor) or tuple(mask.shape) != shape)
            or not given.numel()
        ):
            return False  # a mask that says more than what is padding; or what the model itself shall refuse
        is_head = self.is_head(module)
        if is_head and mask is not None and isinstance(labels := inputs.get("labels"), torch.Tensor):
            is_labelled, is_padding = labels.to(mask.device) != IGNORE_INDEX, mask == 0
            if self.head in CAUSAL_HEADS:  # which compares each place with the label after it
                is_padding = is_padding | F.pad(is_padding[:, :-1], (1, 0))
            if labels.shape == mask.shape and bool((is_labelled & is_padding).any()):
                logger.warning_once(
                    "padding_free: labels of padding, or of the token after padding on the left, count in the loss of "
                    f"{self.head}, so padding is computed. Set them to -100, or pad on the right."
                )
                return False
        if mask is not None and not (is_head or self.is_causal or self.is_checking) and not bool(mask[:, 0].all()):
            return False  # padding on the left: what a head reads there is not ours to change
        wants_attentions = inputs.get("output_attentions", getattr(module.config, "output_attentions", False))
        others = ("past_key_values", "use_cache", "logits_to_keep", "shift_labels", "encoder_hidden_states", "cache")
        return not wants_attentions and not any(_is_given(inputs.get(name)) for name in others)

    def positions_of(
        self,
        module: nn.Module,
        mask: torch.Tensor | None,
        input_ids: torch.Tensor | None,
        counted: torch.Tensor | None,
        shape: tuple[int, int],
        device: torch.device,
    ) -> torch.Tensor:
        """The positions `(B, L)` that a model gives a batch by itself: the columns, a count of the real tokens (OPT),
        or of the ids that are no padding, from `pad_token_id` + 1 (RoBERTa). `counted` are those of packed documents.
        """
        columns = torch.arange(shape[1], device=device).expand(shape)
        if self.positions == "ids":
            pad = module.config.pad_token_id
            if counted is not None or input_ids is None:
                return (columns if counted is None else counted) + pad + 1
            is_real = (input_ids != pad).long()
            return is_real.cumsum(1) * is_real + pad
        if counted is None and self.positions == "tokens" and mask is not None:
            return ((mask != 0).long().cumsum(1) - 1).clamp(min=0)
        return columns if counted is None else counted

    def _select(self, module: nn.Module, flat: _Flat, inputs: dict[str, Any]) -> None:
        """Labels of the flat row; where logits are skipped, of the tokens that go through the head."""
        labels = inputs["labels"].long()  # (1, N)
        skips = self.skip_logits and (module.training or self.is_checking)
        skips = skips and bool(inputs.get("return_dict", module.config.return_dict))
        if self.head not in CAUSAL_HEADS:
            places = (labels[0] != IGNORE_INDEX).nonzero().squeeze(1)
            if skips and len(places):
                inputs["labels"], flat.selected = labels[:, places], places
            return
        # A causal head compares each token with the label after it: none may belong to another document.
        first = torch.tensor([0, *accumulate(flat.tokens.lengths)][:-1], device=labels.device)
        labels = inputs["labels"] = labels.index_fill(1, first[first < labels.shape[1]], IGNORE_INDEX)
        places = (labels[0] != IGNORE_INDEX).nonzero().squeeze(1)
        if skips and len(places):  # the last state, compared with nothing, stands in for what the head cuts off
            inputs["labels"] = F.pad(labels[:, places], (1, 0), value=IGNORE_INDEX)
            flat.selected = F.pad(places - 1, (0, 1))

    def restore(self, output: Any) -> Any:
        """The output of a model with its places of padding."""
        flat = _current.get()
        if self.is_checking:
            self.is_causal = flat.is_causal
            if not flat.attention_calls:
                raise ValueError("no attention of it goes through transformers' attention interface.")
        if flat.selected is not None:
            output = type(output)(**{name: value for name, value in output.items() if name != "logits"})
        return _map_states(output, flat.tokens)

    def restore_states(self, module: nn.Module, args: tuple, output: Any = None) -> Any:
        """The states before a pooler: the output of the layers, or else the pooler's input."""
        flat = _current_flat()
        if flat is None or self.is_head(flat.owner):
            return None
        return _map_states(args if output is None else output, flat.tokens)

    def select_states(self, module: nn.Module, args: tuple, output: Any) -> Any:
        """The states that go through the head; once, where one part of a model returns those of another."""
        flat = _current_flat()
        if flat is None or flat.selected is None or flat.is_selected:
            return None
        flat.is_selected = True
        states = output[0].index_select(1, flat.selected.to(output[0].device))
        if isinstance(output, ModelOutput):
            output["last_hidden_state"] = states
            return output
        return states, *output[1:]

    def _check(self, model: PreTrainedModel, expected: list[dict[str, torch.Tensor]]) -> None:
        """Compare what the model gives for random rows with what it gave before, for each way to count positions."""
        self.is_checking = True
        errors: list[str] = []
        for self.positions in POSITIONS:
            if self.positions == "ids" and getattr(model.config, "pad_token_id", None) is None:
                continue
            try:
                worst = max(
                    _difference(_run(model, batch), outputs, batch)
                    for batch, outputs in zip(_batches(model), expected, strict=True)
                )
            except (IndexError, RuntimeError) as error:  # positions beyond the table, shapes that do not fit
                errors.append(str(error).partition("\n")[0])
                continue
            if worst <= (5e-5 if model.dtype in (torch.float32, torch.float64) else 5e-2):
                self.is_checking = False
                return
            errors.append(f"its outputs differ by {worst:.1e} of their size; tokens of other rows or padding count.")
        raise ValueError(errors[0])


@lru_cache
def _flat_class(model_class: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class with another `forward`, under the same name. A hook would not be called by `model.forward(...)`, as
    sentence-transformers calls it; a `forward` of the instance would stay the first replica's in `DataParallel`."""

    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        below, switch = model_class.forward.__get__(self), getattr(self, "_padding_free", None)
        return below(*args, **kwargs) if switch is None else switch.run(self, below, *args, **kwargs)

    def reduce(self: PreTrainedModel, protocol: int) -> tuple:  # for copies, and processes that get a model
        return _new_flat, (model_class,), vars(self)

    forward.__signature__, forward.__doc__ = inspect.signature(model_class.forward), model_class.forward.__doc__
    fields = {"forward": forward, "__reduce_ex__": reduce, "_stock_class": model_class}
    fields |= {name: getattr(model_class, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(model_class.__name__, (model_class,), fields)


def _new_flat(model_class: type[PreTrainedModel]) -> PreTrainedModel:
    flat_class = _flat_class(model_class)
    return flat_class.__new__(flat_class)


def _run(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs by name: of the base model, and of a head for each token with its loss."""
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    outputs = {f"base.{name}": value for name, value in model.base_model(**inputs, return_dict=True).items()}
    if type(model).__name__ in TOKEN_HEADS:
        inputs = {name: value[:6] for name, value in inputs.items()}
        outputs["loss"] = model(**inputs, labels=batch["labels"][:6], return_dict=True)["loss"]
        outputs["logits"] = model(**inputs, return_dict=True)["logits"]
    return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}


def _batches(model: PreTrainedModel) -> list[dict[str, torch.Tensor]]:
    """Random rows, padded on the right and on the left, with more tokens than a small table of positions has."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or MAX_CHECKED_TOKENS
    lengths = torch.tensor((17, 11, 5) if limit > 24 else (7, 5, 3))
    lengths = lengths.repeat(-(-(limit + 1 if limit < MAX_CHECKED_TOKENS else 1) // int(lengths.sum())))
    generator = torch.Generator().manual_seed(0)
    shape, words = (len(lengths), int(lengths[0])), config.vocab_size
    ids = torch.randint(words, shape, generator=generator)
    pad = getattr(config, "pad_token_id", None) or 0
    ids[ids == pad] = (pad + 1) % words
    if 0 < (getattr(config, "mask_token_id", None) or 0) < words:
        ids[0, 3] = config.mask_token_id  # which some models count
    labels = ids % max(getattr(config, "num_labels", 2), 1) if _is_classifier(model) else ids.clone()
    labels[torch.rand(shape, generator=generator) < 0.5] = IGNORE_INDEX
    right = (torch.arange(shape[1]) < lengths[:, None]).long()
    batches = []
    for mask in (right, right.flip(1)):
        batch = {"input_ids": ids.where(mask != 0, pad), "attention_mask": mask}
        after_real = F.pad(mask[:, :-1], (1, 0), value=1)  # a causal head does not count the label of a first token
        batch["labels"] = labels.where(mask * after_real != 0, IGNORE_INDEX)
        batches.append({name: value.to(model.device) for name, value in batch.items()})
    return batches


def _is_classifier(model: PreTrainedModel) -> bool:
    return type(model).__name__ in modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.values()


def _difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], batch: dict[str, Any]) -> float:
    """The largest difference at real tokens, by the size of the largest value."""
    is_real = batch["attention_mask"] != 0
    differences = [0.0]
    for name, value in expected.items():
        other = found[name]
        if other.shape != value.shape:
            raise ValueError(f"its output {name} has shape {tuple(other.shape)}, not {tuple(value.shape)}.")
        if name == "logits" or value.shape[:2] == is_real.shape:
            real = is_real[: len(value)]
            value, other = value[real], other[real]
        elif value.ndim and not bool(is_real[:, 0].all()):
            continue  # what reads the first place of a row that is padded on the left
        size = value.float().abs().max().clamp(min=1)
        differences.append(float((value.float() - other.float()).abs().max() / size))
    return float("inf") if any(one != one for one in differences) else max(differences)


@lru_cache
def _parameters(model_class: type) -> tuple[str, ...]:
    return tuple(inspect.signature(model_class.forward).parameters)[1:]


def _is_given(value: Any) -> bool:
    return value is not None and (not isinstance(value, bool | int) or bool(value))


def _map_states(output: Any, tokens: FlatTokens) -> Any:
    """States `(1, N, width)` anywhere in an output to `(B, L, width)`."""
    if isinstance(output, torch.Tensor):
        is_flat = output.ndim >= 3 and output.shape[:2] == (1, sum(tokens.lengths))
        return tokens.restore(output) if is_flat else output
    if isinstance(output, ModelOutput):
        for name, value in output.items():
            output[name] = _map_states(value, tokens)
    elif type(output) in (tuple, list):
        return type(output)(_map_states(value, tokens) for value in output)
    return output


def _flat_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Callable, device: Any = "cpu", **kwargs: Any
) -> torch.Tensor | None:
    """In a flat row, `(2 + documents + 1,)` int32 on the host: 1 if causal, window or 0, borders. Else sdpa's mask."""
    flat = _current_flat()
    if flat is None:
        options = {"mask_function": mask_function, "device": device, **kwargs}
        return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, **options)
    lengths = flat.tokens.lengths
    if (batch_size, q_length, kv_length) != (1, sum(lengths), sum(lengths)):
        raise ValueError(f"its attention has {kv_length} keys for {q_length} tokens.")
    longest = max(lengths)  # the first document
    rows = torch.linspace(0, longest - 1, min(longest, 64), device=device).long()[:, None]
    columns, zero = torch.arange(longest, device=device)[None], torch.zeros(1, 1, dtype=torch.long, device=device)
    sees = mask_function(zero, zero, rows, columns).expand(len(rows), longest)
    is_causal, seen = not bool(sees[0, 1:].any()), int(sees[-1].sum())
    distance = rows - columns
    if not torch.equal(sees, (distance < seen) & (distance > (-1 if is_causal else -seen))):
        raise ValueError("its mask is neither causal nor bidirectional, with or without a window.")
    window, flat.is_causal = 0 if seen == longest else seen, is_causal
    return torch.tensor([is_causal, window, 0, *accumulate(lengths)], dtype=torch.int32)


def _flat_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention with the masks of `_flat_mask`, document by document where the mask is that of a flat row."""
    flat = _current_flat()
    needs_eager = kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None
    attend = _attend_eagerly if needs_eager else sdpa_attention_forward
    if attention_mask is None or attention_mask.ndim != 1:
        if flat is not None:
            raise ValueError("its masks are not those that transformers' mask functions make.")
        return attend(module, query, key, value, attention_mask, **kwargs)
    if kwargs.get("position_bias") is not None or attention_mask.dtype != torch.int32:
        raise ValueError("its attention adds a bias of positions to the scores.")
    if flat is not None:
        flat.attention_calls += 1
    is_causal, window, *borders = attention_mask.tolist()
    cu_seq_lens = torch.tensor(borders, dtype=torch.int32)
    longest = max(after - before for before, after in zip(borders, borders[1:], strict=False))
    kwargs |= {"is_causal": bool(is_causal), "sliding_window": window or None}
    kwargs |= {"cu_seq_lens_q": cu_seq_lens, "cu_seq_lens_k": cu_seq_lens}
    kwargs |= {"max_length_q": longest, "max_length_k": longest}
    if needs_eager:
        kwargs["attend"] = attend
    return sdpa_attention_by_document(module, query, key, value, None, **kwargs)


def _attend_eagerly(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The function of the model's own file, for what sdpa lacks: capped scores, and sinks."""
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()[None, None]
    if attention_mask is not None:
        lowest = torch.finfo(query.dtype).min
        attention_mask = query.new_zeros(attention_mask.shape).masked_fill(~attention_mask, lowest)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(NAME, _flat_attention)
AttentionMaskInterface.register(NAME, _flat_mask)

__all__ = ["padding_free"]
