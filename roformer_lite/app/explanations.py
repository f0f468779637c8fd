"""Why a model answers so: the tokens at which it looked, and the n-grams that speak for a label."""

from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_roformer_lite.model.text_features import RoFormerLiteDocumentScores, places_in

MOST_TOKENS = 512  # of a text; the attention of all layers is in memory at once


@torch.inference_mode()
def attention_to(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> list[tuple[str, float]]:
    """The parts of a text, or of a pair, with the attention that each gets in the last layer, from
    0 for the part that gets least to 1 for the one that gets most.

    It is the mean of all heads and of the tokens that look: every token of an encoder, or its first
    one if that is what the head reads; the tokens that an encoder–decoder writes by its saved
    settings; the last token of a decoder. Special tokens, which often get most, are left out.
    """
    model = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
    # transformers has no public name for it
    config, usual = model.config, model.config._attn_implementation
    limit = min(MOST_TOKENS, tokenizer.model_max_length)
    encoded = tokenizer(*texts, truncation=True, max_length=limit, return_tensors="pt").to(
        model.device
    )
    written = (
        {"decoder_input_ids": model.generate(**encoded)[:1, :-1]}
        if config.is_encoder_decoder
        else {}
    )
    model.set_attn_implementation("eager")  # other implementations keep no probabilities
    try:
        outputs = model(**encoded, **written, output_attentions=True)
    finally:
        model.set_attn_implementation(usual)
    # (look, tokens)
    shares = (outputs.cross_attentions if written else outputs.attentions)[-1][0].float().mean(0)
    reads_first = getattr(config, "classifier_pooling", None) == "cls" or getattr(
        model.base_model, "pooler", None
    )
    # none sees what follows: a decoder
    if not written and len(shares) > 1 and not shares.triu(1).any():
        shares = shares[-1:]
    elif reads_first:
        shares = shares[:1]
    parts: list[tuple[str, float]] = []
    encoding, reached = encoded.encodings[0], [0] * len(texts)
    for (_, end), text, share in zip(
        encoding.offsets, encoding.sequence_ids, shares.mean(0).tolist(), strict=True
    ):
        # else it is special, or a further token of the same character
        if text is not None and end > reached[text]:
            gap = " " if parts and not reached[text] else ""  # between the two texts of a pair
            parts.append((gap + texts[text][reached[text] : end], share))
            reached[text] = end
    least, most = (choose((share for _, share in parts), default=0.0) for choose in (min, max))
    return [(text, round((share - least) / ((most - least) or 1), 3)) for text, share in parts]


@torch.inference_mode()
def ngram_scores(
    scores: RoFormerLiteDocumentScores, token_ids: torch.Tensor, label: int
) -> dict[str, float]:
    """What the words and the pairs and triples of neighbouring words of a text add to the logit of
    a label: with the bias, their sum is all that `scores` adds. A word counts with its substrings,
    beginnings and ends.

    Args:
        scores: Those of a classifier with `classifier_text_features`.
        token_ids: Of one text, or of one pair, `(N,)`.
        label: Its number.
    """
    words = scores.words_of(token_ids, torch.zeros_like(token_ids))
    numbers = torch.arange(len(words.starts), device=token_ids.device)
    whole = torch.cat([keys for keys, _ in scores.find_ngrams(words)[:2]])
    parts = scores.find_ngrams(replace(words, documents=numbers))[2:]  # each word by itself
    keys, owners = (
        torch.cat(side)
        for side in zip((whole, torch.arange(len(whole)).to(whole)), *parts, strict=True)
    )
    places = places_in(scores.hashes, keys).clamp(max=len(scores.hashes) - 1)
    known = scores.hashes[places] == keys
    rows, places, counts = places[known].unique(return_inverse=True, return_counts=True)
    weights = (
        scores.weigh(rows, counts, torch.zeros_like(rows), 1) * scores.weight[rows, label] / counts
    )
    added = (
        weights.new_zeros(3 * len(numbers)).index_add(0, owners[known], weights[places]).tolist()
    )
    text, bounds = (
        bytes(words.text.tolist()),
        zip(words.starts.tolist(), words.ends.tolist(), strict=True),
    )
    names = [text[start:end].decode(errors="replace") for start, end in bounds]
    names = [
        " ".join(names[i : i + size]) for size in (1, 2, 3) for i in range(len(names) - size + 1)
    ]
    total = dict.fromkeys(names, 0.0)
    for name, value in zip(names, added, strict=False):
        total[name] += value
    return total
