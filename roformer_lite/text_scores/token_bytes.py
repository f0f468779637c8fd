"""The text of each token of a tokenizer, from which a model reads words."""

import json
import re
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_roformer_lite.model.text_features import LONGEST_TOKEN, SEPARATOR

_BYTE = re.compile("<0x[0-9A-F]{2}>")


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor | None:
    """The first bytes of each token, `(vocab, LONGEST_TOKEN)` uint8, 0 after its end; None for a
    tokenizer whose tokens are not known to be text.

    A special token is a separator, as no word spans it, the padding token nothing, and the unknown
    token a word of its own.
    """
    spell = _speller(json.loads(tokenizer.backend_tokenizer.to_str())["model"])
    if spell is None:
        return None
    table = torch.zeros(len(tokenizer), LONGEST_TOKEN, dtype=torch.uint8)
    special = set(tokenizer.all_special_ids)
    for token, number in tokenizer.get_vocab().items():
        text = bytes([SEPARATOR]) if number in special else spell(token)
        kept = torch.tensor(list(text[:LONGEST_TOKEN]), dtype=torch.uint8)
        table[number, : len(kept)] = kept
    table[tokenizer.unk_token_id, :3] = torch.tensor(list("\ufffd".encode()), dtype=torch.uint8)
    table[tokenizer.pad_token_id] = 0
    return table


def _speller(model: dict[str, Any]) -> Callable[[str], bytes] | None:
    """How a token of a tokenizer's model is written in UTF-8."""
    if model["type"] == "BPE":
        byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
        return lambda token: bytes(byte_of.get(character, 32) for character in token)
    if model["type"] == "Unigram":
        return lambda token: (
            bytes.fromhex(token[3:5])
            if _BYTE.fullmatch(token)
            else token.replace("▁", " ").encode()
        )
    if model["type"] == "WordPiece":
        return lambda token: (
            token.removeprefix("##").encode() if token.startswith("##") else f" {token}".encode()
        )
    return None
