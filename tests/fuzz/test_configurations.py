"""Tests of each field of a configuration with values of wrong types, and with extreme ones.

Either an error names the field, or the model works.
"""

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from conftest import data_beside
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

import hf_roformer_lite as rl

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}
WRONG_TYPES: list[Any] = [None, "x", "", [], ["x"], [1], {}, {"a": 1}, b"x", (1,), True, False]
NUMBERS: list[Any] = [-1, 0, 1, 2, 3, 7, 10**30, 1.5, 0.5, -0.5, float("nan"), float("inf")]
FIELDS = data_beside(__file__)
STACKS: dict[str, dict[str, Any]] = FIELDS["stacks"]
ROPE: dict[str, dict[str, Any]] = FIELDS["rope"]
# These values ask for outputs that are not finite: the weights overflow, or the zero vector of the
# padding token is divided by zero.
ASKED_FOR = [("initializer_range", 10**30), ("norm_eps", 0), ("embedding_norm_eps", 0)]
LISTS: list[Any] = [[1.0, "x", 1, 1], [0.0] * 4, [float("nan")] * 4, [True] * 4, [1.0] * 8]
OWN_FIELDS = {
    kind: {
        name
        for name in kind.__annotations__
        if name in kind.__dataclass_fields__ and not name.startswith("base_model_")
    }
    for kind in (rl.RoFormerLiteConfig, rl.RoFormerLiteSeq2SeqConfig)
}


def refusal(make: type, fields: dict[str, Any]) -> tuple[Any, str]:
    """Make a configuration, and return it, or the message of the error if it is refused."""
    try:
        return make(**copy.deepcopy(fields)), ""
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
        # Strict dataclasses wrap the errors of their checks.
        cause = error.__cause__ or error
        assert isinstance(cause, ValueError | TypeError | KeyError), f"{fields}: {cause!r}"
        return None, str(cause)


def run(config: Any) -> torch.Tensor:
    """Compute states or logits of a model of `config`, for ids that are in its vocabulary."""
    torch.manual_seed(0)
    vocab_size = getattr(config, "vocab_size", 0) or 20
    ids = torch.arange(18).view(2, 9) % min(vocab_size, 20)
    if isinstance(config, rl.RoFormerLiteSeq2SeqConfig):
        pair = rl.RoFormerLiteForConditionalGeneration(config).eval()
        return pair(ids, decoder_input_ids=ids).logits
    if config.vocab_size:
        inputs = {"input_ids": ids}
    else:
        inputs = {"inputs_embeds": torch.rand(2, 9, config.embedding_size)}
    if config.add_cross_attention:
        width = config.cross_attention_hidden_size or config.hidden_size
        inputs["encoder_hidden_states"] = torch.rand(2, 3, width)
    model: PreTrainedModel = rl.RoFormerLiteModel(config).eval()
    return model(**inputs)[0]


def is_small(name: str, value: Any) -> bool:
    """Whether a model of this size fits into memory. A larger size is not a wrong value."""
    parts_of_sizes = "size _dim num_ _layers features max_position".split()
    is_size = any(part in name for part in parts_of_sizes)
    return not (is_size and isinstance(value, int) and value > 10**6)


def check(make: type, base: dict[str, Any], name: str, value: Any) -> str:
    """Set the field `name` of `base` to `value`, and describe what goes wrong.

    The description is empty if the model works, or if the error names the field.
    """
    if not is_small(name, value):
        return ""
    config, message = refusal(make, {**base, name: value})
    if config is None:
        others = "head_dim is_decoder layer_types vocab_size embedding_size layer_style".split()
        if isinstance(value, dict):
            others += list(value)
        is_named = any(field in message for field in [name, *others])
        return "" if is_named else message
    again = make.from_dict(json.loads(config.to_json_string(use_diff=False)))
    if again.to_dict() != config.to_dict():
        return "another configuration when it is read again"
    try:
        with torch.no_grad():
            is_finite = run(config).isfinite().all()
    except ValueError as error:
        # An input may, for example, be longer than the learned positions.
        return "" if name in str(error) else str(error)
    return "" if is_finite else "the outputs are not finite"


def problems(
    make: type, base: dict[str, Any], names: Iterable[str], values: list[Any]
) -> dict[tuple[str, str], str]:
    """What goes wrong with each value of each field."""
    found = {}
    for name in names:
        for value in values:
            problem = check(make, base, name, value)
            if problem:
                found[name, str(value)] = problem
    return found


@pytest.mark.parametrize(
    "stack",
    [
        "encoder",
        *(pytest.param(name, marks=pytest.mark.slow) for name in STACKS if name != "encoder"),
    ],
)
def test_fields_of_a_stack(stack):
    kind = rl.RoFormerLiteConfig
    base = {**SIZES, **STACKS[stack]}
    wrong = problems(kind, base, OWN_FIELDS[kind], WRONG_TYPES + NUMBERS)
    assert wrong.keys() <= {(name, str(value)) for name, value in ASKED_FOR}


def test_fields_of_a_pair():
    kind = rl.RoFormerLiteSeq2SeqConfig
    base = {"encoder": SIZES, "decoder": SIZES}
    assert not problems(kind, base, OWN_FIELDS[kind] - base.keys(), WRONG_TYPES + NUMBERS)
    sides = [{"hidden_size": "x"}, {"num_hidden_layers": 0}, {"hidden_size": 16, "banana": 1}]
    # An empty value is valid, because it stands for a stack of the default sizes.
    wrong_types = [value for value in WRONG_TYPES + NUMBERS if value]
    assert not problems(kind, base, base, wrong_types + sides)


@pytest.mark.parametrize("kind", ROPE)
def test_rope_parameters(kind):
    right = {"rope_type": kind, "rope_theta": 10000.0, **ROPE[kind]}
    values = [{**right, name: value} for name in right for value in WRONG_TYPES + NUMBERS + LISTS]
    assert not problems(rl.RoFormerLiteConfig, SIZES, ["rope_parameters"], values)
