"""What the fields of a generation config may be: those of a saved one, and those of a request to the server.

transformers checks a few of them, and takes any type and any size for the others; a mistake then shows while text is
generated, or never, as a search that does not end.
"""

import math
from collections.abc import Mapping
from typing import Any

from .errors import InputError

MAX_TOKENS = 1_000_000
_MAX_BEAMS = 1_000
_MAX_TOKEN_ID = 2**31 - 1

# Smallest and largest value of fields that count something.
_COUNTS: dict[str, tuple[int, int]] = {
    "max_length": (1, MAX_TOKENS),
    "max_new_tokens": (1, MAX_TOKENS),
    "min_length": (0, MAX_TOKENS),
    "min_new_tokens": (0, MAX_TOKENS),
    "num_beams": (1, _MAX_BEAMS),
    "num_beam_groups": (1, _MAX_BEAMS),
    "num_return_sequences": (1, _MAX_BEAMS),
    "no_repeat_ngram_size": (0, MAX_TOKENS),
    "encoder_no_repeat_ngram_size": (0, MAX_TOKENS),
    "top_k": (0, _MAX_TOKEN_ID),
}
# Smallest and largest value of the other numbers, and whether the smallest one is allowed itself.
_NUMBERS: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, 1e4, True),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, True),
    "typical_p": (0.0, 1.0, False),
    "repetition_penalty": (0.0, 1e4, False),
    "encoder_repetition_penalty": (0.0, 1e4, False),
    "length_penalty": (-1e4, 1e4, True),
    "diversity_penalty": (-1e4, 1e4, True),
    "max_time": (0.0, 1e6, True),
}
_SWITCHES = ("do_sample", "use_cache", "remove_invalid_values", "renormalize_logits", "return_dict_in_generate")
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
_MORE_TOKENS = ("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens")
CHECKED_FIELDS = (*_COUNTS, *_NUMBERS, *_SWITCHES, *_TOKENS, *_MORE_TOKENS)


def check_generation_fields(fields: Mapping[str, Any], where: str, vocab_size: int = 0) -> None:
    """Refuse values with which no text can be generated. A field that is missing or None is always right.

    Args:
        fields: Of a generation config, by their names.
        where: What the message begins with, such as the path of the file.
        vocab_size: Number of the model's tokens. Default: no token is too large.

    Raises:
        InputError: naming field, value and what would be right.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name, (smallest, largest) in _COUNTS.items():
        if name in given and not (_is_whole(given[name]) and smallest <= given[name] <= largest):
            raise InputError(f"{where}: {name}={_shown(given[name])} must be a number from {smallest} to {largest:,}")
    for name, (least, most, including) in _NUMBERS.items():
        if name in given and not (_is_number(given[name]) and least <= given[name] <= most):
            raise InputError(f"{where}: {name}={_shown(given[name])} must be a number from {least:g} to {most:g}")
        if name in given and not including and given[name] == least:
            raise InputError(f"{where}: {name}={_shown(given[name])} must be above {least:g}")
    for name in _SWITCHES:
        if not isinstance(given.get(name, False), bool):
            raise InputError(f"{where}: {name}={_shown(given[name])} must be true or false")
    for name in _TOKENS + _MORE_TOKENS:
        _check_tokens(name, given.get(name, []), where, vocab_size)


def _check_tokens(name: str, value: Any, where: str, vocab_size: int) -> None:
    last = vocab_size - 1 if vocab_size else _MAX_TOKEN_ID
    # -1 is what transformers' users write for "no token"; texts that end before others of a batch need one to fill up
    first = 0 if name == "pad_token_id" else -1
    for token in value if isinstance(value, list) else [value]:
        if not _is_whole(token) or not first <= token <= last:
            raise InputError(f"{where}: {name}={_shown(value)} must be a token of the model, 0 to {last:,}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:40] + " …"
