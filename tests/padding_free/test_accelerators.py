"""After `padding_free`, models compute the same on an accelerator, with about as many kernels.

On a GPU the time to launch kernels often exceeds that to run them, so a layer must not have more of
them for each length in the batch.
"""

import pytest
import torch
from comparisons import MODELS, assert_close, batch_for, build, gradients, paired
from conftest import Batch
from pretended_device import DEVICE, pretended_device
from transformers import PreTrainedModel

from hf_roformer_lite import padding_free

NAMES = ("bert mlm", "bert classes", "llama", "mpnet mlm", "t5", "bart")
ENCODER_DECODERS = {"t5": "T5ForConditionalGeneration", "bart": "BartForConditionalGeneration"}
# The fields that have the number of layers in at least one of these models.
DEPTHS = ("num_hidden_layers", "num_layers", "num_decoder_layers")
DEPTHS += ("encoder_layers", "decoder_layers")
FEW_LENGTHS = (24, 12, 6) * 4
MANY_LENGTHS = tuple(range(2, 26, 2))
MAX_RATIO = 1.25
MAX_WAITS = 2


def make(name: str, depth: int = 2) -> PreTrainedModel:
    class_name = (MODELS | ENCODER_DECODERS)[name]
    return build(class_name, use_cache=False, **dict.fromkeys(DEPTHS, depth))


def make_batch(name: str, lengths: tuple[int, ...]) -> Batch:
    """A batch with labels. The targets of encoder–decoders are the rows in reverse order."""
    batch = batch_for(name, lengths=lengths)
    if name in ENCODER_DECODERS:
        batch["decoder_input_ids"] = batch["input_ids"].flip(0)
        batch["decoder_attention_mask"] = batch["attention_mask"].flip(0)
        batch["labels"] = batch["labels"].flip(0)
    return batch


def move(model: PreTrainedModel, batch: Batch) -> tuple[PreTrainedModel, Batch]:
    """The model, in place, and a copy of the batch on the pretended device."""
    model.to(DEVICE)
    # On devices that torch does not know, `to` makes several weights of a shared one.
    model.tie_weights()
    return model, {name: value.to(DEVICE) for name, value in batch.items()}


def real_logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """The logits of real tokens or of rows, on the CPU."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    with torch.no_grad():
        logits = model.eval()(**inputs).logits.to("cpu")
    if logits.ndim == 2:
        return logits
    mask = batch.get("decoder_attention_mask", batch["attention_mask"])
    return logits[mask.to("cpu") != 0]


def kernels_of_a_layer(name: str, lengths: tuple[int, ...], is_free: bool) -> int:
    """The kernels of a layer in a training step, forward and backward. In an encoder–decoder, a
    layer of each side is counted."""
    numbers = []
    for depth in (2, 3):
        model = make(name, depth=depth)
        if is_free:
            padding_free(model)
        with pretended_device() as device:
            model, batch = move(model, make_batch(name, lengths))
            device.kernels.clear()
            gradients(model, batch)
            numbers.append(device.kernels.total())
    return numbers[1] - numbers[0]


def test_the_pretended_device_counts_waits_and_refuses_other_devices():
    with pretended_device() as device:
        values = torch.tensor([1.0, 0.0, 2.0, 0.0], device=DEVICE)
        values.masked_fill(values > 0, 1)
        assert device.waits.total() == 0
        values[values > 0].tolist()
        assert device.waits.total() == 2
        with pytest.raises(RuntimeError, match="on lazy:0 and on cpu"):
            values + torch.ones(4)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_those_of_the_stock_model(name):
    stock, free = paired(make(name))
    batch = make_batch(name, lengths=(7, 24, 1, 7, 12))
    expected = (real_logits(stock, batch), *gradients(stock, batch))
    with pretended_device():
        free, batch = move(free, batch)
        found = (real_logits(free, batch), *gradients(free, batch))
        found = tuple(value.to("cpu") for value in found)
    assert_close(found, expected)


def test_a_model_on_an_accelerator_becomes_padding_free():
    """The rows with which it is tried are on the device, too."""
    stock = make("bert mlm")
    batch = make_batch("bert mlm", lengths=(7, 24, 1))
    expected = real_logits(stock, batch)
    with pretended_device():
        model, batch = move(stock, batch)
        found = real_logits(padding_free(model), batch)
    assert_close(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_a_layer(name):
    stock = kernels_of_a_layer(name, FEW_LENGTHS, is_free=False)
    few = kernels_of_a_layer(name, FEW_LENGTHS, is_free=True)
    many = kernels_of_a_layer(name, MANY_LENGTHS, is_free=True)
    assert few == many
    assert many <= MAX_RATIO * stock


@pytest.mark.parametrize("name", ["bert mlm", "bert classes"])
def test_the_host_seldom_waits_for_the_device(name):
    free = padding_free(make(name))
    with pretended_device() as device:
        free, batch = move(free, make_batch(name, MANY_LENGTHS))
        del batch["labels"]
        device.waits.clear()
        with torch.no_grad():
            free(**batch)
        waits = device.waits
    assert waits.total() <= MAX_WAITS, waits
