"""Every field of a configuration with wrong types and at the edges: refused by name, or a model
that works."""

import copy
import json
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedModel

import hf_roformer_lite as rl

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 16}
WRONG_TYPES: list[Any] = [None, "x", "", [], ["x"], [1], {}, {"a": 1}, b"x", (1,), True, False]
NUMBERS: list[Any] = [-1, 0, 1, 2, 3, 7, 10**30, 1.5, 0.5, -0.5, float("nan"), float("inf")]
STACKS: dict[str, dict[str, Any]] = {
    "encoder": {},
    "decoder": {"is_decoder": True},
    "sliding": {"sliding_window": 2},
    "learned": {"position_embedding_type": "learned"},
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "parallel heads": {"layer_style": "parallel_heads"},
    "walkthrough": {"layer_style": "walkthrough", "norm_placement": "post"},
}
# Numbers that are none, as the values say: weights that overflow, and the zero vector of the
# padding token over zero.
ASKED_FOR = [("initializer_range", 10**30), ("norm_eps", 0), ("embedding_norm_eps", 0)]
LENGTHS = [1.0] * 4  # half of the channels of a head
ROPE: dict[str, dict[str, Any]] = {
    "default": {"partial_rotary_factor": 1.0},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0, "original_max_position_embeddings": 4},
    "yarn": {
        **{
            "factor": 2.0,
            "original_max_position_embeddings": 4,
            "attention_factor": 1.0,
            "truncate": True,
        },
        **{"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "longrope": {
        **{"short_factor": LENGTHS, "long_factor": LENGTHS, "original_max_position_embeddings": 4},
        **{"factor": 2.0, "attention_factor": 1.0},
    },
    "llama3": {
        **{"factor": 2.0, "original_max_position_embeddings": 4},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
}
LISTS: list[Any] = [[1.0, "x", 1, 1], [0.0] * 4, [float("nan")] * 4, [True] * 4, LENGTHS * 2]
OWN_FIELDS = {
    kind: [
        name
        for name in kind.__annotations__
        if name in kind.__dataclass_fields__ and not name.startswith("base_model_")
    ]
    for kind in (rl.RoFormerLiteConfig, rl.RoFormerLiteSeq2SeqConfig)
}


def refusal(make: type, fields: dict[str, Any]) -> tuple[Any, str]:
    """A configuration, and what it was refused with; one of the two is empty."""
    try:
        return make(**copy.deepcopy(fields)), ""
    except (ValueError, TypeError, KeyError, StrictDataclassError) as error:
        cause = error.__cause__ or error  # strict dataclasses wrap what their checks raise
        assert isinstance(cause, ValueError | TypeError | KeyError), f"{fields}: {cause!r}"
        return None, str(cause)


def run(config: Any) -> torch.Tensor:
    """States or logits of a model of `config`, on ids that every vocabulary has."""
    torch.manual_seed(0)
    ids = torch.arange(18).view(2, 9) % min(getattr(config, "vocab_size", 0) or 20, 20)
    if isinstance(config, rl.RoFormerLiteSeq2SeqConfig):
        return (
            rl.RoFormerLiteForConditionalGeneration(config)
            .eval()(ids, decoder_input_ids=ids)
            .logits
        )
    inputs = (
        {"input_ids": ids}
        if config.vocab_size
        else {"inputs_embeds": torch.rand(2, 9, config.embedding_size)}
    )
    if config.add_cross_attention:
        inputs["encoder_hidden_states"] = torch.rand(
            2, 3, config.cross_attention_hidden_size or config.hidden_size
        )
    model: PreTrainedModel = rl.RoFormerLiteModel(config).eval()
    return model(**inputs)[0]


def is_small(name: str, value: Any) -> bool:
    """Whether a model of this size fits into memory; what does not is no mistake of the
    configuration."""
    of_size = ("size", "_dim", "num_", "features", "max_position")
    return not (isinstance(value, int) and value > 10**6 and any(part in name for part in of_size))


def check(make: type, base: dict[str, Any], name: str, value: Any) -> str:
    """What is wrong about `base` with the field `name` set to `value`; empty if it is refused by
    name, or works."""
    config, message = refusal(make, {**base, name: value})
    if config is None:
        others = [
            "head_dim",
            "is_decoder",
            "layer_types",
            "vocab_size",
            "embedding_size",
            "layer_style",
        ]
        others += list(value) if isinstance(value, dict) else []
        return "" if name in message or any(other in message for other in others) else message
    if not is_small(name, value):
        return ""
    again = make.from_dict(json.loads(config.to_json_string(use_diff=False)))
    if again.to_dict() != config.to_dict():
        return "another configuration when it is read again"
    try:
        with torch.no_grad():
            return "" if run(config).isfinite().all() else "numbers that are none"
    except ValueError as error:  # such as an input longer than its learned positions
        return "" if name in str(error) else str(error)


@pytest.mark.parametrize(
    "stack",
    [
        "encoder",
        *(pytest.param(name, marks=pytest.mark.slow) for name in STACKS if name != "encoder"),
    ],
)
def test_fields_of_a_stack(stack):
    wrong = {
        (name, str(value)): problem
        for name in OWN_FIELDS[rl.RoFormerLiteConfig]
        for value in WRONG_TYPES + NUMBERS
        if (name, value) not in ASKED_FOR
        if (problem := check(rl.RoFormerLiteConfig, {**SIZES, **STACKS[stack]}, name, value))
    }
    assert not wrong


def test_fields_of_a_pair():
    base = {"encoder": SIZES, "decoder": SIZES}
    sides: list[Any] = [
        {"hidden_size": "x"},
        {"num_hidden_layers": 0},
        {"hidden_size": 16, "banana": 1},
    ]
    wrong = {
        (name, str(value)): problem
        for name in OWN_FIELDS[rl.RoFormerLiteSeq2SeqConfig]
        for value in WRONG_TYPES + NUMBERS + sides
        if not (name in base and not value)  # a stack of the default sizes
        if (problem := check(rl.RoFormerLiteSeq2SeqConfig, base, name, value))
    }
    assert not wrong


@pytest.mark.parametrize("kind", ROPE)
def test_rope_parameters(kind):
    wrong = {}
    for name in ("rope_type", "rope_theta", *ROPE[kind]):
        for value in WRONG_TYPES + NUMBERS + LISTS:
            parameters = {"rope_type": kind, "rope_theta": 10000.0, **ROPE[kind], name: value}
            problem = check(rl.RoFormerLiteConfig, SIZES, "rope_parameters", parameters)
            if problem:
                wrong[name, str(value)] = problem
    assert not wrong
