"""The text of the tokens of a fast tokenizer."""

import json
import re
from collections.abc import Callable

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

# SentencePiece writes this mark instead of a space.
SPACE_MARK = "▁"
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


def speller_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], bytes]:
    """A function that returns the UTF-8 bytes of a token of a fast tokenizer."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    model = backend["model"]
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""
    begins_words = bool(prefix) or model["type"] == "WordLevel"
    steps = json.dumps([backend["normalizer"], backend["pre_tokenizer"], backend["decoder"]])
    byte_of = {}
    if '"ByteLevel"' in steps:
        byte_of = {character: bytes([byte]) for byte, character in bytes_to_unicode().items()}

    def spell(token: str) -> bytes:
        if BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(token[3:5])
        continues = bool(prefix) and token.startswith(prefix)
        ends = bool(suffix) and token.endswith(suffix)
        token = token.removeprefix(prefix).removesuffix(suffix)
        # A byte-level tokenizer may have added tokens, which are spelled as they are.
        text = b"".join(byte_of.get(character, character.encode()) for character in token)
        text = text.replace(SPACE_MARK.encode(), b" ")
        if begins_words and not continues:
            text = b" " + text
        return text + b" " if ends else text

    return spell
