"""Encoder–decoders compute neither the padding of sources nor that of targets."""

import copy

import conftest
import pytest
import torch
from comparisons import (
    PLACES,
    assert_close,
    assert_same_gradients,
    batch_of_pairs,
    build,
    gradients,
    pair,
    paired,
)
from conftest import random_ids
from torch.utils.flop_counter import FlopCounterMode

import hf_roformer_lite as rl
from hf_roformer_lite import padding_free


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "class_name", ["T5ForConditionalGeneration", "BartForConditionalGeneration"]
)
def test_half_precision(class_name, dtype):
    """On a CPU, short documents are computed in float32 there, with the bias of distances of T5.
    The loss, the gradients and generated tokens stay the same as in the stock model."""
    stock, free = paired(build(class_name).to(dtype))
    batch = batch_of_pairs()
    expected, found = gradients(stock, batch), gradients(free, batch)
    assert_close(found[0], expected[0], rtol=2e-2, atol=2e-2)
    difference = (found[1].float() - expected[1].float()).norm() / expected[1].float().norm()
    assert difference < 3e-2
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 6, "do_sample": False}
    generated = [model.eval().generate(**inputs, **options) for model in (stock, free)]
    assert generated[0].equal(generated[1])


@pytest.mark.parametrize(
    "class_name",
    [
        "BartForConditionalGeneration",
        "T5ForConditionalGeneration",
        "MvpForConditionalGeneration",
    ],
)
@pytest.mark.parametrize("kind", ["decoder mask", "checkpointing"])
def test_encoder_decoders(class_name, kind):
    """Losses and gradients stay the same if the mask of the target leaves out labelled tokens, and
    under gradient checkpointing."""
    stock, free = pair(class_name)
    batch = batch_of_pairs()
    if kind == "decoder mask":
        batch["decoder_attention_mask"] = (batch["labels"] != -100).long()
        assert_same_gradients(free, stock, batch)
        batch["decoder_input_ids"] = batch["labels"].clamp(min=0)
        batch["decoder_attention_mask"][2, 8:] = 0
        assert_same_gradients(free, stock, batch)
        return
    for reentrant in (True, False):
        for model in (stock, free):
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        assert_same_gradients(free, stock, batch)


def test_sources_and_targets_of_the_same_shape():
    """Attention modules that compute scores themselves tell the two sides apart in inference mode,
    and T5's cross-attention has no bias even if both sides have the same tokens."""
    mask = torch.tensor([[1] * 12, [1] * 2 + [0] * 10, [0] * 5 + [1] * 7, [1, 0] * 6])
    ids = random_ids(*mask.shape)
    for class_name in ("MvpForConditionalGeneration", "T5ForConditionalGeneration"):
        stock, free = pair(class_name)
        for target in (mask, mask.flip(0)):
            inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
            inputs |= {"decoder_attention_mask": target, "use_cache": False}
            with torch.inference_mode():
                logits = [model(**inputs).logits[target == 1] for model in (free, stock)]
            assert_close(*logits)


def flops(model, **batch) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(**batch)
    return counter.get_total_flops()


@pytest.mark.parametrize("skip_logits", [True, False])
@pytest.mark.parametrize("name", ["Bart", "T5", "Blenderbot", "M2M100"])
def test_labels_show_the_padding_of_targets(name, skip_logits):
    """In training and in evaluation, also with the `decoder_input_ids` that
    `DataCollatorForSeq2Seq` adds without a mask. The last two models have no method that makes
    these ids, so that all logits are computed."""
    stock = build(f"{name}ForConditionalGeneration")
    free = padding_free(copy.deepcopy(stock), skip_logits=skip_logits)
    batch = batch_of_pairs()
    assert_same_gradients(free, stock, batch)
    mask = (batch["labels"] != -100).long()
    for ids in (None, batch["labels"] * mask):
        masked = flops(free, **batch, decoder_input_ids=ids, decoder_attention_mask=mask)
        assert flops(free, **batch, decoder_input_ids=ids) == masked
    assert flops(free.eval(), **batch) == masked < flops(stock, **batch)


def test_labels_show_the_padding_of_our_own_targets():
    model = conftest.build(rl.RoFormerLiteForConditionalGeneration, conftest.seq2seq_config())
    batch = batch_of_pairs()
    batch["input_ids"].clamp_(max=9)
    mask = (batch["labels"] != -100).long()
    found = flops(model, **batch)
    assert found == flops(model, **batch, decoder_attention_mask=mask)
    assert found < flops(padding_free(model, False), **batch)


@pytest.mark.parametrize("name", ["Bart", "T5", "Blenderbot"])
def test_a_target_that_goes_on_after_its_labels(name):
    """In training too, its logits are those of the stock model."""
    stock, free = pair(f"{name}ForConditionalGeneration")
    free = padding_free(free, skip_logits=False)
    batch = batch_of_pairs()
    batch["decoder_input_ids"] = random_ids(*batch["labels"].shape, seed=1)
    logits = [model.train()(**batch).logits for model in (free, stock)]
    assert_close(*logits)


def test_the_scores_of_padding_count_in_question_answering():
    stock, free = pair("BartForQuestionAnswering")
    batch = batch_of_pairs()
    mask = (batch.pop("labels") != -100).long()
    inputs = {"input_ids": batch["input_ids"], "decoder_input_ids": batch["input_ids"]}
    assert_same_gradients(free, stock, {**inputs, "decoder_attention_mask": mask, **PLACES})
    stock, free = pair("LayoutLMForQuestionAnswering")
    boxes = torch.zeros(4, 12, 4, dtype=torch.long)
    assert_same_gradients(free, stock, {**batch, "bbox": boxes, **PLACES})


def test_scoring_without_labels_skips_the_padding_of_targets():
    """Targets that are scored outside of training, without a cache, cost what their tokens cost."""
    stock, free = pair("BartForConditionalGeneration")
    ids = random_ids(2, 8)
    mask = torch.ones_like(ids)
    batch = {"input_ids": ids, "decoder_input_ids": ids, "use_cache": False}
    whole = flops(free, **batch, decoder_attention_mask=mask)
    assert whole == flops(stock, **batch, decoder_attention_mask=mask)
    mask[0, 2:] = 0
    assert flops(free, **batch, decoder_attention_mask=mask) < 0.9 * whole
