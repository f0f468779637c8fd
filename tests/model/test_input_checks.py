"""Inputs that do not fit are refused, where torch would compute something from them."""

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config

from hf_roformer_lite import (
    RoFormerLiteForCausalLM,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)

IDS = torch.randint(5, VOCAB, (4, 8), generator=torch.Generator().manual_seed(0))
PAIR = {"decoder_input_ids": IDS}
MASKS = {
    "three dimensions": (torch.ones(4, 8, 8), "attention_mask"),
    "one dimension": (torch.ones(8), "attention_mask"),
    "whole numbers in four": (torch.ones(4, 1, 8, 8).long(), "attention_mask"),
    "to be added, in two": (torch.zeros(4, 8).index_fill(1, torch.tensor([7]), -1e9), "attention_mask"),
    "another batch": (torch.ones(3, 8), "attention_mask"),
}


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind, is_decoder):
    mask, message = MASKS[kind]
    model = build(RoFormerLiteModel, stack_config(is_decoder=is_decoder))  # as many heads as rows: broadcasting fits
    with pytest.raises((ValueError, TypeError), match=message):
        model(IDS, attention_mask=mask, use_cache=False)


@pytest.mark.parametrize("ids", [IDS[0], IDS[None], IDS.float(), IDS.tolist()])
@pytest.mark.parametrize("model_class", [RoFormerLiteModel, RoFormerLiteForSequenceClassification])
def test_ids(ids, model_class):
    with pytest.raises((ValueError, TypeError, RuntimeError, AttributeError)):
        build(model_class, stack_config())(ids)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("model_class", "more"),
    [
        (RoFormerLiteForMaskedLM, {}),
        (RoFormerLiteForCausalLM, {}),
        (RoFormerLiteForTokenClassification, {}),
        (RoFormerLiteForConditionalGeneration, PAIR),
    ],
)
def test_labels_of_another_shape(model_class, more, training):
    is_pair = model_class is RoFormerLiteForConditionalGeneration
    model = build(model_class, seq2seq_config() if is_pair else stack_config(num_labels=VOCAB)).train(training)
    with pytest.raises(ValueError, match="labels"):
        model(IDS, labels=IDS[:, :6], **more)
    with pytest.raises((ValueError, IndexError)):
        model(IDS, labels=IDS.flatten(), **more)


def test_labels_of_rows():
    model = build(RoFormerLiteForSequenceClassification, stack_config(num_labels=3))
    with pytest.raises(ValueError, match="labels"):
        model(IDS, labels=torch.tensor([0, 1]))
    assert model(IDS, labels=torch.tensor([[0], [1], [2], [0]])).loss > 0


@pytest.mark.parametrize(
    ("model_class", "wrong", "right"),
    [
        (RoFormerLiteForMaskedLM, "atention_mask", "attention_mask"),
        (RoFormerLiteForMaskedLM, "lables", "labels"),
        (RoFormerLiteModel, "position_id", "position_ids"),
        (RoFormerLiteForSequenceClassification, "attention_masks", "attention_mask"),
        (RoFormerLiteForConditionalGeneration, "encoder_output", "encoder_outputs"),
        (RoFormerLiteForConditionalGeneration, "decoder_input_id", "decoder_input_ids"),
    ],
)
def test_misspelt_arguments(model_class, wrong, right):
    is_pair = model_class is RoFormerLiteForConditionalGeneration
    model = build(model_class, seq2seq_config() if is_pair else stack_config())
    with pytest.raises(TypeError, match=f"{wrong!r}; did you mean {right!r}"):
        model(IDS, **{wrong: IDS}, **(PAIR if is_pair else {}))


def test_options_of_attention_functions_go_through():
    model = build(RoFormerLiteModel, stack_config())
    options = {"softcap": None, "output_attentions": False, "max_length": 9, "past_key_value": None}
    options["position_bias"] = torch.zeros(1, 1, 1, 1)
    torch.testing.assert_close(model(IDS, **options)[0], model(IDS)[0])


def test_segments_where_there_are_none():
    segments = torch.zeros_like(IDS)
    model = build(RoFormerLiteForSequenceClassification, stack_config())
    torch.testing.assert_close(model(IDS, token_type_ids=segments).logits, model(IDS).logits)  # of BERT's tokenizers
    segments[0, 3:] = 1
    with pytest.raises(ValueError, match="token_type_ids"):
        build(RoFormerLiteModel, stack_config())(IDS, token_type_ids=segments)
    assert build(RoFormerLiteModel, stack_config("learned-typed"))(IDS, token_type_ids=segments)[0].isfinite().all()
