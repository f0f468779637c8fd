"""What a request to the server may ask for: the types of its fields, and how much text it may read and write.

Transformers' server takes whatever JSON brings, and works on one request until that is done.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..errors import InputError
from ..generation_fields import CHECKED_FIELDS, check_generation_fields

_DEFAULT_NEW_TOKENS = 1024  # transformers' own, and always allowed
_MAX_BEAMS = 16
_MAX_STOPS = 16
_MAX_TEXTS = 2048  # of one request for embeddings, as OpenAI has it
_LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens")

Fields = dict[str, Any]


class BadRequest(ValueError):
    """A request that cannot be answered; the message says which field, and what would be right."""


@dataclass(frozen=True)
class RequestLimits:
    """How much a request may ask for.

    Args:
        new_tokens: The most tokens that may be generated.
        default_new_tokens: As many are generated where the request does not say.
        prompt_tokens: The longest prompt; None without a tokenizer.
        positions: Where the model has learned positions, their number, which prompt and answer share.
        vocab_size: Number of the model's tokens; 0 if it is not known.
        tokenizer: To count the tokens of the prompt.
    """

    new_tokens: int = 4096
    default_new_tokens: int = _DEFAULT_NEW_TOKENS
    prompt_tokens: int | None = None
    positions: int | None = None
    vocab_size: int = 0
    tokenizer: PreTrainedTokenizerBase | None = None

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> "RequestLimits":
        """Those of a model of this package: as far as its positions go."""
        config, saved = model.config, model.generation_config.max_new_tokens or 0
        most = max(_DEFAULT_NEW_TOKENS, config.max_position_embeddings)
        learned = config.position_embedding_type == "learned"
        return cls(
            new_tokens=most,
            default_new_tokens=min(most, max(_DEFAULT_NEW_TOKENS, saved)),
            prompt_tokens=most,
            positions=config.max_position_embeddings if learned else None,
            vocab_size=config.vocab_size,
            tokenizer=tokenizer,
        )

    @property
    def is_for_one_model(self) -> bool:
        return self.tokenizer is not None


def check_completion(fields: Fields, limits: RequestLimits) -> None:
    """`/v1/completions`."""
    _require(fields, "prompt", str)
    _check_common(fields, limits)
    _check_lengths(fields, ("max_tokens",), [fields["prompt"]], limits)


def check_chat(fields: Fields, limits: RequestLimits) -> None:
    """`/v1/chat/completions`."""
    _require(fields, "messages", list)
    texts = [text for message in fields["messages"] for text in _texts_of(message, "messages")]
    if not fields["messages"]:
        raise BadRequest("messages must not be empty")
    _check_common(fields, limits)
    _check_lengths(fields, ("max_completion_tokens", "max_tokens"), texts, limits)


def check_response(fields: Fields, limits: RequestLimits) -> None:
    """`/v1/responses`."""
    _require(fields, "input", (str, list))
    given = fields["input"]
    texts = [given] if isinstance(given, str) else [text for item in given for text in _texts_of(item, "input")]
    _optional(fields, "instructions", str)
    _check_common(fields, limits)
    _check_lengths(fields, ("max_output_tokens",), [*texts, fields.get("instructions") or ""], limits)


def check_embeddings(fields: Fields, limits: RequestLimits) -> None:
    """`/v1/embeddings`."""
    _require(fields, "input", (str, list))
    _optional(fields, "model", str)
    given = fields["input"]
    items = [given] if isinstance(given, str) or all(_is_id(item, limits) for item in given) else given
    if not given or len(items) > _MAX_TEXTS:
        raise BadRequest(f"input must be a text, or a list of 1 to {_MAX_TEXTS:,} texts")
    kinds = {type(item) for item in items}
    if kinds == {list} and all(item and all(_is_id(part, limits) for part in item) for item in items):
        kinds = {str}
    elif kinds == {str}:
        for item in items:
            _encodable(item, "input")
    if kinds != {str}:
        raise BadRequest("input must be texts, or lists of the model's tokens, none empty")
    if fields.get("encoding_format") not in (None, "float", "base64"):
        raise BadRequest("encoding_format must be float or base64")
    if fields.get("dimensions") is not None:
        raise BadRequest("dimensions cannot be chosen: vectors are as wide as the model")


def check_embedding_length(number: int, ids: list[int], limits: RequestLimits) -> None:
    """Refuse a text whose tokens the model cannot read.

    Raises:
        BadRequest: naming its place in the request.
    """
    most = limits.prompt_tokens or len(ids)
    if not 0 < len(ids) <= most:
        raise BadRequest(f"input {number} has {len(ids):,} tokens, and the model reads 1 to {most:,}")


def _is_id(item: Any, limits: RequestLimits) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < limits.vocab_size


def check_model_name(fields: Fields, limits: RequestLimits) -> None:
    """Whatever else loads a model."""
    _require(fields, "model", str)


CHECKS: dict[str, Callable[[Fields, RequestLimits], None]] = {
    "/v1/completions": check_completion,
    "/v1/chat/completions": check_chat,
    "/v1/responses": check_response,
    "/v1/systemone": lambda fields, limits: None,  # transformers checks these itself
    "/v1/embeddings": check_embeddings,
    "/load_model": check_model_name,
}


def _check_common(fields: Fields, limits: RequestLimits) -> None:
    if limits.is_for_one_model:
        _optional(fields, "model", str)
    else:
        _require(fields, "model", str)
    _optional(fields, "stream", bool)
    _optional(fields, "seed", int)
    _optional(fields, "suffix", str)
    _optional(fields, "tools", list)
    _optional(fields, "chat_template_kwargs", dict)
    if not -(2**63) <= (fields.get("seed") or 0) < 2**63:
        raise BadRequest("seed must be below 2**63")
    shared = {name: fields[name] for name in ("temperature", "top_p") if name in fields}
    penalty = fields.get("frequency_penalty")
    if penalty is not None:
        if not isinstance(penalty, (int, float)) or isinstance(penalty, bool) or not -1 < penalty <= 2:
            raise BadRequest("frequency_penalty must be a number above -1 and at most 2")
    _check_generation(shared, "the request", limits)
    _check_stop(fields.get("stop"))
    _check_bias(fields.get("logit_bias"), limits)
    if fields.get("generation_config") is not None:
        _check_generation_config(fields["generation_config"], limits)


def _check_generation_config(text: Any, limits: RequestLimits) -> None:
    try:
        given = json.loads(text, parse_constant=_refuse_constant)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"generation_config must be the text of a JSON object: {error}") from error
    if not isinstance(given, dict):
        raise BadRequest("generation_config must be the text of a JSON object")
    unknown = sorted(set(given) - set(CHECKED_FIELDS))
    if unknown:
        raise BadRequest(f"generation_config: {unknown[0]} cannot be set by a request")
    _check_generation(given, "generation_config", limits)
    for name in _LENGTHS:
        _check_limit(f"generation_config: {name}", given.get(name), limits.new_tokens)
    _check_limit("generation_config: num_beams", given.get("num_beams"), _MAX_BEAMS)
    _check_limit("generation_config: num_return_sequences", given.get("num_return_sequences"), 1)


def _check_generation(given: Mapping[str, Any], where: str, limits: RequestLimits) -> None:
    try:
        check_generation_fields(given, where, limits.vocab_size)
    except InputError as error:
        raise BadRequest(str(error)) from error


def _check_lengths(fields: Fields, names: tuple[str, ...], texts: list[str], limits: RequestLimits) -> None:
    """Refuse what is too long, and write into the request how long the answer may be where it does not say."""
    most, default = limits.new_tokens, limits.default_new_tokens
    if limits.tokenizer is not None:
        used = len(limits.tokenizer("\n".join(texts), verbose=False)["input_ids"])
        _check_limit("the prompt has more tokens than the model reads:", used, limits.prompt_tokens or used)
        if limits.positions is not None:
            most = limits.positions - used
            default = min(default, most)
            if most < 1:
                raise BadRequest(f"the prompt has {used} tokens, and the model {limits.positions} positions in all")
    for name in names:
        value = fields.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise BadRequest(f"{name} must be a whole number of at least 1")
        _check_limit(name, value, most)
    if all(fields.get(name) is None for name in (*names, "generation_config")):
        fields[names[0]] = default


def _check_limit(name: str, value: int | None, most: int) -> None:
    if value is not None and value > most:
        raise BadRequest(f"{name} {value:,} is too large: at most {most:,}")


def _texts_of(message: Any, field: str) -> list[str]:
    """The texts of a chat message, or of a part of one, after a look at the types of what is read from it."""
    if not isinstance(message, dict):
        raise BadRequest(f"{field} must be a list of objects")
    if field == "messages":
        _require(message, "role", str)
    content = message.get("content", message.get("text"))
    if content is None:
        return []
    parts = [content] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise BadRequest(f"{field}: content must be a text or a list of parts")
    texts = []
    for part in parts:
        text = part if isinstance(part, str) and part is content else _text_of_part(part, field)
        texts.append(_encodable(text, field))
    return texts


def _text_of_part(part: Any, field: str) -> str:
    kinds = ("text", "input_text", "output_text")
    if not (isinstance(part, dict) and part.get("type") in kinds and isinstance(part.get("text"), str)):
        raise BadRequest(f'{field}: a part of the content must be {{"type": "text", "text": …}}')
    return part["text"]


def _check_stop(stop: Any) -> None:
    stops = [stop] if isinstance(stop, str) else stop
    if stops is not None and not (
        isinstance(stops, list) and 0 < len(stops) <= _MAX_STOPS and all(isinstance(s, str) and s for s in stops)
    ):
        raise BadRequest(f"stop must be a text or a list of 1 to {_MAX_STOPS} texts, none empty")


def _check_bias(bias: Any, limits: RequestLimits) -> None:
    if bias is None:
        return
    last = limits.vocab_size - 1 if limits.vocab_size else 2**31 - 1
    if not isinstance(bias, dict) or not all(
        token.isdecimal() and int(token) <= last and isinstance(value, (int, float)) and not isinstance(value, bool)
        for token, value in bias.items()
    ):
        raise BadRequest(f"logit_bias must be an object of tokens, 0 to {last:,}, and numbers")


def _require(fields: Fields, name: str, kind: type | tuple[type, ...]) -> None:
    if fields.get(name) is None:
        raise BadRequest(f"{name} is missing")
    _optional(fields, name, kind)


def _optional(fields: Fields, name: str, kind: type | tuple[type, ...]) -> None:
    value = fields.get(name)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if value is not None and not (isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))):
        words = {str: "text", list: "list", dict: "object", int: "whole number", bool: "true or false"}
        raise BadRequest(f"{name} must be a {' or a '.join(words[k] for k in kinds)}".replace("a true", "true"))
    if isinstance(value, str):
        _encodable(value, name)


def _encodable(text: str, name: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can write half a character
        raise BadRequest(f"{name} is no text: {error.reason}") from error
    return text


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def parse_body(body: bytes) -> Fields:
    """The object in the body of a request.

    Raises:
        BadRequest: when it holds anything else.
    """
    try:
        fields = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRequest("the body must be a JSON object")
    return fields
