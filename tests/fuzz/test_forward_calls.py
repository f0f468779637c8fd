"""Tests of every argument of every `forward`, with wrong types, shapes and ranges.

The call must be refused, or give a right result. If the change has no meaning, such as another type
of integers or another order in memory, the result must be the same. Otherwise it must be finite.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import CLOSE, VOCAB, build, seq2seq_config, stack_config
from transformers import DynamicCache

import hf_roformer_lite as rl

ROWS = 3
LENGTH = 7
SOURCE = 5
GENERATOR = torch.Generator().manual_seed(0)


def ids(length: int = LENGTH, below: int = VOCAB - 5) -> torch.Tensor:
    return torch.randint(5 if below > 5 else 0, below, (ROWS, length), generator=GENERATOR)


MASK = torch.ones(ROWS, LENGTH, dtype=torch.long)
MASK[1, 4:] = 0
MASK[2, :2] = 0
POSITIONS = (MASK.cumsum(-1) - 1).clamp(min=0)
PLAIN = {"input_ids": ids(), "attention_mask": MASK}
CHOICES = {name: tensor[:, None].repeat(1, 2, 1) for name, tensor in PLAIN.items()}
STATES = torch.randn(ROWS, SOURCE, 32, generator=GENERATOR)
PAIR = rl.RoFormerLiteForConditionalGeneration
CLASSES = rl.RoFormerLiteForSequenceClassification
DECODER = {"is_decoder": True}
MULTI = {"problem_type": "multi_label_classification"}
PLACES = {"start_positions": torch.arange(3), "end_positions": torch.arange(3) + 1}
TARGET = {
    "decoder_input_ids": ids(SOURCE),
    "decoder_attention_mask": torch.ones(ROWS, SOURCE).long(),
}
CALLS: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "encoder": (
        rl.RoFormerLiteModel,
        {"name": "learned-typed"},
        {**PLAIN, "token_type_ids": ids(below=2), "position_ids": POSITIONS},
    ),
    "no segments": (rl.RoFormerLiteModel, {}, {**PLAIN, "token_type_ids": torch.zeros_like(MASK)}),
    "vectors": (
        rl.RoFormerLiteModel,
        {},
        {
            "inputs_embeds": torch.randn(ROWS, LENGTH, 32, generator=GENERATOR),
            "attention_mask": MASK,
        },
    ),
    "packed": (
        rl.RoFormerLiteModel,
        {},
        {
            "input_ids": ids().view(1, -1),
            "cu_seq_lens_q": torch.tensor([0, 4, 10, ROWS * LENGTH], dtype=torch.int32),
        },
    ),
    "decoder with cache": (rl.RoFormerLiteModel, DECODER, {**PLAIN, "position_ids": POSITIONS}),
    "decoder without": (
        rl.RoFormerLiteModel,
        DECODER,
        {**PLAIN, "position_ids": POSITIONS, "use_cache": False},
    ),
    "cross-attention": (
        rl.RoFormerLiteModel,
        {**DECODER, "add_cross_attention": True},
        {
            **PLAIN,
            "encoder_hidden_states": STATES,
            "encoder_attention_mask": torch.ones(ROWS, SOURCE).long(),
        },
    ),
    "masked": (rl.RoFormerLiteForMaskedLM, {}, {**PLAIN, "labels": ids()}),
    "causal": (rl.RoFormerLiteForCausalLM, {}, {**PLAIN, "labels": ids()}),
    "causal, last logits": (rl.RoFormerLiteForCausalLM, {}, {**PLAIN, "logits_to_keep": 2}),
    "classes": (CLASSES, {"num_labels": 3}, {**PLAIN, "labels": torch.arange(3)}),
    "sets": (
        CLASSES,
        {"num_labels": 3, **MULTI},
        {**PLAIN, "labels": torch.tensor([[0.0, 1.0, 1.0]] * ROWS)},
    ),
    "numbers": (CLASSES, {"num_labels": 1}, {**PLAIN, "labels": torch.tensor([0.5, 1.0, 2.0])}),
    "tags": (
        rl.RoFormerLiteForTokenClassification,
        {"num_labels": 3},
        {**PLAIN, "labels": ids(below=3)},
    ),
    "answers": (rl.RoFormerLiteForQuestionAnswering, {}, {**PLAIN, **PLACES}),
    "choices": (
        rl.RoFormerLiteForMultipleChoice,
        {},
        {**CHOICES, "labels": torch.tensor([0, 1, 1])},
    ),
    "pair": (PAIR, {}, {**PLAIN, **TARGET, "labels": ids(SOURCE)}),
    "pair, labels alone": (PAIR, {}, {**PLAIN, "labels": ids(SOURCE)}),
    "pair, last logits": (
        PAIR,
        {},
        {**PLAIN, "decoder_input_ids": ids(SOURCE), "logits_to_keep": 2},
    ),
}


def same_meaning(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield changes that must not make a difference, if they are accepted."""
    yield "another order in memory", value.transpose(0, -1).contiguous().transpose(0, -1)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float64):
        changed = value.to(dtype)
        if dtype != value.dtype and bool((changed == value).all()):
            yield f"dtype {dtype}", changed


def other_meaning(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield changes that are mistakes, or that ask for something else."""
    yield "text", "x"
    yield "a number", 3
    yield "a negative number", -1
    yield "a fraction", 1.5
    yield "a list", [[1, 2]]
    yield "nothing", None
    if not isinstance(value, torch.Tensor):
        yield "a tensor", torch.tensor([[1]])
        yield "no index", torch.tensor([99])
        return
    yield "numpy", value.numpy()
    yield "a scalar", value.flatten()[0]
    yield "a dimension less", value[0]
    yield "one more", value[None]
    yield "one more at the end", value[..., None]
    yield "a row less", value[:-1]
    yield "one row", value[:1]
    yield "no rows", value[:0]
    yield "a row more", torch.cat([value, value[:1]])
    if value.ndim > 1:
        yield "a column less", value[:, :-1]
        yield "one column", value[:, :1]
        yield "no columns", value[:, :0]
        yield "a column more", torch.cat([value, value[:, :1]], 1)
        yield "turned", value.transpose(0, 1)
    if value.is_floating_point():
        yield "a number less in each vector", value[..., :-1]
    for dtype in (torch.bool, torch.complex64):
        yield f"dtype {dtype}", value.to(dtype)
    # One of these makes a mask of zeros, with which all is padding.
    for number in (-1, 0, 2, VOCAB, 10**9):
        yield f"only {number}", torch.full_like(value, number)


def tensors_of(model: torch.nn.Module, call: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [value for value in model(**call).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize(
    ("kind", "training"),
    [
        *((kind, False) for kind in CALLS),
        *(
            pytest.param(kind, True, marks=pytest.mark.slow)
            for kind in CALLS
            if "labels" in CALLS[kind][2]
        ),
    ],
)
def test_changed_arguments(kind, training):
    model_class, fields, call = CALLS[kind]
    config = seq2seq_config() if model_class is PAIR else stack_config(**fields)
    model = build(model_class, config).train(training)
    expected = tensors_of(model, call)
    wrong = []
    for name, value in call.items():
        if isinstance(value, bool):
            continue
        same = dict(same_meaning(value)) if isinstance(value, torch.Tensor) else {}
        for change, changed in [*same.items(), *other_meaning(value)]:
            try:
                found = tensors_of(model, {**call, name: changed})
            except Exception:
                # The model or torch has refused the argument.
                continue
            if change in same:
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
            elif not all(tensor.isfinite().all() for tensor in found):
                wrong.append(f"{name}, {change}: the outputs are not finite")
    assert not wrong, "\n".join(wrong)
    # None of the calls has changed the model.
    torch.testing.assert_close(tensors_of(model, call), expected)


@pytest.mark.parametrize("model_class", [rl.RoFormerLiteModel, rl.RoFormerLiteForCausalLM])
@pytest.mark.parametrize("use_cache", [False, True])
def test_a_mask_tells_real_from_padding_by_any_number(model_class, use_cache):
    """A mask of sevens gives the positions of a mask of ones, although its sums are larger."""
    model = build(model_class, stack_config(is_decoder=True))
    ones = model(PLAIN["input_ids"], attention_mask=MASK, use_cache=use_cache)[0]
    sevens = model(PLAIN["input_ids"], attention_mask=MASK * 7, use_cache=use_cache)[0]
    torch.testing.assert_close(sevens, ones, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("padding_free", "default"),
        ("padding_free", "modern"),
        ("eager", "sliding"),
        ("sdpa", "modern"),
    ],
)
def test_any_mask_beside_a_cache(name, backend, generator):
    """Any mask, and any division of the tokens into calls, gives the numbers without a cache."""
    model = build(rl.RoFormerLiteForCausalLM, stack_config(name, backend, is_decoder=True))
    for kind in range(6):
        ids = torch.randint(5, VOCAB, (3, 12), generator=generator)
        mask = (torch.rand(3, 12, generator=generator) < 0.3 + 0.1 * kind).long()
        if kind % 3 == 0:
            # Sorted masks have their padding on the left.
            mask = mask.sort(dim=1).values
        expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        for size in (1, 5):
            for cache in (None, DynamicCache(), DynamicCache(config=model.config)):
                logits = []
                for start in range(0, 12, size):
                    output = model(
                        input_ids=ids[:, start : start + size],
                        attention_mask=mask[:, : start + size],
                        past_key_values=cache,
                        use_cache=True,
                    )
                    cache = output.past_key_values
                    logits.append(output.logits)
                found = torch.cat(logits, 1)
                torch.testing.assert_close(found[mask == 1], expected[mask == 1], **CLOSE)
