"""Comparison of a converted model with its source: equal numbers for random input and for text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roformer_lite.errors import InputError

from .converter import Converter, SourceConfig, Tensors
from .registry import find_converter


@dataclass(frozen=True)
class Difference:
    """How much one output of the two models differs over all real tokens.

    `inputs` is `random` or `real` (lines of text), `output` the name of the output; `mean` and `maximum` are absolute
    differences. `tolerance` is what `Converter.tolerances` allows, times the source's largest number where that is
    more than 1: rounding errors grow with the numbers, and the logits of trained models reach 30 and more.
    """

    inputs: str
    output: str
    dtype: torch.dtype
    mean: float
    maximum: float
    tolerance: float

    @property
    def is_within(self) -> bool:
        return self.maximum <= self.tolerance  # False for NaN

    def __str__(self) -> str:
        verdict = "within" if self.is_within else "ABOVE"
        return (
            f"{self.inputs:<7} {self.output:<18} {str(self.dtype).removeprefix('torch.'):<8} mean {self.mean:.2e}  "
            f"max {self.maximum:.2e}  {verdict} {self.tolerance:.0e}"
        )


@torch.no_grad()
def verify(
    name: str,
    state_dict: Mapping[str, torch.Tensor] | None,
    config_dict: SourceConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
    lines: Sequence[str] = (),
    seed: int = 0,
) -> list[Difference]:
    """Run the source and its conversion on the same inputs, in each dtype of `Converter.tolerances`.

    Args:
        name: The source.
        state_dict: Its weights; None draws random ones.
        config_dict: Its config.
        tokenizer, lines: For sources that are classes of transformers, text to run in addition to random ids.
        seed: Of random weights and inputs.

    Returns:
        One difference for each kind of input, output and dtype.
    """
    converter = find_converter(name)
    torch.manual_seed(seed)
    if state_dict is not None:
        state_dict = converter.read(state_dict)
        config_dict = converter.complete_config(config_dict, state_dict)
    converter.convert(None, config_dict)  # a clear error before the source's own classes fail
    reference = converter.build_reference(config_dict).eval()
    if state_dict is None:
        for parameter in reference.parameters():  # so that no bias is zero and no gain is one
            parameter += 0.1 * torch.randn_like(parameter)
        state_dict = converter.reference_state_dict(reference)
    else:
        converter.load_reference(reference, state_dict, config_dict)
    differences = []
    for dtype in converter.tolerances:
        weights = _cast(state_dict, dtype)
        reference = converter.cast_reference(reference, dtype)
        model = converter.convert(weights, config_dict)
        batches = {"random": converter.random_inputs(model, torch.Generator().manual_seed(seed))}
        if tokenizer is not None and lines:
            batches["real"] = converter.text_inputs(model, tokenizer, lines)
        for kind, inputs in batches.items():
            differences += _compare(converter, reference, model, kind, _cast(inputs, dtype), dtype)
    return differences


def _compare(
    converter: Converter,
    reference: torch.nn.Module,
    model: PreTrainedModel,
    kind: str,
    inputs: Tensors,
    dtype: torch.dtype,
) -> list[Difference]:
    theirs, ours = converter.run_reference(reference, inputs), converter.run_ours(model, inputs)
    if theirs.keys() != ours.keys():
        raise InputError(f"the source gives {sorted(theirs)}, its conversion {sorted(ours)}")
    found = []
    for output, value in theirs.items():
        distance = (ours[output] - value).abs()
        mean, maximum = distance.mean().item(), distance.max().item()
        tolerance = converter.tolerances[dtype] * max(1.0, value.abs().max().item())
        found.append(Difference(kind, output, dtype, mean, maximum, tolerance))
    return found


def _cast(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Tensors:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
