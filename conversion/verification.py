"""Compares a converted model with its source: outputs must be equal for random inputs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding

from hf_roformer_lite import RoFormerLiteForMultipleChoice

from .bart import sines_then_cosines
from .converter import SourceConfig, Tensors
from .registry import find_converter
from .weight_map import ConversionError

# The shape of random inputs. One row of each side has only `NUM_REAL_TOKENS` real tokens.
NUM_ROWS = 3
NUM_TOKENS = 13
NUM_REAL_TOKENS = 7
NUM_SOURCE_TOKENS = 5
OUTPUTS = (
    "last_hidden_state",
    "start_logits",
    "end_logits",
    "pooler_output",
    "logits",
    "prediction_logits",
)


@dataclass(frozen=True)
class Difference:
    """The difference between the two models in one output, over all real tokens.

    `mean` and `maximum` are absolute. `tolerance` is the one of `Converter.tolerances`, multiplied
    by the source's largest number if that is more than 1: rounding errors grow with the numbers,
    and logits of trained models reach 30.
    """

    output: str
    dtype: torch.dtype
    mean: float
    maximum: float
    tolerance: float

    @property
    def is_within(self) -> bool:
        """Whether the difference is at most the tolerance; False for NaN."""
        return self.maximum <= self.tolerance

    def __str__(self) -> str:
        verdict = "within" if self.is_within else "ABOVE"
        return (
            f"{self.output:<18} {str(self.dtype).removeprefix('torch.'):<8} mean {self.mean:.2e}  "
            f"max {self.maximum:.2e}  {verdict} {self.tolerance:.0e}"
        )


@torch.no_grad()
def verify(
    name: str,
    state_dict: Mapping[str, torch.Tensor] | None,
    config_dict: SourceConfig,
    seed: int = 0,
) -> list[Difference]:
    """The differences between the outputs of the source and of its conversion on the same inputs,
    for each output and each dtype of `Converter.tolerances`.

    Args:
        name: The source.
        state_dict: Its weights; None draws random ones.
        config_dict: Its config.
        seed: The seed of random weights and inputs.

    Raises:
        ConversionError: if the checkpoint cannot be converted.
    """
    converter = find_converter(name)
    torch.manual_seed(seed)
    if state_dict is not None:
        state_dict = converter.stored_names.read(state_dict)
        config_dict = converter.complete_config(config_dict, state_dict)
    # Convert first, because our errors are clearer than those of the source's own classes.
    converter.convert(state_dict, config_dict)
    reference = converter.build_reference(config_dict).eval()
    if state_dict is None:
        # Without noise, biases would be zero and gains one, and a rule that lost them would pass.
        for parameter in reference.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        state_dict = dict(reference.state_dict())
    else:
        converter.load_reference(reference, state_dict, config_dict)
    differences = []
    for dtype in converter.tolerances:
        reference = cast_exactly(reference, dtype)
        model = converter.convert(_cast(state_dict, dtype), config_dict)
        inputs = _cast(random_inputs(model, converter.needs_full_rows(model.config), seed), dtype)
        with computing_in(dtype):
            theirs = comparable_outputs(converter.run_reference(reference, inputs), inputs)
        ours = comparable_outputs(model(**inputs), inputs)
        if theirs.keys() != ours.keys():
            raise ConversionError(
                f"the source gives {sorted(theirs)}, its conversion {sorted(ours)}"
            )
        for output, value in theirs.items():
            distance = (ours[output] - value).abs()
            tolerance = converter.tolerances[dtype] * max(1.0, value.abs().max().item())
            differences.append(
                Difference(output, dtype, distance.mean().item(), distance.max().item(), tolerance)
            )
    return differences


def random_inputs(model: PreTrainedModel, full_rows: bool = False, seed: int = 0) -> Tensors:
    """Random arguments of `model`: ids or vectors, with padding on the right of the second row
    unless `full_rows`."""
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    padded_row = None if full_rows else 1
    if config.is_encoder_decoder:
        inputs = _random_side(config.encoder, generator, padded_row)
        target = _random_side(config.decoder, generator, padded_row=2)
        return inputs | {f"decoder_{name}": value for name, value in target.items()}
    inputs = _random_side(config, generator, padded_row)
    if config.type_vocab_size and config.vocab_size:
        shape = inputs["attention_mask"].shape
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, shape, generator=generator)
    if isinstance(model, RoFormerLiteForMultipleChoice):
        # The rows are the choices of one question, (1, choices, L).
        return {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}
    if config.add_cross_attention:
        width = config.cross_attention_hidden_size or config.hidden_size
        shape = (NUM_ROWS, NUM_SOURCE_TOKENS)
        mask = torch.ones(shape, dtype=torch.bool)
        mask[0, 2:] = False
        inputs["encoder_hidden_states"] = torch.randn(*shape, width, generator=generator)
        inputs["encoder_attention_mask"] = mask
    return inputs


def comparable_outputs(output: Any, inputs: Tensors) -> Tensors:
    """The outputs that both models have. Outputs with one entry per token are reduced to the
    entries of real tokens."""
    if isinstance(output, torch.Tensor):
        output = BaseModelOutput(last_hidden_state=output)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    found = {}
    for name in OUTPUTS:
        value = getattr(output, name, None)
        if value is None:
            continue
        if value.ndim == 3 and value.shape[-1] == 1:
            # With one score per token, some classes drop the last dimension.
            value = value.squeeze(-1)
        if name != "pooler_output" and value.shape[: mask.ndim] == mask.shape:
            value = value[mask]
        found[name.removeprefix("prediction_")] = value
    return found


def _random_side(
    stack: PreTrainedConfig, generator: torch.Generator, padded_row: int | None
) -> Tensors:
    """The arguments of one stack. Padding always has the id of padding and real tokens never have
    it, because some models find padding by its id instead of the mask."""
    length = NUM_TOKENS
    if stack.position_embedding_type == "learned":
        length = min(length, stack.max_position_embeddings)
    mask = torch.ones(NUM_ROWS, length, dtype=torch.bool)
    if padded_row is not None:
        mask[padded_row, NUM_REAL_TOKENS:] = False
    if not stack.vocab_size:
        states = torch.randn(NUM_ROWS, length, stack.hidden_size, generator=generator)
        return {"inputs_embeds": states, "attention_mask": mask}
    pad = stack.pad_token_id or 0
    ids = torch.randint(stack.vocab_size - 1, mask.shape, generator=generator)
    return {"input_ids": (ids + (ids >= pad)).masked_fill(~mask, pad), "attention_mask": mask}


def _cast(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> Tensors:
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def cast_exactly(reference: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert `reference` to `dtype`. Sinusoids and frequencies are recomputed, because the stored
    ones have been rounded to float32."""
    reference = reference.to(dtype)
    for module in reference.modules():
        if isinstance(module, RoFormerSinusoidalPositionalEmbedding):
            module.weight.data = sines_then_cosines(*module.weight.shape).to(dtype)
        elif "RotaryEmbedding" in type(module).__name__ and dtype == torch.float64:
            _compute_frequencies(module)
    return reference


def _compute_frequencies(rotary_emb: nn.Module) -> None:
    """Recompute the frequencies of unscaled rotations in the dtype of the module."""
    config = rotary_emb.config
    rope = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    for name, frequencies in rotary_emb.named_buffers():
        # Some models have a set of parameters for each type of layer.
        parameters = rope.get(name.removesuffix("_inv_freq"), rope)
        if "rope_theta" not in parameters or parameters.get("rope_type", "default") != "default":
            continue
        count = len(frequencies)
        exponents = torch.arange(count, dtype=frequencies.dtype) / count
        frequencies.copy_(parameters["rope_theta"] ** -exponents)


@contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """If `dtype` is float64, conversions to float32 give float64 within this context.

    Classes of transformers compute rotations and root-mean-square norms in float32 whatever the
    dtype of the model, so a comparison could not be more exact than float32.
    """
    if dtype != torch.float64:
        yield
        return
    to = torch.Tensor.to

    def doubled(argument: Any) -> Any:
        return dtype if argument is torch.float32 else argument

    def to_double(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs = {name: doubled(argument) for name, argument in kwargs.items()}
        return to(tensor, *map(doubled, args), **kwargs)

    with (
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
        mock.patch.object(torch.Tensor, "to", to_double),
    ):
        yield
