"""Inputs on which a class of transformers and its conversion are compared, and what of their outputs is compared."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite import RoFormerLiteForMultipleChoice

from .converter import Tensors

_SHAPE = (3, 13)
_OUTPUTS = ("last_hidden_state", "start_logits", "end_logits", "pooler_output", "logits", "prediction_logits")


def random_inputs(model: PreTrainedModel, generator: torch.Generator, needs_full_rows: bool = False) -> Tensors:
    """Random ids, with padding on the right in the second row unless every row must be full by the last position."""
    config = model.config
    if config.is_encoder_decoder:
        inputs = _random_ids(config.encoder.vocab_size, config.pad_token_id, generator, padded_row=1)
        target = _random_ids(config.decoder.vocab_size, config.pad_token_id, generator, padded_row=2)
        return inputs | {f"decoder_{name}": value for name, value in target.items()}
    is_full = needs_full_rows and config.classifier_pooling == "last"
    inputs = _random_ids(config.vocab_size, config.pad_token_id, generator, None if is_full else 1)
    if config.type_vocab_size:
        inputs["token_type_ids"] = torch.randint(config.type_vocab_size, _SHAPE, generator=generator)
    return _for_model(model, inputs, generator)


def inputs_of_text(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, lines: Sequence[str], needs_full_rows: bool = False
) -> Tensors:
    """Lines of text as ids; a pair reads every line on both sides."""
    config = model.config
    stack = config.get_text_config(decoder=True) if not config.is_encoder_decoder else config.encoder
    is_full = needs_full_rows and stack.classifier_pooling == "last"
    encoded = tokenizer(
        list(lines[:1] if is_full else lines),
        padding=True,
        truncation=True,
        max_length=min(stack.max_position_embeddings, 512),
        return_tensors="pt",
    )
    inputs = {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"].bool()}
    if config.is_encoder_decoder:
        return inputs | {f"decoder_{name}": value for name, value in inputs.items()}
    if stack.type_vocab_size and "token_type_ids" in encoded:
        inputs["token_type_ids"] = encoded["token_type_ids"]
    return _for_model(model, inputs, torch.Generator().manual_seed(0))


def comparable_outputs(output: Any, inputs: Tensors) -> Tensors:
    """The outputs that both models have; of those with one entry per token only the entries of real tokens."""
    mask, found = inputs.get("decoder_attention_mask", inputs["attention_mask"]), {}
    for name in _OUTPUTS:
        value = getattr(output, name, None)
        if value is not None:
            if value.ndim == 3 and value.shape[-1] == 1:  # one score for each token
                value = value.squeeze(-1)
            is_by_token = name != "pooler_output" and value.shape[: mask.ndim] == mask.shape
            found[name.removeprefix("prediction_")] = value[mask] if is_by_token else value
    return found


def _random_ids(vocab_size: int, pad: int | None, generator: torch.Generator, padded_row: int | None) -> Tensors:
    """Ids that are never those of padding, which some models take for a sign that nothing is there; where the mask
    says so they always are."""
    pad = 0 if pad is None else pad
    ids = torch.randint(vocab_size - 1, _SHAPE, generator=generator)
    ids, mask = ids + (ids >= pad), torch.ones(_SHAPE, dtype=torch.bool)
    if padded_row is not None:
        mask[padded_row, 7:] = False
    return {"input_ids": ids.masked_fill(~mask, pad), "attention_mask": mask}


def _for_model(model: PreTrainedModel, inputs: Tensors, generator: torch.Generator) -> Tensors:
    if isinstance(model, RoFormerLiteForMultipleChoice):
        return {name: tensor.unsqueeze(0) for name, tensor in inputs.items()}  # (1, choices, L)
    if model.config.add_cross_attention:
        rows = len(inputs["input_ids"])
        inputs["encoder_hidden_states"] = torch.randn(rows, 5, model.config.hidden_size, generator=generator)
    return inputs
