"""Tests that inputs and labels that do not fit are refused, even if torch can compute with them, and
that only their values matter."""

from collections.abc import Iterator

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config
from toy_training import HEADS, make_batch, make_model
from transformers import DynamicCache

import hf_roformer_lite as rl

IDS = torch.randint(5, VOCAB, (4, 8), generator=torch.Generator().manual_seed(0))
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


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"cu_seq_lens_q": torch.tensor([0, 5, 9])}, r"cu_seq_lens_q=\[0, 5, 9\].*32"),
        ({"cu_seq_lens_q": torch.tensor([0, 5, 11, 32])}, "in one sequence"),
        ({"inputs_embeds": torch.zeros(4, 8, 32)}, "exactly one of input_ids and inputs_embeds"),
        (
            {"encoder_hidden_states": torch.zeros(4, 2, 32)},
            "does not attend to encoder_hidden_states",
        ),
        ({"seq_idx": torch.zeros(4, 8).long()}, "seq_idx does not suffice"),
    ],
)
def test_inputs_that_do_not_fit_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(rl.RoFormerLiteModel)(IDS, **kwargs)


def test_inputs_of_the_pair():
    model = make(rl.RoFormerLiteForConditionalGeneration)
    with pytest.raises(ValueError, match="decoder_input_ids"):
        model(IDS)
    with pytest.raises(ValueError, match="attention_mask"):
        model(IDS, torch.ones(1, 1, 4, 4), **PAIR)
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(IDS, **PAIR, cu_seq_lens_q=torch.tensor([0, 3, 32], dtype=torch.int32))


def test_inputs_of_a_stack_with_cross_attention():
    stack = make(rl.RoFormerLiteModel, is_decoder=True, add_cross_attention=True)
    memory = torch.randn(4, 5, 32)
    with pytest.raises(ValueError, match="encoder_attention_mask"):
        stack(IDS, encoder_hidden_states=memory, encoder_attention_mask=torch.ones(1, 5))
    packed = {"cu_seq_lens_q": torch.tensor([0, 2, 8]), "encoder_hidden_states": memory[:1]}
    with pytest.raises(ValueError, match="documents"):
        stack(IDS[:1], **packed, output_hidden_states=True)
    assert stack(IDS[:1], encoder_hidden_states=memory[:1], use_cache=False)[0].shape == (1, 8, 32)


def test_cross_attention_of_parallel_heads_refuses_a_cache():
    """Without self-attention, there is no cache from which the next positions could be counted."""
    fields = {"is_decoder": True, "add_cross_attention": True, "use_cache": False}
    model = make(rl.RoFormerLiteModel, name="parallel-heads", **fields)
    with pytest.raises(ValueError, match="use_cache=False"):
        model(IDS, encoder_hidden_states=torch.randn(4, 5, 32), use_cache=True)


def test_inputs_beside_a_cache():
    """A mask needs columns for cached tokens, because its last columns are the new tokens."""
    model = make(rl.RoFormerLiteForCausalLM)
    for columns in (3, 4, 9, 12):
        cache = DynamicCache(config=model.config)
        model(IDS[:, :5], past_key_values=cache)
        with pytest.raises(ValueError, match="attention_mask"):
            model(IDS[:, 5:], attention_mask=torch.ones(4, columns), past_key_values=cache)
    positions = torch.tensor([[0, 1, 0, 1, 2, 3, 4, 5]])
    for packed in ({"cu_seq_lens_q": torch.tensor([0, 2, 8])}, {"position_ids": positions}):
        with pytest.raises(ValueError, match="packed documents"):
            model(IDS[:1], past_key_values=DynamicCache(), **packed)
    right = (torch.arange(8) < torch.tensor([[8], [2], [8], [8]])).long()
    with pytest.raises(ValueError, match="pad on the left"):
        model.generate(
            IDS, attention_mask=right, prefill_chunk_size=3, max_new_tokens=2, do_sample=False
        )


@pytest.mark.parametrize("training", [False, True])
def test_labels_of_another_shape(training):
    for model_class in (
        rl.RoFormerLiteForMaskedLM,
        rl.RoFormerLiteForCausalLM,
        rl.RoFormerLiteForTokenClassification,
    ):
        with pytest.raises(ValueError, match="labels"):
            make(model_class, num_labels=VOCAB).train(training)(IDS, labels=IDS[:, :6])
    with pytest.raises(ValueError, match="labels"):
        make(rl.RoFormerLiteForConditionalGeneration).train(training)(
            IDS, labels=IDS[:, :6], **PAIR
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
@pytest.mark.parametrize("training", [False, True])
def test_labels_that_are_no_classes(dtype, training):
    labels = (IDS % 2).to(dtype)
    for model_class in (
        rl.RoFormerLiteForMaskedLM,
        rl.RoFormerLiteForTokenClassification,
        rl.RoFormerLiteForConditionalGeneration,
    ):
        with pytest.raises(ValueError, match="integers"):
            make(model_class).train(training)(IDS, labels=labels)
    model = make(rl.RoFormerLiteForSequenceClassification, num_labels=3)
    model.config.problem_type = "single_label_classification"
    with pytest.raises(ValueError, match="integers"):
        model(IDS, labels=labels[:, 0])


def test_targets_of_rows():
    """Targets of several labels are probabilities, and several numbers have a column each."""
    model = make(rl.RoFormerLiteForSequenceClassification, num_labels=3)
    model.config.problem_type = "multi_label_classification"
    for wrong in (2.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            model(IDS, labels=torch.full((4, 3), wrong))
    assert model(IDS, labels=torch.full((4, 3), 0.25)).loss > 0
    model.config.problem_type = "regression"
    with pytest.raises(ValueError, match="labels"):
        model(IDS, labels=torch.ones(12))
    assert model(IDS, labels=torch.full((4, 3), 2.0)).loss > 0


def test_labels_of_rows():
    model = make(rl.RoFormerLiteForSequenceClassification, num_labels=3)
    for labels in (torch.tensor([0, 1]), torch.tensor([0.0, 1.0, 2.0])):
        with pytest.raises(ValueError, match="labels"):
            model(IDS, labels=labels)
    # Refused labels do not decide the type of the problem.
    assert model.config.problem_type is None
    assert model(IDS, labels=torch.tensor([[0], [1], [2], [0]])).loss > 0


def test_segments_where_there_are_none():
    segments = torch.zeros_like(IDS)
    segments[0, 3:] = 1
    with pytest.raises(ValueError, match="token_type_ids"):
        make(rl.RoFormerLiteModel)(IDS, token_type_ids=segments)
    model = make(rl.RoFormerLiteModel, name="learned-typed")
    assert model(IDS, token_type_ids=segments)[0].isfinite().all()


DECODER = {"is_decoder": True, "add_cross_attention": True}
# Arguments that no batch of `make_batch` has, with the fields of a stack that takes them.
CALLS = {
    "encoder": (
        {"name": "learned-typed"},
        {"token_type_ids": IDS % 2, "position_ids": torch.arange(8).expand(4, 8)},
    ),
    "packed": ({}, {"cu_seq_lens_q": torch.tensor([0, 8, 20, 32], dtype=torch.int32)}),
    "decoder": (
        DECODER,
        {
            "encoder_hidden_states": torch.ones(4, 5, 32),
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
    """An argument in another dtype, or in another order in memory, is refused or changes nothing."""
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
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(**call)[0], expected)


@pytest.mark.parametrize("use_cache", [False, True])
def test_any_number_but_zero_in_a_mask_is_a_token(use_cache):
    model = make(rl.RoFormerLiteForCausalLM)
    mask = (torch.arange(8) >= torch.tensor([[0], [2], [5], [7]])).long()
    ones = model(IDS, attention_mask=mask, use_cache=use_cache)[0]
    sevens = model(IDS, attention_mask=mask * 7, use_cache=use_cache)[0]
    torch.testing.assert_close(sevens, ones, rtol=0, atol=0)
