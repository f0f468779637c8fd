"""Tiny models before and after `padding_free`, batches for them, and what is compared."""

import copy
from functools import partial
from typing import Any

import torch
import transformers
from conftest import Batch, data_beside, gradients, mask_of, random_ids
from tiny_models import SIZES, tiny_model
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from hf_roformer_lite import padding_free

VOCAB = SIZES["vocab_size"]
MODELS: dict[str, str] = data_beside(__file__)
assert_close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-5)
# Answers for models that find them in four texts.
PLACES = {
    "start_positions": torch.tensor([3, 2, 0, 1]),
    "end_positions": torch.tensor([5, 3, 0, 2]),
}


def build(name: str, **fields: Any) -> PreTrainedModel:
    """A tiny model. `name` is a key of `MODELS` or the name of a class of transformers."""
    model_class = getattr(transformers, MODELS.get(name, name))
    return tiny_model(model_class.config_class.model_type, model_class, **fields)


def pair(name: str, **fields: Any) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A tiny stock model and its padding-free copy."""
    return paired(build(name, **fields))


def paired(stock: PreTrainedModel) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A stock model and its padding-free copy."""
    return stock, padding_free(copy.deepcopy(stock))


def batch_for(name: str, side: str = "right", lengths: tuple[int, ...] = (12, 7, 1, 4)) -> Batch:
    """A batch of random ids with labels in the form that the head of the model `name` takes."""
    generator = torch.Generator().manual_seed(len(name))
    mask = mask_of(lengths)
    shape = mask.shape
    if side == "left":
        mask = mask.flip(1)
    ids = torch.randint(5, VOCAB, shape, generator=generator)
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    is_labelled = mask.bool() & (torch.rand(shape, generator=generator) < 0.6)
    # A causal model would predict the first token after padding on the left from padding, so this
    # token gets no label.
    is_labelled[:, 1:] &= mask[:, :-1].bool()
    is_labelled[:, 0] &= side == "right"
    if "tokens" in name:
        batch["labels"] = (ids % 2).masked_fill(~is_labelled, -100)
    elif "classes" in name:
        batch["labels"] = torch.arange(len(lengths)) % 2
    else:
        batch["labels"] = ids.masked_fill(~is_labelled, -100)
    return batch


def inputs_for(name: str, *args: Any, **kwargs: Any) -> Batch:
    """The batch of `batch_for` without labels."""
    batch = batch_for(name, *args, **kwargs)
    del batch["labels"]
    return batch


def assert_same_gradients(free: torch.nn.Module, stock: torch.nn.Module, batch: Batch) -> None:
    """Compare the loss in training and all gradients."""
    assert_close(gradients(free, batch), gradients(stock, batch))


def batch_of_pairs() -> Batch:
    """A batch for encoder–decoders, whose sources and targets have different lengths."""
    batch = batch_for("bert mlm")
    labels = random_ids(4, 12, seed=3)
    batch["labels"] = labels.masked_fill(mask_of((3, 9, 12, 5)) == 0, -100)
    return batch


class CountedTokens(TorchFunctionMode):
    """Records how many tokens the first linear map of a model computes.

    A hook cannot count them, because layers compute padding when there are hooks within them."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        maps = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
        self.weight = next(part for part in model.modules() if isinstance(part, maps)).weight
        self.numbers: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        is_map = func in (torch.nn.functional.linear, torch.Tensor.matmul)
        if is_map and args[1].data_ptr() == self.weight.data_ptr():
            self.numbers.append(args[0][..., 0].numel())
        return func(*args, **(kwargs or {}))


def real_outputs(model: torch.nn.Module, inputs: Batch) -> dict[str, list[torch.Tensor]]:
    """The tensors of the output of a model, without the values that belong to padding.

    An output has several tensors if it has one for each layer."""
    real = torch.ones(4, 12, dtype=torch.bool)
    if "attention_mask" in inputs:
        real = inputs["attention_mask"].bool()
    if real.ndim == 4:
        real = real.any(-2)[:, 0]
    outputs = {}
    for name, value in model(**inputs).items():
        if isinstance(value, torch.Tensor):
            value = (value,)
        # This leaves out caches, which a padding-free model does not make for labelled batches.
        if isinstance(value, tuple):
            outputs[name] = [each[real] if each.shape[:2] == real.shape else each for each in value]
    return outputs


def assert_same_outputs(free: torch.nn.Module, stock: torch.nn.Module, inputs: Batch) -> None:
    assert_close(real_outputs(free, inputs), real_outputs(stock, inputs))
