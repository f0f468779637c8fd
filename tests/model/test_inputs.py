"""Tests that inputs and labels that do not fit are refused, even if torch can compute with them,
and that only their values matter."""

from collections.abc import Iterator

import pytest
import torch
from conftest import (
    assert_close,
    assert_equal,
    build,
    gradients_of,
    random_ids,
    seq2seq_config,
    stack_config,
)
from toy_training import HEADS, make_batch, make_model
from transformers import DynamicCache

import hf_roformer_lite as rl

IDS = random_ids(4, 8)
PAIR = {"decoder_input_ids": IDS}
MASKS = {
    "three dimensions": torch.ones(4, 8, 8),
    "one dimension": torch.ones(8),
    "whole numbers in four": torch.ones(4, 1, 8, 8).long(),
    "to be added, in two": torch.zeros(4, 8).index_fill(1, torch.tensor([7]), -1e9),
    "another batch": torch.ones(3, 8),
    "another length": torch.ones(4, 5),
}


def make(model_class: type, **fields):
    if model_class is rl.RoFormerLiteForConditionalGeneration:
        return build(model_class, seq2seq_config())
    return build(model_class, stack_config(**fields))


def assert_refused(model: torch.nn.Module, message: str, **arguments) -> None:
    """A call with `IDS`, if it names no other ids, ends with a message that matches a pattern."""
    with pytest.raises(ValueError, match=message):
        model(**{"input_ids": IDS, **arguments})


@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind):
    # The models have as many heads as the batch has rows, so that torch could broadcast a mask of
    # three dimensions.
    for model_class, more in (
        (rl.RoFormerLiteModel, {}),
        (rl.RoFormerLiteForCausalLM, {"labels": IDS}),
        (rl.RoFormerLiteForConditionalGeneration, {"labels": IDS}),
    ):
        for training in (False, True):
            with pytest.raises((ValueError, TypeError), match="attention_mask"):
                make(model_class).train(training)(
                    IDS, attention_mask=MASKS[kind], use_cache=False, **more
                )


MEMORY = torch.ones(4, 5, 32)
BORDERS = torch.tensor([0, 3, 32])
# Both rows together have three documents, in this order and in the reverse one.
POSITIONS = torch.stack([torch.arange(8) % 4, torch.arange(8)])
DECODER = {"is_decoder": True, "add_cross_attention": True}
STACK = (rl.RoFormerLiteModel, {})
TABLE = (rl.RoFormerLiteModel, {"name": "learned-typed"})
CLASSIFIER = (rl.RoFormerLiteForSequenceClassification, {})
CROSS = (rl.RoFormerLiteModel, DECODER)
BOTH_SIDES = (rl.RoFormerLiteForConditionalGeneration, {})
# Without self-attention, there is no cache from which the next positions could be counted.
HEADS_ALONE = (rl.RoFormerLiteModel, {**DECODER, "name": "parallel-heads", "use_cache": False})
# A model, the arguments of a call besides the ids, and a part of the message.
UNFIT = [
    (STACK, {"cu_seq_lens_q": BORDERS, "position_ids": POSITIONS[1]}, "position_ids"),
    (
        STACK,
        {
            "cu_seq_lens_q": BORDERS,
            "position_ids": POSITIONS[:1],
            "attention_mask": torch.eye(4, 8),
        },
        "attention_mask",
    ),
    (STACK, {"inputs_embeds": MEMORY}, "exactly one of input_ids and inputs_embeds"),
    (STACK, {"encoder_hidden_states": MEMORY}, "does not attend to encoder_hidden_states"),
    (STACK, {"seq_idx": IDS}, "seq_idx"),
    (STACK, {"token_type_ids": IDS % 2}, "token_type_ids"),
    (TABLE, {"input_ids": random_ids(2, 70)}, "max_position_embeddings"),
    (CLASSIFIER, {"position_ids": POSITIONS[:1]}, "packed documents"),
    (BOTH_SIDES, {}, "decoder_input_ids"),
    (BOTH_SIDES, {**PAIR, "attention_mask": torch.ones(1, 1, 4, 4)}, "attention_mask"),
    (BOTH_SIDES, {**PAIR, "cu_seq_lens_q": BORDERS}, "cu_seq_lens_q"),
    (
        BOTH_SIDES,
        {
            "input_ids": IDS[:2],
            "position_ids": POSITIONS.flip(0),
            "decoder_input_ids": IDS[:2],
            "decoder_position_ids": POSITIONS,
        },
        r"\[2, 3\].* \[1, 3\]",
    ),
    (
        CROSS,
        {"encoder_hidden_states": MEMORY, "encoder_attention_mask": torch.ones(1, 5)},
        "encoder_attention_mask",
    ),
    (
        CROSS,
        {
            "input_ids": IDS[:1],
            "encoder_hidden_states": MEMORY[:1],
            "position_ids": POSITIONS[:1],
            "output_hidden_states": True,
        },
        "documents",
    ),
    (HEADS_ALONE, {"encoder_hidden_states": MEMORY, "use_cache": True}, "use_cache=False"),
]


@pytest.mark.parametrize(("model", "arguments", "message"), UNFIT)
def test_inputs_that_do_not_fit_are_named(model, arguments, message):
    model_class, fields = model
    assert_refused(make(model_class, **fields), message, **arguments)


def test_inputs_beside_a_cache():
    """A mask needs columns for cached tokens, because its last columns are the new tokens."""
    model = make(rl.RoFormerLiteForCausalLM)
    for columns in (3, 4, 9, 12):
        cache = DynamicCache(config=model.config)
        model(IDS[:, :5], past_key_values=cache)
        new = {"input_ids": IDS[:, 5:], "attention_mask": torch.ones(4, columns)}
        assert_refused(model, "attention_mask", **new, past_key_values=cache)
    packed = {"input_ids": IDS[:1], "position_ids": POSITIONS[:1]}
    assert_refused(model, "packed documents", **packed, past_key_values=DynamicCache())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", "mlm causal token seq2seq".split())
def test_labels_of_tokens(kind, training):
    """Labels have the shape of the ids, and are integers."""
    model = make_model(kind).train(training)
    arguments = PAIR if kind == "seq2seq" else {}
    assert_refused(model, "labels", labels=IDS[:, :6], **arguments)
    for dtype in (torch.float32, torch.bool):
        assert_refused(model, "integers", labels=(IDS % 2).to(dtype))


def test_targets_of_rows():
    """Targets of several labels are probabilities, and several numbers have a column each."""
    model = make(rl.RoFormerLiteForSequenceClassification, num_labels=3)
    for labels in (torch.tensor([0, 1]), torch.tensor([0.0, 1.0, 2.0])):
        assert_refused(model, "labels", labels=labels)
    # Refused labels do not decide the type of the problem.
    assert model.config.problem_type is None
    assert model(IDS, labels=torch.tensor([[0], [1], [2], [0]])).loss > 0
    assert_refused(model, "integers", labels=torch.tensor([0.0, 1.0, 2.0, 0.0]))
    model.config.problem_type = "multi_label_classification"
    for wrong in (2.0, -1.0, float("nan")):
        assert_refused(model, "between 0 and 1", labels=torch.full((4, 3), wrong))
    assert model(IDS, labels=torch.full((4, 3), 0.25)).loss > 0
    model.config.problem_type = "regression"
    assert_refused(model, "labels", labels=torch.ones(12))
    assert model(IDS, labels=torch.full((4, 3), 2.0)).loss > 0


# Arguments that no batch of `make_batch` has, with the fields of a stack that takes them.
CALLS = {
    "encoder": (
        {"name": "learned-typed"},
        {"token_type_ids": IDS % 2, "position_ids": torch.arange(8).expand(4, 8)},
    ),
    "packed": ({}, {"position_ids": torch.arange(32)[None] % 12}),
    "decoder": (
        DECODER,
        {
            "encoder_hidden_states": MEMORY,
            "encoder_attention_mask": torch.ones(4, 5).long(),
        },
    ),
}


def same_meaning(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """The same numbers in another order in memory, and in every dtype that can hold them."""
    yield value.transpose(0, -1).contiguous().transpose(0, -1)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float64):
        changed = value.to(dtype)
        if dtype != value.dtype and bool((changed == value).all()):
            yield changed


@pytest.mark.parametrize("kind", [*CALLS, *HEADS])
def test_only_the_values_matter(kind):
    """An argument in another dtype, or in another order in memory, is refused or changes
    nothing."""
    if kind in CALLS:
        fields, more = CALLS[kind]
        model = make(rl.RoFormerLiteModel, **fields)
        ids = IDS.view(1, -1) if kind == "packed" else IDS
        call = {"input_ids": ids, **more}
    else:
        model = make_model(kind)
        call = make_batch(kind)
    expected = model(**call)[0]
    for name, value in call.items():
        for changed in same_meaning(value):
            try:
                found = model(**{**call, name: changed})[0]
            except (ValueError, TypeError, RuntimeError, IndexError):
                continue
            assert_close(found, expected)
    assert_close(model(**call)[0], expected)


@pytest.mark.parametrize("use_cache", [False, True])
def test_any_number_but_zero_in_a_mask_is_a_token(use_cache):
    model = make(rl.RoFormerLiteForCausalLM)
    mask = (torch.arange(8) >= torch.tensor([[0], [2], [5], [7]])).long()
    ones = model(IDS, attention_mask=mask, use_cache=use_cache)[0]
    sevens = model(IDS, attention_mask=mask * 7, use_cache=use_cache)[0]
    assert_equal(sevens, ones)


@pytest.mark.parametrize("kind", ["question", "token"])
def test_small_integers_as_labels(kind):
    """-100, with which labels are ignored, is no number of uint8."""
    model = make_model(kind)
    batch = make_batch(kind)
    length = batch["input_ids"].shape[1]
    mask = batch["attention_mask"].clone()
    mask[0, length // 2 :] = 0
    names = ["labels"] if kind == "token" else ["start_positions", "end_positions"]
    labels = {name: batch[name].clamp(min=0) for name in names}
    if kind == "question":
        labels["end_positions"][0] = length + 3
    given = {**batch, "attention_mask": mask}
    expected = model(**{**given, **labels}).loss
    small = {name: value.to(torch.uint8) for name, value in labels.items()}
    assert_equal(model(**{**given, **small}).loss, expected)


@pytest.mark.parametrize("kind", HEADS)
def test_no_rows(kind):
    for training in (False, True):
        model = make_model(kind).train(training)
        no_rows = {name: tensor[:0] for name, tensor in make_batch(kind).items()}
        model(**no_rows).loss.backward()
        gradients = gradients_of(model)
        assert gradients and all((gradient == 0).all() for gradient in gradients)
