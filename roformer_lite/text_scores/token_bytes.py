"""The text of each token of a tokenizer, which lets a model find the words."""

import json
import re
from collections.abc import Callable, Iterable
from itertools import chain

import torch
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from hf_roformer_lite.model.words_of_tokens import SEPARATOR, TOKEN_BYTES, Words

# The text of a longer token, such as a line of dashes, is cut.
MAX_TOKEN_BYTES = 128
# Texts are checked until they have this many characters in total.
NUM_CHECKED_CHARACTERS = 200_000
# A tokenizer may change rare characters in ways that its normaliser does not show.
MAX_MISREAD_SHARE = 0.01
# SentencePiece writes this mark instead of a space.
SPACE_MARK = "▁"
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
BLANKS = re.compile(rb"[\x00-\x20\x7f]+")


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor | None:
    """The bytes of each token, `(vocab, width)` uint8, padded with 0. None for a tokenizer written
    in Python, because it does not expose how tokens are spelled.

    Special tokens are separators, because no word spans them. The padding token has no text, and
    the unknown token is a word of its own.
    """
    if not tokenizer.is_fast:
        return None
    spell = speller_of(tokenizer)
    texts: dict[int | None, bytes] = {}
    for token, number in tokenizer.get_vocab().items():
        # A byte of 0 would end the text, and a run of blanks separates words as one blank does.
        texts[number] = BLANKS.sub(b" ", spell(token))
    for number in special_ids(tokenizer):
        texts[number] = bytes([SEPARATOR])
    # GPT-2 uses one token for the end of a text, for unknown text and for padding.
    separators = {
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.cls_token_id,
        tokenizer.sep_token_id,
        tokenizer.mask_token_id,
    }
    if tokenizer.unk_token_id not in separators:
        texts[tokenizer.unk_token_id] = "\ufffd".encode()
    if tokenizer.pad_token_id not in separators:
        texts[tokenizer.pad_token_id] = b""
    # A tokenizer may have neither of the two tokens.
    texts.pop(None, None)

    longest = max(len(text) for text in texts.values())
    width = min(max(longest, TOKEN_BYTES), MAX_TOKEN_BYTES)
    rows = [texts.get(number, b"")[:width].ljust(width, b"\0") for number in range(max(texts) + 1)]
    return torch.frombuffer(bytearray().join(rows), dtype=torch.uint8).view(-1, width)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The tokens that do not stand for text."""
    added = tokenizer.added_tokens_decoder.items()
    return {number for number, token in added if token.special} | {*tokenizer.all_special_ids}


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


def find_misread(
    tokenizer: PreTrainedTokenizerBase,
    table: torch.Tensor,
    texts: Iterable[str],
) -> str | None:
    """Find a text whose words differ from those that a model reads from its tokens.

    The first texts are compared after they have passed the normaliser of the tokenizer. Texts with
    an unknown or a special token are left out.

    Args:
        tokenizer: A fast tokenizer.
        table: The result of `token_bytes`.
        texts: The texts of the training data.

    Returns:
        Such a text, or None if at most `MAX_MISREAD_SHARE` of the texts are misread.
    """
    checked = []
    num_characters = 0
    for text in texts:
        checked.append(text)
        num_characters += len(text)
        if num_characters >= NUM_CHECKED_CHARACTERS:
            break
    encoded = tokenizer(checked, add_special_tokens=False, verbose=False)["input_ids"]
    no_text = special_ids(tokenizer)
    normalizer = tokenizer.backend_tokenizer.normalizer
    examples: list[str] = []
    given: list[list[int]] = []
    expected: list[list[int]] = []
    for text, ids in zip(checked, encoded, strict=True):
        if no_text.isdisjoint(ids):
            normal = text if normalizer is None else normalizer.normalize_str(text)
            examples.append(text)
            given.append(ids)
            expected.append(list(normal.replace(SPACE_MARK, " ").encode()))
    if not examples:
        return None
    bytes_as_tokens = torch.arange(256, dtype=torch.uint8)[:, None]
    found_words = words_by_text(table, given)
    true_words = words_by_text(bytes_as_tokens, expected)
    misread = [
        text
        for text, ours, theirs in zip(examples, found_words, true_words, strict=True)
        if ours != theirs
    ]
    if len(misread) <= MAX_MISREAD_SHARE * len(examples):
        return None
    return misread[0]


def words_by_text(table: torch.Tensor, examples: list[list[int]]) -> list[list[bytes]]:
    """The words of each text that a model reads from its tokens."""
    ids = torch.tensor(list(chain.from_iterable(examples)), dtype=torch.long)
    documents = torch.repeat_interleave(torch.tensor([len(example) for example in examples]).long())
    words = Words.of_tokens(table, ids, documents)
    text = bytes(words.text.tolist())
    found: list[list[bytes]] = [[] for _ in examples]
    places = zip(words.documents.tolist(), words.starts.tolist(), words.ends.tolist(), strict=True)
    for document, start, end in places:
        found[document].append(text[start:end])
    return found
