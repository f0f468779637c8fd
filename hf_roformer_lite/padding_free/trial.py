"""The trial of a model: a copy computes random rows before and after it becomes padding-free.

The copy shares the weights and has no hooks, so that no other code gets these rows, some of which
contain NaN. It keeps only the first layers, up to one of each kind.
"""

import copy
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES as CHOICES,
)
from transformers.utils import logging

from .attention import APPLE
from .inputs import IGNORE_INDEX, Switch
from .layers import LAYER_OUTPUTS, flat_mask_in, layers_of
from .masks import FlatMask

logger = logging.get_logger(__name__)

MAX_DIFFERENCE = 5e-5  # Between two ways to compute the same outputs in float32.
MAX_HALF_PRECISION_DIFFERENCE = 5e-2
# A smaller change of states, relative to their size, counts as rounding.
MIN_DEPENDENCE = 1e-5
LANGUAGE_HEADS = ("seq2seq", "causal", "masked")  # The keys of `HEADS` that are language models.
# Fields that hold the index of a layer.
INDEX_NAMES = ("layer_idx", "layer_id", "layer_number", "layer_index")

Batch = dict[str, torch.Tensor]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copy_for_trial(module: ModuleT) -> ModuleT:
    """A copy in evaluation mode, with the same parameters and without hooks."""
    known: dict[int, Any] = {}
    for part in module.modules():
        for name, value in (*vars(part).items(), *part._parameters.items()):
            if isinstance(value, torch.Tensor):
                known[id(value)] = value
            elif name.endswith("_hooks") and isinstance(value, dict):
                known[id(value)] = OrderedDict()
    copied = copy.deepcopy(module, known).eval()
    for part in copied.modules():
        config = getattr(part, "config", None)
        for name in LAYER_OUTPUTS:
            if getattr(config, name, False):  # With these, layers would compute padding.
                setattr(config, name, False)
    return copied


def shorten(model: nn.Module) -> None:
    """Keep the first layers of each list, up to one of each kind."""
    layers = set(layers_of(model))
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    for part in lists:
        if layers.isdisjoint(part):
            continue
        kinds = [kind_of(layer) for layer in part]
        del part[max(map(kinds.index, kinds)) + 1 :]


def kind_of(layer: nn.Module) -> list[Any]:
    """A description of a layer that is equal for layers that compute in the same way."""
    kind: list[Any] = []
    for name, module in layer.named_modules():
        fields = [
            (key, value)
            for key, value in vars(module).items()
            if isinstance(value, bool | int | float | str) and key not in INDEX_NAMES
        ]
        weights = [key for key, weight in module._parameters.items() if weight is not None]
        kind += [name, type(module), fields, weights]
    return kind


def random_batches(model: PreTrainedModel) -> list[Batch]:
    """Random rows with labels, padded on the right, on the left, and not at all."""
    config = model.config.get_text_config()
    lengths = torch.tensor([7, 5, 3], device="cpu")
    if model.device.type == APPLE:
        lengths += 8  # There, other kernels compute eight queries or fewer.
    generator = torch.Generator(device="cpu").manual_seed(0)
    shape = (len(lengths), int(lengths[0]))
    ids = torch.randint(config.vocab_size, shape, generator=generator, device="cpu")
    padding = getattr(config, "pad_token_id", None) or 0
    ids[ids == padding] = (padding + 1) % config.vocab_size
    mask_token = getattr(config, "mask_token_id", None) or 0
    if 0 < mask_token < config.vocab_size:
        ids[0, 3] = mask_token  # Some models count the mask tokens.
    is_labelled = torch.rand(shape, generator=generator, device="cpu") < 0.5
    on_the_right = (torch.arange(shape[1], device="cpu") < lengths[:, None]).long()
    batches = []
    for mask in (on_the_right, on_the_right.flip(1), torch.ones_like(on_the_right)):
        # A causal head would compare a token after padding with the state of padding.
        is_counted = mask * F.pad(mask[:, :-1], pad=(1, 0), value=1) * is_labelled
        batch = {
            "input_ids": ids.where(mask != 0, padding),
            "attention_mask": mask,
            "labels": ids.where(is_counted != 0, IGNORE_INDEX),
        }
        batches.append({name: value.to(model.device) for name, value in batch.items()})
    return batches


class Trial:
    """The outputs of a model for random rows, before it becomes padding-free and after.

    Args:
        model: A copy in evaluation mode.
        head: The key in `HEADS` of its class.
    """

    def __init__(self, model: PreTrainedModel, head: str):
        self.model = model
        self.head = head
        try:
            self.batches = random_batches(model)
            self.outputs = [self.outputs_of(batch) for batch in self.batches]
        except Exception as error:
            raise ValueError(f"it does not take rows of token ids alone ({error}).") from error

    def inputs_of(self, batch: Batch) -> Batch:
        inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        if self.model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = batch["input_ids"]
            inputs["decoder_attention_mask"] = batch["attention_mask"]
        return inputs

    def run_base(self, inputs: Batch) -> Any:
        base: nn.Module = self.model.base_model
        return base(**inputs, return_dict=True)

    def outputs_of(self, batch: Batch) -> Batch:
        """The tensors that the model returns, by name: the outputs of its base model, and the loss
        of a language model or the outputs of any other head."""
        model = self.model
        inputs = self.inputs_of(batch)
        outputs = {f"base.{name}": value for name, value in self.run_base(inputs).items()}
        if self.head in LANGUAGE_HEADS:
            model.training = True  # The parts stay in evaluation mode, so there is no dropout.
            try:
                outputs["loss"] = model(**inputs, labels=batch["labels"], return_dict=True)["loss"]
            finally:
                model.training = False
        else:
            if self.head != "token":  # All other heads read one position of the decoder.
                inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
            if type(model).__name__ in CHOICES.values():
                inputs = {name: value.unsqueeze(0) for name, value in inputs.items()}
            try:
                found = model(**inputs, return_dict=True)
                outputs |= {f"head.{name}": value for name, value in found.items()}
            except Exception as error:
                # Some heads need other inputs as well, such as images.
                logger.warning_once(
                    f"padding_free: the head of {type(model).__name__} could not be tried "
                    f"({error}). It must not read states at padding."
                )
        return {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}

    def sees_no_later_token(self, masks: list[FlatMask]) -> bool:
        """Whether no token attends to later ones, in a model that is padding-free already.

        Args:
            masks: Those of its layers.
        """
        patterns = [mask.pattern for mask in masks if mask.pattern is not None]
        if len(patterns) == len(masks) > 0:
            return all(pattern.is_causal for pattern in patterns)
        row = self.inputs_of({name: value[:1] for name, value in self.batches[0].items()})
        return not self.depends(row, places=slice(0, 1), sources=slice(1, None))

    def separates_documents(self) -> bool:
        """Whether no token depends on the document before its own in a packed row."""
        ids = self.batches[-1]["input_ids"][:1]
        half = ids.shape[1] // 2
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        positions = torch.where(positions < half, positions, positions - half)
        row = {"input_ids": ids, "position_ids": positions}
        with suppress(Exception):  # Some models take no positions.
            return not self.depends(row, places=slice(half, None), sources=slice(0, half))
        return False

    def depends(self, row: Batch, places: slice, sources: slice) -> bool:
        """Whether states at `places` change when the tokens at `sources` are replaced.

        Rounding may change them a little: experts compute other tokens together.
        """
        ids = row["input_ids"].clone()
        ids[:, sources] = ids.flip(1)[:, sources].roll(1, dims=1)
        states = self.run_base(row)[0][:, places].float()
        others = self.run_base(row | {"input_ids": ids})[0][:, places].float()
        rounding = max(MIN_DEPENDENCE, torch.finfo(self.model.dtype).eps) * states.abs().mean()
        return bool((states - others).abs().mean() > rounding)

    def shifts_labels(self) -> bool:
        """Whether the label of the first token is ignored, because no token precedes it."""
        batch = {name: value[:1, :2] for name, value in self.batches[0].items()}
        labels = torch.full_like(batch["labels"], IGNORE_INDEX)
        labels[:, 0] = batch["input_ids"][:, 0]
        loss = self.model(**self.inputs_of(batch), labels=labels, return_dict=True)["loss"]
        return not (bool(loss.isfinite()) and float(loss) > 0)

    def compare(self, switches: list[Switch]) -> None:
        """Compare the outputs of the padding-free model with those from before.

        Args:
            switches: Those of the model and its base model, in which `is_causal` is set.

        Raises:
            ValueError: if outputs differ, or if no layer gets a flat row.
        """
        try:
            masks = self.flat_masks()
            for switch in switches:
                switch.is_causal = self.sees_no_later_token(masks)
            found = [self.outputs_of(batch) for batch in self.batches]
            is_apart = self.keeps_rows_apart()
        except Exception as error:
            raise ValueError(
                f"its layers use the mask, the cache or the rows of the batch directly ({error})."
            ) from error
        if not masks and self.head != "question":
            raise ValueError("no layer of it takes a mask that transformers' mask functions make.")
        for batch, outputs, expected in zip(self.batches, found, self.outputs, strict=True):
            check_outputs(outputs, expected, batch["attention_mask"] != 0, self.model.dtype)
        if not is_apart:
            raise ValueError("tokens of different rows meet outside its attention.")

    def flat_masks(self) -> list[FlatMask]:
        """The masks of the layers that get a flat row."""
        found = []

        def look(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append(flat_mask_in(args, kwargs))

        layers = layers_of(self.model)
        with removed([layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers]):
            self.run_base(self.inputs_of(self.batches[0]))
        return [mask for mask in found if mask is not None]

    def keeps_rows_apart(self) -> bool:
        """Whether the states of one row stay finite when all other rows are NaN.

        This test needs no tolerance, which would hide a small leak in half precision.
        """
        batch = self.batches[0]
        kept = len(batch["input_ids"]) // 2

        def spoil(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            is_other = torch.arange(len(batch["input_ids"]), device=output.device)[:, None] != kept
            return output.masked_fill(is_other[..., None], float("nan"))

        with removed([self.model.get_input_embeddings().register_forward_hook(spoil)]):
            states = self.run_base(self.inputs_of(batch))[0]
        is_real = batch["attention_mask"][kept] != 0
        return bool(states[kept][is_real].isfinite().all())


def outputs_of_module(module: nn.Module, batch: Batch) -> Batch:
    """The tensors that a module around models returns for a batch, by name; empty if it takes other
    arguments.

    Modules of sentence-transformers take the arguments as one dictionary.
    """
    if isinstance(module, PreTrainedModel):
        return {}
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    try:
        output = module(**inputs)
    except Exception:
        try:
            output = module(inputs)
        except Exception:
            return {}
    if isinstance(output, torch.Tensor):
        return {"": output}
    pairs = output.items() if isinstance(output, dict) else enumerate(output)
    return {str(name): value for name, value in pairs if isinstance(value, torch.Tensor)}


def tolerance(dtype: torch.dtype) -> float:
    """The largest difference, relative to the largest value, that counts as rounding."""
    is_exact = dtype in (torch.float32, torch.float64)
    return MAX_DIFFERENCE if is_exact else MAX_HALF_PRECISION_DIFFERENCE


def check_outputs(found: Batch, expected: Batch, is_real: torch.Tensor, dtype: torch.dtype) -> None:
    """Compare outputs at real tokens, relative to the largest value.

    Raises:
        ValueError: if they differ too much.
    """
    limit = tolerance(dtype)
    for name, value in expected.items():
        if name not in found:
            raise ValueError(f"its output {name} is missing.")
        other = found[name]
        if other.shape != value.shape:
            raise ValueError(
                f"its output {name} has shape {tuple(other.shape)}, not {tuple(value.shape)}."
            )
        if value.ndim == 3:  # Virtual tokens may precede those of the batch.
            value = value[:, -is_real.shape[1] :]
            other = other[:, -is_real.shape[1] :]
        if value.shape[:2] == is_real.shape:
            value = value[is_real]
            other = other[is_real]
        size = value.float().abs().max().clamp(min=1)
        difference = float((value.float() - other.float()).abs().max() / size)
        if not difference <= limit:  # It may be NaN.
            raise ValueError(
                f"its outputs differ by {difference:.1e} of their size; tokens of other rows or "
                "padding count."
            )


@contextmanager
def removed(handles: list[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end of a context."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
