"""`padding_free(model)`: a model of transformers computes the real tokens of a batch alone, on any
device.

The model stays what it is. Around its `forward` the input becomes one flat row of real tokens, `(1,
N)`, and the output `(B, L, ...)` again. Who sees whom in a flat row is said by a mask of one
dimension that transformers' mask functions return under the attention implementation
`padding_free`, and which a model hands to its attention layers as it does any mask: whether
attention is causal, its window, and the borders of the documents. (Removing padding before the
layers is the idea of Zeng et al. 2022, arXiv:2208.08124; flash attention is not needed for it.)

What is not understood, an input that is not in `KNOWN` or a mask of another kind, goes through the
model as it is, with its padding; a model that gives something else on a flat row is refused when it
is switched on.
"""

import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.loss.loss_utils import LOSS_MAPPING
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.models.auto import modeling_auto
from transformers.utils import logging
from transformers.utils.import_utils import is_tracing

from .model.attention_functions import sdpa_attention_by_document
from .model.padding import FlatTokens, find_documents, positions_of_real_tokens

logger = logging.get_logger(__name__)

NAME = "padding_free"
# Inputs that a flat row can have. Others, unless they are None, False or 0, keep a batch as it is.
KNOWN = set(
    "input_ids inputs_embeds attention_mask position_ids token_type_ids labels next_sentence_label num_items_in_batch "
    "cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k seq_idx "
    "output_hidden_states output_router_logits return_dict".split()
)
PACKING = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
IGNORE_INDEX = -100  # transformers' label of positions that count for nothing
CAUSAL_HEADS = set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
LANGUAGE_MODELS = CAUSAL_HEADS | set(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())
TOKEN_CLASSIFIERS = set(modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.values())
# how a model counts positions by itself: see `_Switch.positions_of`
POSITIONS = ("columns", "tokens", "ids")
MAX_CHECKED_TOKENS = 1100  # beyond the table of positions of most models


def padding_free(model: nn.Module, enabled: bool = True, skip_logits: bool = True) -> nn.Module:
    """Let `model` compute the real tokens of a batch alone; its outputs stay those of transformers.

    The model is changed in place, its `forward` and its attention implementation; nothing of that
    is saved. Before it is returned, random rows go through it both ways and must give the same.
    Call it before a model is sharded.

    Padding is computed as ever where a cache is used or a language model makes one for its caller
    (say `use_cache=False` to score texts), where `output_attentions` are wanted, with inputs of
    other kinds than text, and in a model that is compiled as a whole. Outputs for each token are 0
    at padding.

    Args:
        model: A `PreTrainedModel` whose attention goes through transformers' attention interface,
            with any head; or what holds one or several, such as a `PeftModel` or a
            `SentenceTransformer`.
        enabled: False undoes it.
        skip_logits: Whether, in training with labels, the head of a language model computes the
            labelled positions alone; the output then has no `logits`.

    Returns:
        `model` itself.

    Raises:
        TypeError: where there is no model of transformers in it.
        ValueError: for a model that can't be padding-free, with the reason; all are left as they
            were.
    """
    models = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    inner = {id(part) for outer in models for part in outer.modules() if part is not outer}
    models = [part for part in models if id(part) not in inner]
    if not models:
        raise TypeError(
            f"padding_free: {type(model).__name__} is not, and does not hold, a model of transformers."
        )
    for part in models:
        if switch := vars(part).get("_padding_free"):
            switch.off(part)
    for part in models if enabled else ():
        if part.config.model_type.startswith("roformer_lite"):  # ours is padding-free by itself
            continue
        try:
            _Switch(skip_logits).on(part)
        except Exception as error:
            padding_free(model, False)
            message = (
                f"{type(part).__name__} can't be padding-free: {str(error) or type(error).__name__}"
            )
            raise ValueError(message) from error
    return model


class _NotUnderstood(ValueError):
    """Why a flat row can't go through a model."""


class NoCache:
    """Stands where a model would have returned a key-value cache that nobody asked for. Whoever
    goes on from it gets an error instead of other tokens."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"past_key_values.{name}: padding_free made no cache here; call with use_cache=True."
        )


@dataclass
class _Flat:
    """A batch on its way through a model."""

    tokens: FlatTokens | None = None  # None: as it is, with its padding
    # (K,) tokens of the flat row that go through the head; None: all
    selected: torch.Tensor | None = None
    is_selected: bool = False
    is_causal: bool = False
    masks: int = 0  # made for it; where none was, attention is not ours
    attends_eagerly: bool = False
    makes_cache: bool = False  # as it is, it would

    def select(self, output: Any) -> Any:
        """What the base model gives the head: the states that go through it."""
        if self.selected is None or self.is_selected:
            return output
        self.is_selected = True
        states = output[0].index_select(1, self.selected.to(output[0].device))
        if isinstance(output, tuple):
            return states, *output[1:]
        output["last_hidden_state"] = states
        return output


_current: ContextVar[_Flat | None] = ContextVar("padding_free", default=None)


def _current_flat() -> _Flat | None:
    # compiled code can't read a ContextVar
    return None if torch.compiler.is_compiling() else _current.get()


@dataclass
class _Switch:
    """What `padding_free` adds to a model, and how that model wants its flat rows. It holds no
    module, so that a copy of a model has a switch of its own."""

    skip_logits: bool
    # attention implementations, of the model and of its parts
    previous: dict[str, str] | None = None
    head: str = ""  # the class of a head for each token, which others, such as FSDP2, rename
    has_base: bool = True  # a few models with a head call themselves their base model
    positions: str = "columns"
    takes_embeddings: bool = False  # in place of ids
    is_causal: bool = False
    is_checking: bool = True

    def on(self, model: PreTrainedModel) -> None:
        """Switch `model`, or say in an error why not; what was done until then is undone by
        `off`."""
        base = model.base_model
        if model.config.is_encoder_decoder:
            raise ValueError("it is an encoder–decoder, whose parts take no position_ids.")
        if "input_ids" not in _parameters(type(base)):
            raise ValueError(f"its base model, a {type(base).__name__}, takes no input_ids.")
        if "forward" in vars(base) or any(
            isinstance(weight, DTensor) for weight in model.parameters()
        ):
            raise ValueError(
                "it was sharded, dispatched or wrapped before; call padding_free before that."
            )
        if "forward" not in vars(model):  # what somebody put in its place may return anything
            self.head = (
                type(model).__name__
                if type(model).__name__ in LANGUAGE_MODELS | TOKEN_CLASSIFIERS
                else ""
            )
        self.has_base = base is not model
        whole = model.config._attn_implementation  # the field that transformers documents
        parts = {name: getattr(model.config, name) for name in model.config.sub_configs}
        self.previous = {
            name: getattr(part, "_attn_implementation", None) or whole
            for name, part in parts.items()
        }
        self.previous[""] = whole
        modes = [(module, module.training) for module in model.modules()]
        model._padding_free = self
        model.eval()
        try:
            with torch.no_grad():
                model.set_attn_implementation(NAME)
                if not _is_switched(model) and not _is_switched(base):
                    raise ValueError(
                        "its attention does not go through transformers' attention interface."
                    )
                model.set_attn_implementation(self.previous)
                batches = _batches(model)
                expected = [self._run(model, batch) for batch in batches]
                model.set_attn_implementation(NAME)
                # of whose states a head is computed, as in OPT
                decoder = getattr(base, "decoder", None)
                parts = {model, base, decoder if isinstance(decoder, PreTrainedModel) else base}
                if not self.has_base:
                    parts |= {
                        part for part in model.children() if isinstance(part, PreTrainedModel)
                    }
                for part in parts:
                    part._padding_free, part.__class__ = self, _flat_class(type(part))
                self._check(model, batches, expected)
        finally:
            for module, mode in modes:
                module.training = mode

    def off(self, model: PreTrainedModel) -> None:
        if self.previous is not None:
            model.set_attn_implementation(self.previous)
        for module in model.modules():
            is_ours = vars(module).pop("_padding_free", None) is not None
            # not where others have renamed it since
            stock_class = vars(type(module)).get("_stock_class")
            if is_ours and stock_class is not None:
                module.__class__ = stock_class

    def run(self, module: nn.Module, forward: Callable, *args: Any, **kwargs: Any) -> Any:
        """`forward` of a model, on a flat row where its input may be one."""
        if torch.compiler.is_compiling():
            return forward(*args, **kwargs)
        # within a model that is flat already, or as it is
        if (current := _current.get()) is not None:
            return current.select(forward(*args, **kwargs))
        inputs = dict(zip(_parameters(type(module)), args, strict=False)) | kwargs
        inputs = {name: value for name, value in inputs.items() if value is not None}
        given = inputs.get("inputs_embeds", inputs.get("input_ids"))
        if given is None or is_tracing(given):
            return forward(*args, **kwargs)
        try:
            wants_attentions = inputs.get(
                "output_attentions", getattr(module.config, "output_attentions", False)
            )
            if wants_attentions or not self._is_understood(module, inputs):
                _current.set(
                    _Flat(attends_eagerly=wants_attentions and "eager" in self.previous.values())
                )
            elif self.is_head(module) or module.base_model is module:
                is_tuple = not inputs.get("return_dict", module.config.return_dict)
                if (flat := self.flatten(module, inputs)) is not None:
                    output = self._run_flat(module, forward, flat, inputs)
                    return output.to_tuple() if is_tuple else output
            return forward(*args, **kwargs)
        except _NotUnderstood as error:
            if self.is_checking:
                raise
            logger.warning_once(f"padding_free: padding is computed, as {error}")
            _current.set(_Flat())
            return forward(*args, **kwargs)
        finally:
            _current.set(None)

    def _run_flat(
        self, module: nn.Module, forward: Callable, flat: _Flat, inputs: dict[str, Any]
    ) -> Any:
        """The output `(B, L, ...)` of a model for the flat row `inputs`."""
        _current.set(flat)
        try:
            output = forward(**inputs)
        except Exception as error:
            if flat.masks or self.is_checking or isinstance(error, _NotUnderstood):
                raise
            # or will again, as it is
            raise _NotUnderstood(f"it failed before attention: {error}") from error
        if not flat.masks:
            raise _NotUnderstood(
                "no attention of it goes through transformers' attention interface."
            )
        self.is_causal = flat.is_causal if self.is_checking else self.is_causal
        fields = {name: _restore(value, flat.tokens) for name, value in output.items()}
        if flat.selected is not None:
            fields.pop("logits", None)
        if fields.get("pooler_output") is not None:  # of the first place of each row
            # ALBERT's, whose pooler is linear
            pool = getattr(module, "pooler_activation", nn.Identity())
            states = fields["last_hidden_state"]
            states = states[:, 0] if isinstance(module.pooler, nn.Linear) else states
            fields["pooler_output"] = pool(module.pooler(states))
        if flat.makes_cache and hasattr(output, "past_key_values"):
            fields["past_key_values"] = NoCache()
        return type(output)(**fields)

    def is_head(self, module: nn.Module) -> bool:
        """Whether it is a model with a head for each token, and not the base model within one."""
        return bool(self.head) and (module.base_model is not module or not self.has_base)

    def _wants_cache(self, module: nn.Module, inputs: dict[str, Any]) -> bool:
        default = getattr(module.config.get_text_config(), "use_cache", False)
        return self.is_causal and bool(inputs.get("use_cache", default))

    def _is_understood(self, module: nn.Module, inputs: dict[str, Any]) -> bool:
        """Whether a flat row of the input would give what it gives as it is."""
        others = [value for name, value in inputs.items() if name not in KNOWN]
        if any(not isinstance(value, bool | int) or value for value in others) or not _is_switched(
            module
        ):
            return False
        mask, labels, is_head = (
            inputs.get("attention_mask"),
            inputs.get("labels"),
            self.is_head(module),
        )
        if not isinstance(mask, torch.Tensor | None) or not isinstance(labels, torch.Tensor | None):
            return False  # such as a mask for each kind of layer
        if labels is not None and mask is not None and labels.shape == mask.shape:
            is_padding = mask.to(labels.device) == 0
            if self.head in CAUSAL_HEADS:  # which compare each place with the label after it
                is_padding = is_padding | F.pad(is_padding[:, :-1], (1, 0))
            if bool(((labels != IGNORE_INDEX) & is_padding).any()):
                logger.warning_once(
                    "padding_free: labels of padding, or of the token after padding on the left, count in the loss of "
                    f"{type(module).__name__}, so padding is computed. Set them to -100, or pad on the right."
                )
                return False
        if not is_head and module.base_model is not module:
            return True  # the rest is for its base model to say
        shape = tuple(inputs.get("inputs_embeds", inputs.get("input_ids")).shape[:2])
        positions, is_packed = inputs.get("position_ids"), "cu_seq_lens_q" in inputs
        if is_head and labels is None and not (module.training or self.is_checking):
            if self._wants_cache(module, inputs):
                return False  # whoever calls it may go on from the cache
        fits = [
            all(shape),
            mask is None or tuple(mask.shape) == shape,
            positions is None or tuple(positions.shape) in (shape, (1, shape[1])),
            not is_packed or mask is None and positions is not None,
            # Else they say something else than for the embeddings, such as what is an image.
            "token_type_ids" not in inputs or bool(getattr(module.config, "type_vocab_size", 0)),
            not is_head or labels is None or tuple(labels.shape) == shape,
            # which see no rows
            not is_head or labels is None or module.loss_function in LOSS_MAPPING.values(),
        ]
        if not all(fits):
            return False
        if mask is None:
            return True
        real = mask != 0
        if bool(((real & ~F.pad(real[:, :-1], (1, 0))).sum(1) != 1).any()):
            # a row of padding alone, or padding between tokens, which counts in sliding windows
            return False
        # Under padding on the left, what another head reads at the first place is not ours to
        # change.
        return is_head or self.is_causal or self.is_checking or bool(real[:, 0].all())

    def flatten(self, module: nn.Module, inputs: dict[str, Any]) -> _Flat | None:
        """Make flat rows, `(1, N)`, of `inputs`, in place; None where nothing would be gained."""
        given, names = (
            inputs.get("inputs_embeds", inputs.get("input_ids")),
            _parameters(type(module)),
        )
        shape, config = tuple(given.shape[:2]), module.config.get_text_config()
        mask, positions, borders = (
            inputs.get(name) for name in ("attention_mask", "position_ids", "cu_seq_lens_q")
        )
        flat = _Flat(makes_cache=self._wants_cache(module, inputs))
        if (
            positions is not None
            and mask is None
            and borders is None
            and self.is_causal
            and not flat.makes_cache
        ):
            # Packed, by the rule of transformers' masks: a position that does not follow begins
            # another document.
            begins = F.pad(positions.expand(shape).diff(dim=1) != 1, (1, 0), value=True)
            if int(begins.sum()) > shape[0]:
                borders = F.pad(begins.flatten().nonzero().squeeze(1), (0, 1), value=begins.numel())
        skips = self.is_head(module) and self.head in LANGUAGE_MODELS and "labels" in inputs
        skips = skips and self.skip_logits and (module.training or self.is_checking)
        skips = skips and bool(inputs.get("return_dict", module.config.return_dict))
        if borders is None and not skips and (mask is None or bool(mask.all())):
            return None
        if positions is None:
            columns = torch.arange(shape[1], device=given.device).expand(shape)
            positions = self.positions_of(module, inputs, columns)
        positions = positions.to(given.device).expand(shape)
        packed = None if borders is None else positions
        tokens = flat.tokens = find_documents(shape, given.device, mask, packed, borders).flatten(
            "length"
        )
        inputs["position_ids"] = tokens.flatten(positions)
        rope = str(getattr(config, "rope_parameters", ""))
        if ("dynamic" in rope or "longrope" in rope) and bool(
            positions.max() > inputs["position_ids"].max()
        ):
            return None  # frequencies depend on the last position, be it one of padding
        if "token_type_ids" in names and getattr(module.config, "type_vocab_size", 0):
            inputs.setdefault("token_type_ids", torch.zeros_like(positions))
        embeddings = module.get_input_embeddings()
        if "input_ids" in inputs and module.training and hasattr(embeddings, "neftune_noise_alpha"):
            if not self.takes_embeddings:
                return None
            inputs["inputs_embeds"] = embeddings(inputs.pop("input_ids"))  # noise is scaled by L
        for name in ("input_ids", "inputs_embeds", "token_type_ids", "labels"):
            if name in inputs:
                inputs[name] = tokens.flatten(inputs[name])
        # Without a mask, transformers takes a gap in the positions for another document.
        inputs |= {
            "attention_mask": torch.ones_like(inputs["position_ids"]),
            "use_cache": False,
            "return_dict": True,
        }
        for name in (*PACKING, "position_ids", "attention_mask", "use_cache"):
            if name in PACKING or name not in names:
                inputs.pop(name, None)
        if "labels" in inputs:
            self._select(flat, inputs, skips)
        return flat

    def positions_of(
        self, module: nn.Module, inputs: dict[str, Any], columns: torch.Tensor
    ) -> torch.Tensor:
        """The positions `(B, L)` that a model gives a batch by itself: the columns, a count of the
        real tokens (OPT), or of the ids that are no padding, from `pad_token_id` + 1 (RoBERTa)."""
        if self.positions == "ids":
            pad = module.config.pad_token_id
            is_real = (
                (inputs["input_ids"] != pad).long()
                if "input_ids" in inputs
                else torch.ones_like(columns)
            )
            return is_real.cumsum(1) * is_real + pad
        if self.positions == "tokens" and "attention_mask" in inputs:
            return positions_of_real_tokens(inputs["attention_mask"]).to(columns.device)
        return columns

    def _select(self, flat: _Flat, inputs: dict[str, Any], skips: bool) -> None:
        """Labels of the flat row; where logits are skipped, of the tokens that go through the
        head."""
        labels = inputs["labels"].long()  # (1, N)
        is_causal = self.head in CAUSAL_HEADS
        # which compares each token with the label after it: none may belong to another document
        if is_causal:
            first = torch.tensor([0, *accumulate(flat.tokens.lengths)][:-1], device=labels.device)
            labels = inputs["labels"] = labels.index_fill(1, first, IGNORE_INDEX)
        places = (labels[0] != IGNORE_INDEX).nonzero().squeeze(1)
        if not skips or not len(places):
            return
        inputs["labels"], flat.selected = labels[:, places], places
        if is_causal:  # the last state, compared with nothing, stands in for what the head cuts off
            inputs["labels"] = F.pad(inputs["labels"], (1, 0), value=IGNORE_INDEX)
            flat.selected = F.pad(places - 1, (0, 1))

    def _run(
        self, model: PreTrainedModel, batch: dict[str, torch.Tensor], like: dict | None = None
    ) -> dict[str, Any]:
        """Outputs by name: of the base model, and of the head where it can be computed from text
        alone, as it must be where it was in `like`."""
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        outputs = {
            f"base.{name}": value
            for name, value in model.base_model(**inputs, return_dict=True).items()
        }
        inputs = {name: value[:6] for name, value in inputs.items()}
        try:
            if self.head:
                outputs["loss"] = model(**inputs, labels=batch["labels"][:6], return_dict=True)[
                    "loss"
                ]
            if self.has_base and (like is None or any(name.startswith("head.") for name in like)):
                outputs |= {
                    f"head.{name}": value
                    for name, value in model(**inputs, return_dict=True).items()
                }
        except Exception:
            if self.head or like is not None:
                raise
        return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}

    def _check(
        self, model: PreTrainedModel, batches: list[dict[str, Any]], expected: list[dict[str, Any]]
    ) -> None:
        """Compare what the model gives for random rows with what it gave before, for each way to
        count positions; then see that rows do not meet."""
        errors: list[str] = []
        limit = 5e-5 if model.dtype in (torch.float32, torch.float64) else 5e-2
        for self.positions in POSITIONS:
            if self.positions == "ids" and getattr(model.config, "pad_token_id", None) is None:
                continue
            try:
                worst = max(
                    _difference(self._run(model, batch, outputs), outputs, batch)
                    for batch, outputs in zip(batches, expected, strict=True)
                )
            # positions beyond the table, shapes that don't fit
            except (IndexError, RuntimeError, TypeError) as error:
                reason = str(error).partition("\n")[0]
                errors.append(
                    f"it uses masks or positions in another way than for its attention ({reason})."
                )
                continue
            if worst <= limit:
                if not self._keeps_rows_apart(model.base_model, batches[0]):
                    raise ValueError("tokens of different rows meet outside its attention.")
                self.takes_embeddings = _takes_embeddings(model.base_model, batches[0], limit)
                self.is_checking = False
                return
            errors.append(
                f"its outputs differ by {worst:.1e} of their size; tokens of other rows or padding count."
            )
        raise ValueError(errors[0])

    def _keeps_rows_apart(self, base: nn.Module, batch: dict[str, torch.Tensor]) -> bool:
        """Whether a row in the middle of a flat row stays finite where all other tokens are NaN: a
        test that needs no tolerance, for half precision."""
        ids, mask = batch["input_ids"], batch["attention_mask"]
        kept = len(ids) // 2

        def spoil(module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor:
            is_other = _current.get().tokens.documents() != kept  # (1, N)
            return output.masked_fill(is_other.to(output.device).unsqueeze(-1), float("nan"))

        handle = base.get_input_embeddings().register_forward_hook(spoil)
        try:
            states = base(input_ids=ids, attention_mask=mask, return_dict=True)[0]
        finally:
            handle.remove()
        return bool(states[kept][mask[kept] != 0].isfinite().all())


def _is_switched(module: nn.Module) -> bool:
    config = module.config
    return NAME in (config._attn_implementation, config.get_text_config()._attn_implementation)


@lru_cache
def _flat_class(model_class: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class with another `forward`, under the same name. A hook would not be called by
    `model.forward(...)`, as sentence-transformers calls it; a `forward` of the instance would stay
    the first replica's in `DataParallel`."""

    def forward(self: PreTrainedModel, *args: Any, **kwargs: Any) -> Any:
        below, switch = model_class.forward.__get__(self), getattr(self, "_padding_free", None)
        return (
            below(*args, **kwargs) if switch is None else switch.run(self, below, *args, **kwargs)
        )

    # for copies, and processes that get a model
    def reduce(self: PreTrainedModel, protocol: int) -> tuple:
        return _new_flat, (model_class,), vars(self)

    forward.__signature__, forward.__doc__ = (
        inspect.signature(model_class.forward),
        model_class.forward.__doc__,
    )
    fields = {"forward": forward, "__reduce_ex__": reduce, "_stock_class": model_class}
    fields |= {
        name: getattr(model_class, name) for name in ("__module__", "__qualname__", "__doc__")
    }
    return type(model_class.__name__, (model_class,), fields)


def _new_flat(model_class: type[PreTrainedModel]) -> PreTrainedModel:
    flat_class = _flat_class(model_class)
    return flat_class.__new__(flat_class)


def _batches(model: PreTrainedModel) -> list[dict[str, torch.Tensor]]:
    """Random rows, padded on the right and on the left, with more tokens than a small table of
    positions has."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or MAX_CHECKED_TOKENS
    lengths = torch.tensor((17, 11, 5) if limit > 24 else (7, 5, 3))
    lengths = lengths.repeat(
        -(-(limit + 1 if limit < MAX_CHECKED_TOKENS else 1) // int(lengths.sum()))
    )
    generator = torch.Generator().manual_seed(0)
    shape, words = (len(lengths), int(lengths[0])), config.vocab_size
    ids = torch.randint(words, shape, generator=generator)
    pad = getattr(config, "pad_token_id", None) or 0
    ids[ids == pad] = (pad + 1) % words
    if 0 < (getattr(config, "mask_token_id", None) or 0) < words:
        ids[0, 3] = config.mask_token_id  # which some models count
    is_classifier = type(model).__name__ in TOKEN_CLASSIFIERS
    labels = ids % max(getattr(config, "num_labels", 2), 1) if is_classifier else ids.clone()
    labels[torch.rand(shape, generator=generator) < 0.5] = IGNORE_INDEX
    right = (torch.arange(shape[1]) < lengths[:, None]).long()
    batches = []
    for mask in (right, right.flip(1)):
        batch = {"input_ids": ids.where(mask != 0, pad), "attention_mask": mask}
        # a causal head does not count the label of a first token
        after_real = F.pad(mask[:, :-1], (1, 0), value=1)
        batch["labels"] = labels.where(mask * after_real != 0, IGNORE_INDEX)
        batches.append({name: value.to(model.device) for name, value in batch.items()})
    return batches


def _difference(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], batch: dict[str, Any]
) -> float:
    """The largest difference at real tokens, by the size of the largest value."""
    is_real = batch["attention_mask"] != 0
    differences = [0.0]
    for name, value in expected.items():
        other = found[name]
        if other.shape != value.shape:
            raise ValueError(
                f"its output {name} has shape {tuple(other.shape)}, not {tuple(value.shape)}."
            )
        real = is_real[: len(value)] if value.ndim else is_real
        if value.shape[:2] == real.shape:
            value, other = value[real], other[real]
        elif value.ndim and not bool(is_real[:, 0].all()):
            continue  # what reads the first place of a row that is padded on the left
        size = value.float().abs().max().clamp(min=1)
        differences.append(float((value.float() - other.float()).abs().max() / size))
    return float("inf") if any(one != one for one in differences) else max(differences)


def _takes_embeddings(base: nn.Module, batch: dict[str, torch.Tensor], limit: float) -> bool:
    """Whether the vectors of tokens say as much as their ids, which some models read again."""
    ids, mask = batch["input_ids"][:6], batch["attention_mask"][:6]
    try:
        found = base(
            inputs_embeds=base.get_input_embeddings()(ids), attention_mask=mask, return_dict=True
        )[0]
    except Exception:
        return False
    expected = base(input_ids=ids, attention_mask=mask, return_dict=True)[0]
    return _difference({"states": found}, {"states": expected}, {"attention_mask": mask}) <= limit


@lru_cache
def _parameters(model_class: type) -> tuple[str, ...]:
    return tuple(inspect.signature(model_class.forward).parameters)[1:]


def _restore(value: Any, tokens: FlatTokens) -> Any:
    """States `(1, N, width)`, or a tuple with such, to `(B, L, width)`."""
    if type(value) in (tuple, list):
        return type(value)(_restore(part, tokens) for part in value)
    is_flat = (
        isinstance(value, torch.Tensor)
        and value.ndim >= 3
        and value.shape[:2] == (1, sum(tokens.lengths))
    )
    return tokens.restore(value) if is_flat else value


def _flat_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable,
    device: Any = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """In a flat row, `(2 + documents + 1,)` int32 on the host: 1 if causal, window or 0, borders.
    Else sdpa's mask."""
    flat = _current_flat()
    if flat is None or flat.tokens is None:
        options = {"mask_function": mask_function, "device": device, **kwargs}
        return sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, **options)
    lengths = flat.tokens.lengths
    if (batch_size, q_length, kv_length) != (1, sum(lengths), sum(lengths)):
        raise _NotUnderstood(f"its attention has {kv_length} keys for {q_length} tokens.")
    longest = max(lengths)  # the first document
    rows = torch.linspace(0, longest - 1, min(longest, 64), device=device).long()[:, None]
    columns, zero = (
        torch.arange(longest, device=device)[None],
        torch.zeros(1, 1, dtype=torch.long, device=device),
    )
    sees = mask_function(zero, zero, rows, columns).expand(len(rows), longest)
    is_causal, seen = not bool(sees[0, 1:].any()), int(sees[-1].sum())
    distance = rows - columns
    if not torch.equal(sees, (distance < seen) & (distance > (-1 if is_causal else -seen))):
        raise _NotUnderstood(
            "its mask is neither causal nor bidirectional, with or without a window."
        )
    window, flat.is_causal = 0 if seen == longest else seen, is_causal
    flat.masks += 1
    return torch.tensor([is_causal, window, 0, *accumulate(lengths)], dtype=torch.int32)


def _flat_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention with the masks of `_flat_mask`, document by document where the mask is that of a
    flat row."""
    flat = _current_flat()
    needs_eager = kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None
    needs_eager = needs_eager or flat is not None and flat.attends_eagerly
    attend = _attend_eagerly if needs_eager else sdpa_attention_forward
    if attention_mask is None or attention_mask.ndim != 1:
        if flat is not None and flat.tokens is not None:
            raise _NotUnderstood("its masks are not those that transformers' mask functions make.")
        return attend(module, query, key, value, attention_mask, **kwargs)
    if kwargs.get("position_bias") is not None or attention_mask.dtype != torch.int32:
        raise _NotUnderstood("its attention adds a bias of positions to the scores.")
    is_causal, window = attention_mask[:2].tolist()
    cu_seq_lens = attention_mask[2:]
    longest = int(cu_seq_lens.diff().max())
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
    """The function of the model's own file, for what sdpa lacks: capped scores, sinks, and
    probabilities."""
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()[
            None, None
        ]
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        lowest = torch.finfo(query.dtype).min
        attention_mask = query.new_zeros(attention_mask.shape).masked_fill(~attention_mask, lowest)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    return eager(module, query, key, value, attention_mask, **kwargs)


AttentionInterface.register(NAME, _flat_attention)
AttentionMaskInterface.register(NAME, _flat_mask)

__all__ = ["padding_free"]
