"""The trial of a model: a copy computes random rows before and after it becomes padding-free.

The copy shares the weights and has no hooks, so that no other code gets these rows, some of which
contain NaN.
"""

import copy
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES as CHOICES,
)
from transformers.utils import logging

from .heads import IGNORE_INDEX, LANGUAGE_HEADS
from .layers import parameters_of
from .plan import LAYER_OUTPUTS, Plan, planned

logger = logging.get_logger(__name__)

MAX_DIFFERENCE = 5e-5  # Between two ways to compute the same outputs in float32.
MAX_HALF_PRECISION_DIFFERENCE = 5e-2
# The numbers of tokens of the rows of a trial. Two are equal, because attention batches documents
# of one length. Up to eight queries, sdpa would use another kernel on Apple GPUs.
LENGTHS = torch.tensor([[13], [10], [10]], device="cpu")
LENGTH = 13

Batch = dict[str, torch.Tensor]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class PaddingFreeError(ValueError):
    """A model can't be padding-free. The message says which model, and why."""

    def __init__(self, module: nn.Module, reason: str):
        super().__init__(f"{type(module).__name__} can't be padding-free: {reason}")


@contextmanager
def explained(module: nn.Module, reason: str) -> Iterator[None]:
    """Raise any error of other code as a `PaddingFreeError` with this reason.

    The code of a model may raise any exception. An error that this package raises has its own
    reason, or is a fault of its own, and stays what it is.
    """
    try:
        yield
    except Exception as error:
        # torch raises the errors of the code that calls it.
        *_, frame = (
            frame
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if not frame.f_globals["__name__"].startswith("torch.")
        )
        is_own = frame.f_globals["__name__"].startswith(f"{__package__}.")
        # By this method, `FlatMask` raises an error where other code takes it for a tensor.
        if is_own and frame.f_code.co_name != "__torch_function__":
            raise
        raise PaddingFreeError(module, f"{reason} ({error or type(error).__name__}).") from error


def copy_for_trial(module: ModuleT) -> ModuleT:
    """A copy in evaluation mode, with the same parameters and without hooks. It shares the hooks
    with which accelerate loads offloaded weights."""
    known: dict[int, Any] = {id(weight): weight for weight in module.parameters()}
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) or name == "_hf_hook":
                known[id(value)] = value
            elif name.endswith("_hooks") and isinstance(value, dict):
                known[id(value)] = OrderedDict()
    with explained(module, "it can't be copied"):  # Shards, such as FSDP2's, raise an error.
        copied = copy.deepcopy(module, known).eval()
    for part in copied.modules():
        config = getattr(part, "config", None)
        for name in LAYER_OUTPUTS:
            if getattr(config, name, False):  # With these, layers would compute padding.
                setattr(config, name, False)
    return copied


def random_batches(model: PreTrainedModel) -> list[Batch]:
    """Random rows, padded on the right, on the left, and not at all."""
    config = model.config.get_text_config()
    padding = getattr(config, "pad_token_id", None) or 0
    generator = torch.Generator(device="cpu").manual_seed(0)
    shape = (len(LENGTHS), LENGTH)
    ids = torch.randint(config.vocab_size - 1, shape, generator=generator, device="cpu")
    ids += ids >= padding  # No token is the padding token.
    places = torch.arange(LENGTH, device="cpu")
    # Where weights are offloaded, the hooks of accelerate move the inputs.
    device = "cpu" if model.device.type == "meta" else model.device
    batches = []
    on_the_right = places < LENGTHS
    for is_real in (on_the_right, on_the_right.flip(1), torch.ones_like(on_the_right)):
        batch = {"input_ids": ids.where(is_real, padding), "attention_mask": is_real.long()}
        batches.append({name: value.to(device) for name, value in batch.items()})
    return batches


class Trial:
    """The outputs of a module for random rows, before its models become padding-free and after.

    Args:
        module: A copy in evaluation mode.
        call: Returns the outputs of the module for a batch, by name.
    """

    def __init__(
        self, module: ModuleT, call: Callable[[ModuleT, Batch], Batch], batches: list[Batch]
    ):
        self.module = module
        self.run = partial(call, module)
        self.batches = batches
        self.outputs = [self.run(batch) for batch in batches]

    def compare(self) -> None:
        """Compare the outputs of padding-free models with those from before.

        Raises:
            PaddingFreeError: if they differ.
        """
        for batch, expected in zip(self.batches, self.outputs, strict=True):
            check_outputs(self.module, self.run(batch), expected, batch["attention_mask"] != 0)


def trials_of(model: PreTrainedModel, head: str, batches: list[Batch]) -> list[Trial]:
    """The trials of the base model and, if it takes rows alone, of the head.

    Args:
        head: The key in `HEADS` of the model's class.
    """
    trials = [Trial(model, run_base, batches)]
    try:
        trials.append(Trial(model, partial(run_head, head=head), batches))
    except Exception as error:  # The code of a head may raise any exception.
        # Some heads need other inputs as well, such as images.
        logger.warning_once(
            f"padding_free: the head of {type(model).__name__} could not be tried ({error}). "
            "The head must not read states at padding."
        )
    return trials


def inputs_of(model: PreTrainedModel, batch: Batch) -> Batch:
    inputs = dict(batch)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch["input_ids"]
        inputs["decoder_attention_mask"] = batch["attention_mask"]
    return inputs


def run_base(model: PreTrainedModel, batch: Batch) -> Batch:
    """The tensors that the base model returns, by name."""
    base: nn.Module = model.base_model
    return tensors_of(base(**inputs_of(model, batch), return_dict=True))


def run_head(model: PreTrainedModel, batch: Batch, head: str) -> Batch:
    """The outputs of the head, with the loss of a language model."""
    inputs = inputs_of(model, batch)
    if head in LANGUAGE_HEADS:
        ids = batch["input_ids"]
        # A causal head predicts the first token after padding from padding, so it gets no label
        # (there are three tokens of padding).
        is_chosen = torch.arange(LENGTH, device=ids.device) % 3 != 0
        is_labelled = is_chosen & batch["attention_mask"].bool()
        inputs["labels"] = ids.where(is_labelled, IGNORE_INDEX)
    elif head != "token":  # All other heads read one position of the decoder.
        inputs = batch
    if type(model).__name__ in CHOICES.values():
        inputs = {name: value.unsqueeze(0) for name, value in inputs.items()}
    return tensors_of(model(**inputs, return_dict=True))


def run_module(module: nn.Module, batch: Batch) -> Batch:
    """The tensors that a module around models returns, by name. Modules of sentence-transformers
    take the arguments as one dictionary."""
    takes_dictionary = len(parameters_of(module)) == 1
    return tensors_of(module(dict(batch)) if takes_dictionary else module(**batch))


def ignores_first_label(model: PreTrainedModel, batch: Batch) -> bool:
    """Whether a language model ignores the label of the first token, because no token precedes
    it."""
    inputs = {name: value[:1, :1] for name, value in inputs_of(model, batch).items()}
    loss = model(**inputs, labels=inputs["input_ids"], return_dict=True)["loss"]
    return not bool(loss > 0)  # Without a label it is NaN or 0.


def check_layers(model: PreTrainedModel) -> None:
    """Check that the layers compute flat rows, in which the rows of the batch stay apart.

    The states of row 1 must stay finite when all other rows are NaN. This needs no tolerance,
    which would hide a small leak in half precision.

    Raises:
        PaddingFreeError: otherwise.
    """
    batch = random_batches(model)[0]

    def spoil(module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        is_other = torch.arange(len(LENGTHS), device=output.device)[:, None, None] != 1
        return output.masked_fill(is_other, float("nan"))

    is_real = batch["attention_mask"].cpu() != 0
    plan = Plan(base=model.base_model, is_real=is_real)
    handle = model.get_input_embeddings().register_forward_hook(spoil)
    with planned(plan, mask=batch["attention_mask"]):
        outputs = run_base(model, batch).values()
    handle.remove()
    if not any(tokens.tables for tokens in plan.found):
        reason = "none of its layers takes a mask from transformers' mask functions."
        raise PaddingFreeError(model, reason)
    for states in outputs:
        has_tokens = states.shape[:2] == is_real.shape
        if has_tokens and not bool(states[1][is_real[1]].isfinite().all()):
            raise PaddingFreeError(model, "its sequences interact outside attention.")


def tensors_of(output: Any) -> Batch:
    """The tensors of an output, by name or number."""
    if isinstance(output, torch.Tensor):
        output = (output,)
    pairs = output.items() if isinstance(output, dict) else enumerate(output)
    return {str(name): value for name, value in pairs if isinstance(value, torch.Tensor)}


def check_outputs(module: nn.Module, found: Batch, expected: Batch, is_real: torch.Tensor) -> None:
    """Compare outputs at real tokens, relative to the largest value.

    Raises:
        PaddingFreeError: if they differ too much.
    """
    dtypes = {weight.dtype for weight in module.parameters()}
    is_exact = dtypes <= {torch.float32, torch.float64}
    limit = MAX_DIFFERENCE if is_exact else MAX_HALF_PRECISION_DIFFERENCE
    for name, value in expected.items():
        other = found.get(name)
        if other is None or other.shape != value.shape:
            raise PaddingFreeError(module, f"its output {name} is missing or has another shape.")
        pair = torch.stack((value, other)).float()
        if value.ndim == 3:  # Virtual tokens may precede those of the batch.
            pair = pair[:, :, -is_real.shape[1] :]
        if pair.shape[1:3] == is_real.shape:
            pair = pair[:, is_real]
        size = pair[0].abs().max().clamp(min=1)
        difference = float(pair.diff(dim=0).abs().max() / size)
        if not difference <= limit:  # It may be NaN.
            raise PaddingFreeError(
                module,
                f"its outputs differ by {difference:.1e} of their size when padding is removed: "
                "they depend on padding or on other sequences.",
            )
