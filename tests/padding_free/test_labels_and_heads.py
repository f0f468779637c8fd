"""Losses, logits and gradients stay the same for all heads, and for labels at padding."""

import copy

import pytest
import torch
import transformers
from comparisons import (
    CLOSE,
    MODELS,
    VOCAB,
    assert_same_gradients,
    assert_same_outputs,
    batch_for,
    build,
    inputs_for,
    pair,
)

from hf_roformer_lite import padding_free

# The batches of these models have holes; those of all others are padded on the left.
HOLES_IN = ("gpt2", "mpnet mlm", "bloom")


@pytest.mark.parametrize("name", MODELS)
def test_outputs_losses_and_gradients(name):
    """Batches are padded on the left or have holes, and may be a part of a step.

    test_every_type.py has batches that are padded on the right, for every type."""
    has_holes = name in HOLES_IN
    stock, free = pair(name)
    batch = batch_for(name, side="right" if has_holes else "left")
    if has_holes:
        batch["attention_mask"][0, 5] = batch["labels"][0, 5] = 0
        batch["labels"][0, 5:7] = -100
    with torch.no_grad():
        assert_same_outputs(free, stock, batch)
    if "tokens" not in name and "classes" not in name:
        batch["num_items_in_batch"] = torch.tensor(7)
    assert_same_gradients(free, stock, batch)


def test_logits_in_training():
    """Logits are skipped, unless they are requested, or a loss function of a user may need them."""
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    real = batch["attention_mask"].bool()
    assert free.train()(**batch).get("logits") is None
    whole = padding_free(free, skip_logits=False)(**batch).logits
    torch.testing.assert_close(whole[real], stock(**batch).logits[real], **CLOSE)
    stock, free = pair("bert tokens")
    batch = batch_for("bert tokens")
    assert_same_outputs(free.train(), stock, batch)

    def loss_of_rows(logits, labels, vocab_size, **_):
        losses = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none")
        return (losses.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean()

    stock, free = pair("llama")
    stock.loss_function = free.loss_function = loss_of_rows
    assert_same_gradients(free, stock, batch_for("llama"))


def test_labels_at_padding_of_a_decoder_that_also_takes_sound():
    """transformers lists the class of this decoder in the table of encoder–decoders."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sound = {**sizes, "intermediate_size": 32, "num_mel_bins": 16, "max_source_positions": 20}
    text = {**sizes, "intermediate_size": 32, "vocab_size": VOCAB, "pad_token_id": 0}
    text |= {"model_type": "llama", "num_key_value_heads": 2, "head_dim": 16}
    config = transformers.VoxtralConfig(audio_config=sound, text_config=text, audio_token_id=59)
    stock = transformers.VoxtralForConditionalGeneration(config).eval()
    batch = batch_for("llama")
    batch["labels"] = batch["input_ids"]
    expected = stock(**batch).loss
    torch.testing.assert_close(padding_free(stock)(**batch).loss, expected, **CLOSE)


@pytest.mark.parametrize(
    "class_name", ["LlamaForSequenceClassification", "GPT2ForSequenceClassification"]
)
@pytest.mark.parametrize("filler", [1, "embeddings"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_heads_that_look_for_the_last_token(class_name, filler, side):
    """Such a head searches the ids for the padding token, but the rows are padded with another
    token, or have no ids."""
    stock, free = pair(class_name, pad_token_id=0)
    batch = batch_for("bert classes", side)
    is_padding = batch["attention_mask"] == 0
    if filler == "embeddings":
        ids = batch.pop("input_ids")
        batch["inputs_embeds"] = stock.get_input_embeddings()(ids).detach()
    else:
        batch["input_ids"][is_padding] = filler
    torch.testing.assert_close(free(**batch).logits, stock(**batch).logits, **CLOSE)
    assert_same_gradients(free, stock, batch)


def test_a_class_that_is_only_named_like_one_of_transformers():
    class BertForTokenClassification(transformers.BertPreTrainedModel):
        def __init__(self, config):
            super().__init__(config)
            self.bert = transformers.BertModel(config, add_pooling_layer=False)
            self.post_init()

        def forward(self, input_ids=None, attention_mask=None, labels=None, **kwargs):
            return {"scores": self.bert(input_ids, attention_mask)[0]}

    stock = BertForTokenClassification(build("BertModel").config).eval()
    free = padding_free(copy.deepcopy(stock))
    assert_same_outputs(free, stock, batch_for("bert tokens"))


def test_a_head_that_reads_the_last_place():
    """Such a head still gets the state of a padding token."""
    stock, free = pair("GPT2DoubleHeadsModel", num_labels=1)
    for side in ("left", "right"):
        batch = inputs_for("bert mlm", side)
        torch.testing.assert_close(free(**batch).mc_logits, stock(**batch).mc_logits, **CLOSE)


@pytest.mark.parametrize(
    "class_name", ["UMT5ForTokenClassification", "T5GemmaForTokenClassification"]
)
def test_labels_at_padding_of_taggers_of_two_sided_families(class_name):
    """The configuration names an encoder–decoder, but the labels belong to the source."""
    stock, free = pair(class_name)
    batch = batch_for("bert tokens")
    batch["labels"] = torch.zeros_like(batch["input_ids"])
    torch.testing.assert_close(free(**batch).loss, stock(**batch).loss, **CLOSE)


def test_a_head_that_reads_padding_of_a_given_target():
    stock, free = pair("T5GemmaForSequenceClassification")
    batch = inputs_for("bert classes")
    batch["decoder_input_ids"] = batch["input_ids"]
    batch["decoder_attention_mask"] = batch["attention_mask"]
    torch.testing.assert_close(free(**batch).logits, stock(**batch).logits, **CLOSE)


def test_labels_of_padding_and_autocast():
    stock, free = pair("gpt2")
    batch = batch_for("gpt2")
    # The labels of padding count in the stock model, and must do so in the padding-free one.
    batch["labels"] = batch["input_ids"]
    assert_same_gradients(free, stock, batch)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(free(**batch).loss, stock(**batch).loss, rtol=2e-2, atol=2e-2)
