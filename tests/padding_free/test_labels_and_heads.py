"""Losses, logits and gradients stay the same for all heads, and for labels at padding."""

import pytest
import torch
import transformers
from comparisons import (
    assert_close,
    assert_same_gradients,
    assert_same_outputs,
    batch_for,
    batch_of_pairs,
    build,
    gradients,
    inputs_for,
    pair,
    paired,
)

from hf_roformer_lite import padding_free


def test_logits_in_training():
    """Logits are skipped, unless they are requested, or a loss function of a user may need them."""
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    assert not isinstance(free.train()(**batch).logits, torch.Tensor)
    assert_same_outputs(padding_free(free, skip_logits=False), stock, batch)
    stock, free = pair("bert tokens")
    assert_same_outputs(free.train(), stock, batch_for("bert tokens"))

    def loss_of_rows(logits, labels, vocab_size, **_):
        losses = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none")
        return (losses.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean()

    stock, free = pair("llama")
    stock.loss_function = free.loss_function = loss_of_rows
    assert_same_gradients(free, stock, batch_for("llama"))


@pytest.mark.parametrize(
    "class_name", ["LlamaForSequenceClassification", "GPT2ForSequenceClassification"]
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_heads_that_look_for_the_last_token(class_name, side):
    """Such a head searches the ids for the padding token, but the rows have no ids."""
    stock, free = pair(class_name, pad_token_id=0)
    batch = batch_for("bert classes", side)
    ids = batch.pop("input_ids")
    batch["inputs_embeds"] = stock.get_input_embeddings()(ids).detach()
    assert_close(free(**batch).logits, stock(**batch).logits)
    assert_same_gradients(free, stock, batch)


def test_a_class_that_is_only_named_like_one_of_transformers():
    class BertForTokenClassification(transformers.BertPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.bert = transformers.BertModel(config, add_pooling_layer=False)
            self.post_init()

        def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
            return {"scores": self.bert(input_ids, attention_mask)[0]}

    stock, free = paired(BertForTokenClassification(build("BertModel").config).eval())
    assert_same_outputs(free, stock, batch_for("bert tokens"))


def test_a_head_that_reads_the_last_place():
    """Such a head still gets the state of a padding token."""
    stock, free = pair("GPT2DoubleHeadsModel", num_labels=1)
    for side in ("left", "right"):
        batch = inputs_for("bert mlm", side)
        assert_close(free(**batch).mc_logits, stock(**batch).mc_logits)


def test_a_head_that_reads_padding_of_a_given_target():
    stock, free = pair("BartForSequenceClassification")
    batch = inputs_for("bert classes")
    batch["input_ids"][:, 3] = stock.config.eos_token_id
    batch["decoder_input_ids"] = batch["input_ids"]
    batch |= {"decoder_attention_mask": batch["attention_mask"], "use_cache": False}
    assert_close(free(**batch).logits, stock(**batch).logits)


def test_autocast():
    stock, free = pair("gpt2")
    batch = batch_for("gpt2")
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(free(**batch).loss, stock(**batch).loss, rtol=2e-2, atol=2e-2)


NAMES = (
    "bert mlm",
    "bert tokens",
    "modernbert mlm",
    "llama",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_labels(name):
    """One of several data-parallel processes may have such a batch. Every parameter that has a
    gradient in the stock model must have one here too, because processes that train with
    `DistributedDataParallel` wait for each other's gradients."""
    batch = batch_of_pairs() if name.endswith("Generation") else batch_for(name)
    batch["labels"] = torch.full_like(batch["labels"], -100)
    with_gradient = []
    for model in pair(name):
        _, gradient = gradients(model, batch)
        assert not gradient.any()
        with_gradient.append({n for n, w in model.named_parameters() if w.grad is not None})
    assert with_gradient[0] == with_gradient[1] != set()
