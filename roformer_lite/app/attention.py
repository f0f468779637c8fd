"""Where a model looks: the attention probabilities of one text, and a table that shows them."""

from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ..commands.predictor import Predictor
from ..errors import InputError
from ..training.tasks import CausalLMTask, TagTask
from ..training.tasks.answers import generation_limits
from ..training.tasks.tag import encode_words

MOST_TOKENS = 512  # of a text; the probabilities of all layers and heads are in memory at once
SHOWN_TOKENS = 64  # in a row and in a column; more cannot be read on a page
_COLOUR = "230, 97, 0"  # visible on white and on black, also for those who do not tell red from green


@dataclass(frozen=True)
class AttentionMaps:
    """The probabilities of one kind of attention.

    Args:
        name: Whose attention it is.
        rows: The tokens that look.
        columns: The tokens that they look at.
        probabilities: `(layers, heads, rows, columns)`; each row sums to 1 unless columns were left out.
        lengths: How many tokens look, and at how many; the first `SHOWN_TOKENS` of both are here.
    """

    name: str
    rows: list[str]
    columns: list[str]
    probabilities: torch.Tensor
    lengths: tuple[int, int]


def attention_maps(predictor: Predictor, parts: list[str], options: dict[str, Any]) -> list[AttentionMaps]:
    """The attention of a model that reads a text or a pair of texts, and writes its answer if it writes one.

    Attention functions such as sdpa keep no probabilities, so the model computes with `eager` for the moment.

    Args:
        predictor: With a model of torch.
        parts: One text, or two.
        options: Of `predict`, for what is generated.

    Raises:
        InputError: when the text is longer than `MOST_TOKENS`.
    """
    saved = predictor.saved
    model = next(module for module in saved.model.modules() if isinstance(module, PreTrainedModel))
    usual = model.config._attn_implementation
    with torch.inference_mode():
        inputs = _encode(predictor, parts, options).to(model.device)
        length = inputs["input_ids"].shape[1]
        if length > MOST_TOKENS:
            raise InputError(f"a text of {length} tokens; attention is shown for {MOST_TOKENS} at most")
        written = None
        if model.config.is_encoder_decoder:
            written = model.generate(**inputs, **generation_limits(options))[:1]
            inputs["decoder_input_ids"] = written[:, :-1]  # what the decoder read when it wrote written[:, 1:]
        model.set_attn_implementation("eager")
        try:
            outputs = model(**inputs, output_attentions=True)
        finally:
            model.set_attn_implementation(usual)
    source = _texts_of(saved.tokenizer, inputs["input_ids"][0])
    if written is None:
        return [_maps("self-attention", source, source, outputs.attentions)]
    answer = _texts_of(saved.tokenizer, written[0])
    steps = [f"{read} → {wrote}" for read, wrote in zip(answer[:-1], answer[1:], strict=True)]
    return [
        _maps("cross-attention", steps, source, outputs.cross_attentions),
        _maps("encoder", source, source, outputs.encoder_attentions),
        _maps("decoder", steps, answer[:-1], outputs.decoder_attentions),
    ]


def attention_table(maps: AttentionMaps, layer: int, head: int | None) -> str:
    """One map as a table of HTML, the darker the more a row looks at a column. The largest probability has the full
    colour: in a long text all of them are small.

    Args:
        maps: Of which one layer is shown.
        layer: From 0.
        head: From 0; None is the mean of all heads.

    Raises:
        InputError: when there is no such head.
    """
    heads = maps.probabilities.shape[1]
    if head is not None and head >= heads:
        raise InputError(f"head {head + 1}: the {maps.name} has {heads} heads")
    shown = maps.probabilities[layer].mean(0) if head is None else maps.probabilities[layer, head]
    top = "".join(f'<th scope="col"><span>{escape(token)}</span></th>' for token in maps.columns)
    largest = float(shown.max())
    lines = [
        f'<tr><th scope="row">{escape(token)}</th>{"".join(_cell(number, largest) for number in numbers)}</tr>'
        for token, numbers in zip(maps.rows, shown.tolist(), strict=True)
    ]
    note = f"The darkest cell is {largest:.2f}; a row sums to 1"
    if maps.lengths[1] > SHOWN_TOKENS:
        note += f" over all {maps.lengths[1]} columns"
    note += "."
    if max(maps.lengths) > SHOWN_TOKENS:
        note += f" The first {SHOWN_TOKENS} tokens are shown."
    table = f'<table class="attention"><tr><td></td>{top}</tr>{"".join(lines)}</table>'
    return f'<div class="attention">{table}</div><p>{note}</p>'


def _cell(probability: float, largest: float) -> str:
    return f'<td style="background: rgba({_COLOUR}, {probability / largest:.3f})" title="{probability:.3f}"></td>'


def _encode(predictor: Predictor, parts: list[str], options: dict[str, Any]) -> BatchEncoding:
    """What the model reads, as the task encodes it; of a language model also what it has written."""
    saved, tokenizer = predictor.saved, predictor.saved.tokenizer
    if issubclass(predictor.task, TagTask):
        words = TagTask.tokens_of(saved, parts[0])
        return encode_words(tokenizer, [words], tokenizer.model_max_length).convert_to_tensors("pt")
    if issubclass(predictor.task, CausalLMTask):
        ids, _ = CausalLMTask.continue_texts(saved, parts, options)
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return tokenizer(*parts, truncation=True, return_tensors="pt", verbose=False)


def _texts_of(tokenizer: PreTrainedTokenizerBase, ids: torch.Tensor) -> list[str]:
    """The text of every token, a space as a dot; a byte-level token that is part of a character shows as �."""
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    return [special.get(token) or tokenizer.decode([token]).replace(" ", "·") for token in ids.tolist()]


def _maps(name: str, rows: list[str], columns: list[str], layers: tuple[torch.Tensor, ...]) -> AttentionMaps:
    probabilities = torch.stack([layer[0, :, :SHOWN_TOKENS, :SHOWN_TOKENS].float().cpu() for layer in layers])
    return AttentionMaps(name, rows[:SHOWN_TOKENS], columns[:SHOWN_TOKENS], probabilities, (len(rows), len(columns)))
