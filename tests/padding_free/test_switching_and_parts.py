"""Nothing is left of `padding_free` after it was switched off, and parts of models work alone."""

import copy

import pytest
import torch
import transformers
from comparisons import (
    PLACES,
    VOCAB,
    CountedTokens,
    assert_close,
    assert_same_gradients,
    assert_same_outputs,
    batch_for,
    batch_of_pairs,
    build,
    inputs_for,
    pair,
    paired,
)
from conftest import assert_equal, stack_config
from conftest import build as build_own

from hf_roformer_lite import RoFormerLiteForSequenceClassification, padding_free


def test_a_configuration_that_asks_for_all_layers():
    """Such a model can be padding-free, and computes padding until its configuration changes."""
    stock, free = pair("BertForMaskedLM", output_hidden_states=True)
    batch = batch_for("bert mlm")
    assert_same_outputs(free, stock, batch)
    free.config.output_hidden_states = False
    with CountedTokens(free) as counted:
        free(**batch)
    assert counted.numbers == [24]


def test_a_model_that_is_called_within_another_one():
    """Each decides by itself whether it must compute padding."""
    batch = inputs_for("bert mlm")
    stock, inner = pair("BertForQuestionAnswering")
    outer = padding_free(build("BertForMaskedLM"))
    found = []
    outer.get_input_embeddings().register_forward_hook(
        lambda *_: found.append(inner(**batch, **PLACES).loss)
    )
    outer(**batch)
    assert_close(found[0], stock(**batch, **PLACES).loss)


class Around(transformers.PreTrainedModel):
    """A user's model, which calls the one within with other arguments than its own."""

    config_class = transformers.PreTrainedConfig
    base_model_prefix = "inner"
    _supports_sdpa = True

    def __init__(self, inner: transformers.PreTrainedModel):
        super().__init__(inner.config)
        self.inner = inner

    def forward(
        self, input_ids=None, attention_mask=None, others=(), targets=None, ids=None, mask=None
    ):
        if input_ids is None:
            return self.inner(ids, attention_mask=mask)
        if targets is not None:
            return self.inner(input_ids, attention_mask=attention_mask, labels=targets)
        texts = [(input_ids, attention_mask), *others]
        return tuple(
            self.inner(ids, attention_mask=mask)[0] * mask[..., None] for ids, mask in texts
        )


@pytest.mark.parametrize("name", "BertModel DebertaV2Model MPNetModel LlamaModel".split())
def test_a_model_that_computes_several_texts(name):
    texts = [
        tuple(inputs.values())
        for inputs in (
            inputs_for("bert mlm"),
            inputs_for("bert classes", lengths=(3, 9, 12, 5)),
            inputs_for("bert mlm", side="left", lengths=(8, 2)),
        )
    ]
    stock, free = paired(Around(build(name)))
    with torch.no_grad():
        first, *others = stock(*texts[0], others=texts[1:])
        with CountedTokens(free) as counted:
            found = free(*texts[0], others=texts[1:])
    assert_close(found, (first, *others))
    # A head of an encoder may read the first position, here of a row with padding on the left.
    num_last = 10 if name == "LlamaModel" else 16
    assert sum(counted.numbers) == 24 + 29 + num_last
    if name == "BertModel":
        compiled = torch.compile(free, backend="eager", fullgraph=True, dynamic=True)
        assert_close(compiled(*texts[0], others=texts[1:]), found)


def test_a_model_that_names_its_arguments_otherwise():
    """Labels at padding are seen under another name, and so is padding before a pooler."""
    batch = batch_for("bert mlm", side="left")
    named = {"ids": batch["input_ids"], "mask": batch["attention_mask"]}
    stock, free = paired(Around(build("BertModel")))
    assert_close(free(**named).pooler_output, stock(**named).pooler_output)
    stock, free = paired(Around(build("BertForMaskedLM")))
    batch["targets"] = batch.pop("labels").clamp(min=0)
    assert_close(free.train()(**batch).loss, stock.train()(**batch).loss)


def test_parts_called_by_themselves():
    """The base model and the encoder of a padding-free model may be called by themselves."""
    stock, free = pair("bert classes")
    for side in ("left", "right"):
        batch = inputs_for("bert classes", side)
        assert_same_outputs(free.bert, stock.bert, batch)
    stock, free = pair("BartForConditionalGeneration")
    batch = batch_of_pairs()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    assert_same_outputs(free.get_encoder(), stock.get_encoder(), inputs)
    output = free.get_encoder()(**inputs, output_attentions=True)
    assert len(output.attentions) == free.config.encoder_layers


def test_two_heads_on_one_model():
    first = build("bert classes")
    second = build("bert tokens")
    second.bert = first.bert
    before = first.config._attn_implementation
    heads = torch.nn.ModuleList([first, second])
    padding_free(padding_free(heads), enabled=False)
    assert type(first.bert) is transformers.BertModel
    assert {head.config._attn_implementation for head in heads} == {before}


def test_a_composed_model():
    """The encoder and its layers have different objects as their configurations."""
    decoder = build("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    both = transformers.EncoderDecoderModel(encoder=build("BertModel"), decoder=decoder)
    stock, free = paired(both.encoder)
    batch = inputs_for("bert mlm")
    assert_same_outputs(free, stock, batch)
    # As a whole, it hides the padding tokens of targets itself, even the first token.
    both.config.pad_token_id = both.config.decoder_start_token_id = 0
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    stock, free = paired(both)
    assert_same_gradients(free, stock, batch)


def test_switched_off_and_saved(tmp_path):
    """Nothing of `padding_free` is saved, shared with a copy, or left after an error or a switch
    back."""
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    # Switching a second time changes nothing.
    padding_free(padding_free(free))
    stock.save_pretrained(tmp_path / "stock")
    free.save_pretrained(tmp_path / "free")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "free" / file).read_bytes() == (tmp_path / "stock" / file).read_bytes()
    twin = copy.deepcopy(free)
    with torch.no_grad():
        twin.bert.embeddings.word_embeddings.weight.zero_()
    with pytest.raises(IndexError):
        free(input_ids=batch["input_ids"] + VOCAB, attention_mask=batch["attention_mask"])
    expected = stock(**batch).logits
    real = batch["attention_mask"].bool()
    assert_close(free(**batch).logits[real], expected[real])
    assert not torch.allclose(twin(**batch).logits[real], expected[real], atol=1e-3)
    free.train().bert.eval()
    modes = [module.training for module in free.modules()]
    for model in (free, padding_free(twin, enabled=False)):
        padding_free(model, enabled=False)
        assert model.config._attn_implementation == stock.config._attn_implementation
        assert type(model) is transformers.BertForMaskedLM
        assert model.state_dict().keys() == stock.state_dict().keys()
        for module, other in zip(model.modules(), stock.modules(), strict=True):
            assert vars(module).keys() == vars(other).keys()
    again = padding_free(padding_free(free), enabled=False)
    assert [module.training for module in again.modules()] == modes
    # A model that was switched back computes the same logits at padding, too.
    assert_equal(free.eval()(**batch).logits, expected)


def test_saved_outputs_are_plain_tensors(tmp_path):
    _, free = pair("bert tokens")
    with torch.no_grad():
        logits = free(**batch_for("bert tokens"), output_hidden_states=False).logits
    torch.save(logits, tmp_path / "logits")
    assert_equal(torch.load(tmp_path / "logits"), logits)


@pytest.mark.parametrize("name", ["bert classes", "deberta mlm", "own", "own, padded"])
def test_functions_of_parameters_and_quantised_maps(name):
    """torch.func differentiates a model as a function, and torch.ao replaces its linear maps."""
    inputs = inputs_for("bert classes")
    if name.startswith("own"):
        free = build_own(RoFormerLiteForSequenceClassification, stack_config(vocab_size=VOCAB))
        stock = padding_free(copy.deepcopy(free), False)
        if name == "own, padded":
            free = stock
        stock.set_attn_implementation("eager")
    else:
        stock, free = pair(name)

    def total(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(free, weights, (), inputs).logits[:, 0].square().sum()

    weights = {key: weight.detach() for key, weight in free.named_parameters()}
    found = torch.func.grad(total)(weights)
    stock(**inputs).logits[:, 0].square().sum().backward()
    for key, weight in stock.named_parameters():
        expected = torch.zeros_like(weight) if weight.grad is None else weight.grad
        assert_close(found[key], expected)
    quantised = [
        torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}) for model in (free, stock)
    ]
    with torch.no_grad():
        found, expected = (model(**inputs).logits[:, 0] for model in quantised)
    # The scales of activations depend on all rows, padding included.
    assert (found - expected).norm() < 0.1 * expected.norm()
