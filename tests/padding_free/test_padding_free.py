"""Models of transformers after `padding_free` are compared with the same models before it."""

import copy
import gc
import random
import threading
import weakref
from typing import Any

import pytest
import torch
import transformers
from accelerate import cpu_offload, disk_offload
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from accelerate.utils import compile_regions
from tiny_models import SIZES, tiny_model
from torch._dynamo.utils import counters
from torch.overrides import TorchFunctionMode
from transformers import DataCollatorWithFlattening, masking_utils

import hf_roformer_lite as rl
from hf_roformer_lite import PaddingFreeError, padding_free
from hf_roformer_lite.model.modeling_roformer_lite import same_document
from hf_roformer_lite.padding_free import attention, groups, trial
from hf_roformer_lite.padding_free import inputs as arguments
from hf_roformer_lite.padding_free.batch import FlatTokens
from hf_roformer_lite.padding_free.masks import DocumentMask
from hf_roformer_lite.padding_free.plan import Plan

VOCAB = SIZES["vocab_size"]
MODELS = {
    "bert mlm": "BertForMaskedLM",
    "bert classes": "BertForSequenceClassification",
    "bert tokens": "BertForTokenClassification",
    "modernbert mlm": "ModernBertForMaskedLM",
    "llama": "LlamaForCausalLM",
    "llama classes": "LlamaForSequenceClassification",
    "gpt2": "GPT2LMHeadModel",
    # The attention modules of these models compute the scores themselves.
    "mpnet mlm": "MPNetForMaskedLM",
    "deberta mlm": "DebertaV2ForMaskedLM",
    "bloom": "BloomForCausalLM",
    "gpt neo": "GPTNeoForCausalLM",
    "falcon classes": "FalconForSequenceClassification",
}
# The batches of these models have holes; those of all others are padded on the left.
HOLES_IN = ("gpt2", "mpnet mlm", "bloom")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def build(class_name: str, **fields: Any) -> torch.nn.Module:
    model_class = getattr(transformers, class_name)
    return tiny_model(model_class.config_class.model_type, model_class, **fields)


def make(name: str) -> torch.nn.Module:
    return build(MODELS[name])


def pair(name: str, **options: bool) -> tuple[torch.nn.Module, torch.nn.Module]:
    model = make(name)
    return model, padding_free(copy.deepcopy(model), **options)


def batch_for(
    name: str, side: str = "right", lengths: tuple[int, ...] = (12, 7, 1, 4)
) -> dict[str, torch.Tensor]:
    """A batch of random ids with labels in the form that the head of the model `name` takes."""
    generator = torch.Generator().manual_seed(len(name))
    shape = (len(lengths), max(lengths))
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).long()
    if side == "left":
        mask = mask.flip(1)
    ids = torch.randint(5, VOCAB, shape, generator=generator)
    batch = {"input_ids": ids * mask, "attention_mask": mask}
    is_labelled = mask.bool() & (torch.rand(shape, generator=generator) < 0.6)
    # A causal model would predict the first token after padding on the left from padding, so this
    # token gets no label.
    is_labelled[:, 1:] &= mask[:, :-1].bool()
    is_labelled[:, 0] &= side == "right"
    if "tokens" in name:
        batch["labels"] = (ids % 2).masked_fill(~is_labelled, -100)
    elif "classes" in name:
        batch["labels"] = torch.arange(len(lengths)) % 2
    else:
        batch["labels"] = ids.masked_fill(~is_labelled, -100)
    return batch


def gradients(
    model: torch.nn.Module, batch: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    model.train().zero_grad()
    loss = model(**batch).loss
    loss.backward()
    found = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return loss.detach(), torch.cat(found)


def assert_same_gradients(
    free: torch.nn.Module, stock: torch.nn.Module, batch: dict[str, torch.Tensor]
) -> None:
    """Compare the loss in training and all gradients."""
    for one, other in zip(gradients(free, batch), gradients(stock, batch), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


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
        expected = stock(**batch)
        found = free(**batch)
    assert found.logits.shape == expected.logits.shape
    has_logits_of_tokens = expected.logits.ndim == 3
    real = batch["attention_mask"].bool() if has_logits_of_tokens else slice(None)
    torch.testing.assert_close(found.logits[real], expected.logits[real], **CLOSE)
    torch.testing.assert_close(found.loss, expected.loss, **CLOSE)
    if has_logits_of_tokens and "tokens" not in name:
        batch["num_items_in_batch"] = torch.tensor(7)
    assert_same_gradients(free, stock, batch)


@pytest.mark.parametrize("share_att_key", [False, True])
def test_dropout_of_a_table_is_drawn_once_for_the_batch(share_att_key):
    stock = build("DebertaV2ForMaskedLM", share_att_key=share_att_key)
    without_dropout = copy.deepcopy(stock)
    for part in stock.modules():
        if hasattr(part, "pos_dropout"):
            part.pos_dropout.p = 0.5
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("deberta mlm")
    torch.manual_seed(0)
    expected = gradients(stock, batch)
    torch.manual_seed(0)
    torch.testing.assert_close(gradients(free, batch), expected, **CLOSE)
    assert not torch.allclose(gradients(without_dropout, batch)[0], expected[0], atol=1e-3)


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
    torch.testing.assert_close(
        free.train()(**batch).logits[real], stock(**batch).logits[real], **CLOSE
    )

    def loss_of_rows(logits, labels, vocab_size, **_):
        losses = torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none")
        return (losses.sum(1) / (labels != -100).sum(1).clamp(min=1)).mean()

    stock, free = pair("llama")
    stock.loss_function = free.loss_function = loss_of_rows
    assert_same_gradients(free, stock, batch_for("llama"))


def test_inputs_of_other_kinds():
    stock = build("BertModel")
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm")
    ids = batch["input_ids"]
    mask = batch["attention_mask"]
    vectors = stock.embeddings.word_embeddings(ids).detach()
    for inputs in (
        {"inputs_embeds": vectors, "attention_mask": mask},
        {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2},
        {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True},
        {"input_ids": ids, "attention_mask": mask[:, None, None].bool().expand(-1, 1, 12, -1)},
        {"input_ids": ids},
    ):
        expected = stock(**inputs)
        found = free(**inputs)
        real = mask.bool() if "attention_mask" in inputs else torch.ones_like(mask).bool()
        torch.testing.assert_close(
            found.last_hidden_state[real], expected.last_hidden_state[real], **CLOSE
        )
        torch.testing.assert_close(found.pooler_output, expected.pooler_output, **CLOSE)
        for one, other in zip(found.hidden_states or (), expected.hidden_states or (), strict=True):
            torch.testing.assert_close(one[real], other[real], **CLOSE)
    causal = build("Qwen3Model")
    by_type = {"full_attention": (mask[:, None, None] * torch.ones(12, 12).tril()).bool()}
    found = padding_free(copy.deepcopy(causal))(ids, attention_mask=by_type).last_hidden_state
    expected = causal(ids, attention_mask=by_type).last_hidden_state
    torch.testing.assert_close(found, expected, **CLOSE)
    stock.set_attn_implementation("eager")
    free = padding_free(copy.deepcopy(stock))
    inputs = {"input_ids": ids, "attention_mask": mask, "output_attentions": True}
    torch.testing.assert_close(free(**inputs).attentions, stock(**inputs).attentions, **CLOSE)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_packed_rows_equal_separate_ones(name):
    stock, free = pair(name)
    rows = [{"input_ids": torch.randint(5, VOCAB, (length,)).tolist()} for length in (9, 1, 14, 5)]
    separate = []
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        separate.append(stock(ids).logits[0])
    packed = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(rows)
    found = free(**packed)
    torch.testing.assert_close(found.logits[0], torch.cat(separate), **CLOSE)
    targets = [torch.tensor(row["input_ids"][1:], dtype=torch.long) for row in rows]
    losses = [
        torch.nn.functional.cross_entropy(logits[:-1], target, reduction="sum")
        for logits, target in zip(separate, targets, strict=True)
    ]
    # The 29 tokens of the four documents have 25 successors.
    torch.testing.assert_close(free.train()(**packed).loss, sum(losses) / (29 - 4), **CLOSE)


def test_t5_learns_in_bfloat16():
    """On a CPU, short documents are computed in float32 there, with their bias of distances."""
    stock, free, batch = pair_of("T5ForConditionalGeneration")
    expected = stock.train()(**batch).loss
    found = free.to(torch.bfloat16).train()(**batch).loss
    found.backward()
    assert abs(found - expected) < 0.02 * expected
    gradients = [weight.grad for weight in free.parameters() if weight.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_packed_rows_beside_a_mask_of_ones_are_kept_apart(name):
    """The causal masks of transformers separate documents only without a mask and a cache."""
    stock, free = pair(name)
    ids = torch.randint(5, VOCAB, (1, 12), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": positions}
    alone = torch.cat([stock(piece).logits for piece in ids.split([5, 3, 4], dim=1)], dim=1)
    torch.testing.assert_close(free(**inputs).logits, alone, **CLOSE)
    assert not torch.allclose(stock(**inputs).logits, alone, atol=1e-3)
    # Then the layers compute the batch.
    recorded = free(**inputs, output_hidden_states=True)
    torch.testing.assert_close(recorded.logits, alone, **CLOSE)
    labels = {"labels": ids.masked_fill(positions == 0, -100), "use_cache": False}
    assert_same_gradients(free, stock, {**inputs, **labels, "attention_mask": None})


@pytest.mark.parametrize(
    "class_name, separates",
    [
        ("LlamaForCausalLM", True),
        ("OPTForCausalLM", False),
        ("BloomForCausalLM", False),
        ("BertForMaskedLM", False),
    ],
)
def test_packed_rows_of_models_that_do_not_separate_them(class_name, separates, monkeypatch):
    """The outputs of such a model stay as they were, and there is one warning."""
    warnings: list[str] = []
    monkeypatch.setattr(arguments.logger, "warning_once", warnings.append)
    stock = build(class_name)
    free = padding_free(copy.deepcopy(stock))
    ids = torch.randint(5, VOCAB, (1, 9), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3]])
    inputs = {"input_ids": ids, "position_ids": positions}
    if "Bert" not in class_name:
        inputs["use_cache"] = False
    torch.testing.assert_close(free(**inputs).logits, stock(**inputs).logits, **CLOSE)
    assert ["packed rows" in warning for warning in warnings] == [True] * (not separates)


def test_a_configuration_that_asks_for_all_layers():
    """Such a model can be padding-free, and computes padding until its configuration changes."""
    stock = build("BertForMaskedLM", output_hidden_states=True)
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm")
    real = batch["attention_mask"].bool()
    for one, other in zip(free(**batch).hidden_states, stock(**batch).hidden_states, strict=True):
        torch.testing.assert_close(one[real], other[real], **CLOSE)
    free.config.output_hidden_states = False
    with CountedTokens(free) as counted:
        free(**batch)
    assert counted.numbers == [int(real.sum())]


def test_a_configuration_that_asks_for_attentions():
    """Only eager attention returns them, and a configuration that asks for them could not be saved
    with another implementation."""
    model = build("BertForMaskedLM", attn_implementation="eager", output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions=True, which requires eager attention"):
        padding_free(model)
    model.config.output_attentions = False
    batch = batch_for("bert mlm")
    assert padding_free(model)(**batch, output_attentions=True).attentions[0].shape[2:] == (12, 12)


def test_forward_that_accelerate_has_replaced():
    """It does so in each module of a model that is spread over several devices."""
    stock = make("bert tokens")
    free = copy.deepcopy(stock)
    for module in (free, free.bert, free.bert.encoder.layer[0]):
        add_hook_to_module(module, AlignDevicesHook(execution_device=torch.device("cpu")))
    batch = batch_for("bert tokens")
    expected = stock(**batch).logits
    batch["labels"] = torch.zeros_like(batch["input_ids"])
    for enabled in (True, False):
        padding_free(free, enabled=enabled)
        # Labels at padding need the states of padding.
        torch.testing.assert_close(free(**batch).loss, stock(**batch).loss, **CLOSE)
        with CountedTokens(free) as counted:
            free(**{**batch, "labels": None})
        assert counted.numbers == [24 if enabled else 48]
    torch.testing.assert_close(free(**batch).logits, expected, **CLOSE)


def test_a_head_that_cannot_be_tried(monkeypatch):
    class NeedsMore(transformers.BertPreTrainedModel):
        def __init__(self, config: transformers.BertConfig):
            super().__init__(config)
            self.bert = transformers.BertModel(config)
            self.post_init()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, target: Any):
            return self.bert(input_ids, attention_mask)[0].mean(1) - target

    warnings = []
    monkeypatch.setattr(trial.logger, "warning_once", warnings.append)
    padding_free(NeedsMore(make("bert mlm").config))
    assert "the head of NeedsMore could not be tried" in warnings[0]


def test_a_model_that_is_called_within_another_one():
    """Each decides by itself whether it must compute padding."""
    batch = batch_for("bert mlm")
    del batch["labels"]
    stock = build("BertForQuestionAnswering")
    inner = padding_free(copy.deepcopy(stock))
    outer = padding_free(build("BertForMaskedLM"))
    found = []

    def call_inner(*args: Any) -> None:
        found.append(inner(**batch, **PLACES).loss)

    outer.get_input_embeddings().register_forward_hook(call_inner)
    outer(**batch)
    torch.testing.assert_close(found[0], stock(**batch, **PLACES).loss, **CLOSE)


def pair_of(class_name: str) -> tuple[torch.nn.Module, torch.nn.Module, dict[str, torch.Tensor]]:
    """A stock encoder–decoder, its padding-free copy, and a batch of sources and targets of
    different lengths."""
    stock = build(class_name)
    batch = batch_for("bert mlm")
    lengths = torch.tensor([3, 9, 12, 5])
    labels = torch.randint(5, VOCAB, (4, 12), generator=torch.Generator().manual_seed(3))
    batch["labels"] = labels.masked_fill(torch.arange(12) >= lengths[:, None], -100)
    return stock, padding_free(copy.deepcopy(stock)), batch


@pytest.mark.parametrize(
    "class_name",
    [
        "BartForConditionalGeneration",
        "T5ForConditionalGeneration",
        "MvpForConditionalGeneration",
    ],
)
@pytest.mark.parametrize("kind", ["plain", "full target", "gaps", "decoder mask", "checkpointing"])
def test_encoder_decoders(class_name, kind):
    """Losses, gradients and generated tokens stay the same.

    This holds if the target has tokens without a label, if its mask leaves out labelled tokens, and
    under gradient checkpointing."""
    stock, free, batch = pair_of(class_name)
    if kind == "full target":
        batch["labels"] = batch["labels"].clamp(min=5)
    elif kind == "gaps":
        batch["labels"][:, 1] = -100
    elif kind == "decoder mask":
        batch["decoder_input_ids"] = batch["labels"].clamp(min=0)
        batch["decoder_attention_mask"] = (batch["labels"] != -100).long()
        batch["decoder_attention_mask"][2, 8:] = 0
    elif kind == "checkpointing":
        for reentrant in (True, False):
            for model in (stock, free):
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
                model.enable_input_require_grads()
            assert_same_gradients(free, stock, batch)
    assert_same_gradients(free, stock, batch)
    generated = [
        model.eval().generate(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=6,
            do_sample=False,
        )
        for model in (stock, free)
    ]
    assert generated[0].equal(generated[1])


def test_parts_called_by_themselves():
    """The base model and the encoder of a padding-free model may be called by themselves."""
    stock, free = pair("bert classes")
    for side in ("left", "right"):
        batch = batch_for("bert classes", side)
        batch.pop("labels")
        real = batch["attention_mask"].bool()
        expected = stock.bert(**batch)
        found = free.bert(**batch)
        torch.testing.assert_close(found.pooler_output, expected.pooler_output, **CLOSE)
        torch.testing.assert_close(
            found.last_hidden_state[real], expected.last_hidden_state[real], **CLOSE
        )
    stock, free, batch = pair_of("BartForConditionalGeneration")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    real = batch["attention_mask"].bool()
    states = [model.get_encoder()(**inputs).last_hidden_state[real] for model in (stock, free)]
    torch.testing.assert_close(*states, **CLOSE)


@pytest.mark.parametrize("kind", ["in place", "retained gradient", "hook of the gradient"])
def test_hooks_of_users_on_layers(kind):
    """Hooks see and change the batch that a layer returns, although the next layer does not need
    it."""
    found = []
    for model in pair("bert mlm"):
        seen = []

        def look(layer, args, output, seen=seen):
            if kind == "in place":
                output.add_(0.1)
            elif kind == "retained gradient":
                output.retain_grad()
                seen.append(output)
            else:
                output.register_hook(lambda gradient: gradient * 0)

        model.bert.encoder.layer[0].register_forward_hook(look)
        batch = batch_for("bert mlm")
        with torch.set_grad_enabled(kind != "in place"):
            outputs = model(**batch)
        if kind == "in place":
            found.append([outputs.loss])
            continue
        outputs.loss.backward()
        real = batch["attention_mask"].bool()
        weight = model.bert.embeddings.word_embeddings.weight
        found.append([outputs.loss, weight.grad, *(output.grad[real] for output in seen)])
    torch.testing.assert_close(*found, **CLOSE)


def ablate_first(states: torch.Tensor) -> torch.Tensor:
    """Replace the state of the first token of every row by zeros, as an experiment may do."""
    return torch.cat([states[:, :1] * 0, states[:, 1:]], dim=1)


HOOKS: dict[str, tuple[str, str, Any]] = {
    "before a layer": (
        "encoder.layer.1",
        "register_forward_pre_hook",
        lambda module, args: (ablate_first(args[0]), *args[1:]),
    ),
    "after a layer": (
        "encoder.layer.0",
        "register_forward_hook",
        lambda module, args, output: ablate_first(output),
    ),
    "within a layer": (
        "encoder.layer.0.intermediate",
        "register_forward_hook",
        lambda module, args, output: ablate_first(output),
    ),
    "gradient within a layer": (
        "encoder.layer.0.intermediate.dense",
        "register_full_backward_hook",
        lambda module, grads, outputs: (ablate_first(grads[0]),),
    ),
}


def test_a_module_whose_hook_is_older_than_the_last_forward_pass():
    free = padding_free(build("BertModel"))
    batch = batch_for("bert mlm")
    batch.pop("labels")
    seen = []
    module = torch.nn.Linear(SIZES["hidden_size"], SIZES["hidden_size"])
    module.register_forward_hook(lambda module, args, output: seen.append(output.shape[:2]))
    free(**batch)
    free.encoder.layer[0].attention.output.dense = module
    free(**batch)
    assert seen == [batch["input_ids"].shape]


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


@pytest.mark.parametrize("place", HOOKS)
@pytest.mark.parametrize("is_first", [True, False])
def test_hooks_that_know_rows(place, is_first):
    """Hooks of users get the batch, whether they are registered before `padding_free` or after it.

    A hook within a layer makes the layer compute padding."""
    path, register, hook = HOOKS[place]
    stock = make("bert mlm")
    free = make("bert mlm")
    if not is_first:
        padding_free(free)
    for model in (stock, free):
        getattr(model.bert.get_submodule(path), register)(hook)
    if is_first:
        padding_free(free)
    assert_same_gradients(free, stock, batch_for("bert mlm"))


def test_the_trial_does_not_depend_on_the_default_device():
    model = make("bert classes")
    with torch.device("meta"):
        padding_free(model)
    assert model.config._attn_implementation == "padding_free"


def test_the_trial_is_seen_by_nobody():
    model = make("bert classes")
    seen = []
    for module in model.modules():
        module.register_forward_hook(lambda *_: seen.append(1))
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    padding_free(model)
    assert not seen
    torch.testing.assert_close(dict(model.named_buffers()), buffers, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["lstm", "mean", "last place", "mean of real tokens"])
def test_heads_of_users(kind):
    """The user's module contains a model. If the module reads padding, it is refused, and the model
    stays as it was."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = build("BertModel")
            self.lstm = torch.nn.LSTM(64, 8, bidirectional=True, batch_first=True)

        def forward(self, input_ids, attention_mask):
            states = self.encoder(input_ids, attention_mask).last_hidden_state
            if kind == "lstm":
                return self.lstm(states)[0]
            if kind == "mean":
                return states.mean(1)
            if kind == "last place":
                return states[:, -1]
            mask = attention_mask[..., None]
            return (states * mask).sum(1) / mask.sum(1)

    net = Net().eval()
    if kind == "mean of real tokens":
        stock = copy.deepcopy(net)
        batch = batch_for("bert classes")
        batch.pop("labels")
        torch.testing.assert_close(padding_free(net)(**batch), stock(**batch), **CLOSE)
        return
    with pytest.raises(ValueError, match="Net"):
        padding_free(net)
    assert type(net.encoder) is transformers.BertModel


@pytest.mark.parametrize(
    "class_name", ["LlamaForSequenceClassification", "GPT2ForSequenceClassification"]
)
@pytest.mark.parametrize("filler", [1, "embeddings"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_heads_that_look_for_the_last_token(class_name, filler, side):
    """Such a head searches the ids for the padding token, but the rows are padded with another
    token, or have no ids."""
    stock = build(class_name, pad_token_id=0)
    free = padding_free(copy.deepcopy(stock))
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
    batch = batch_for("bert tokens")
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(
        free(**batch)["scores"][real], stock(**batch)["scores"][real], **CLOSE
    )


def test_two_heads_on_one_model():
    first = make("bert classes")
    second = make("bert tokens")
    second.bert = first.bert
    before = first.config._attn_implementation
    heads = torch.nn.ModuleList([first, second])
    padding_free(padding_free(heads), enabled=False)
    assert type(first.bert) is transformers.BertModel
    assert {head.config._attn_implementation for head in heads} == {before}


def test_an_encoder_of_a_composed_model():
    """The encoder and its layers have different objects as their configurations."""
    decoder = build("BertLMHeadModel", is_decoder=True, add_cross_attention=True)
    both = transformers.EncoderDecoderModel(encoder=build("BertModel"), decoder=decoder)
    stock = both.encoder
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm")
    batch.pop("labels")
    torch.testing.assert_close(real_outputs(free, batch), real_outputs(stock, batch), **CLOSE)


def test_what_is_no_model():
    with pytest.raises(TypeError, match="bert-base-uncased.*|from_pretrained"):
        padding_free("bert-base-uncased")
    with pytest.raises(TypeError, match="Linear"):
        padding_free(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("lengths", [(12, 12, 11), (12, 12, 12)])
def test_nearly_full_batches_stay_as_they_are(lengths):
    stock, free = pair("bert classes")
    batch = batch_for("bert classes", lengths=lengths)
    batch["labels"] = batch["labels"][: len(lengths)]
    with CountedTokens(free) as counted:
        found = free(**batch).logits
    torch.testing.assert_close(found, stock(**batch).logits, rtol=0, atol=1e-6)
    assert counted.numbers == [36]


@pytest.mark.parametrize("name", ["llama", "bert classes"])
@torch.no_grad()
def test_apple_gpus(name, monkeypatch):
    """On an Apple GPU, sdpa in half precision gets a mask, and no row of the mask hides all keys.

    The outputs stay the same. This test runs on a CPU, and has not run on an Apple GPU."""
    _, free = pair(name)
    free.bfloat16()
    batch = batch_for(name)
    # The tokens of the second row see nothing.
    batch["attention_mask"][1] = 0
    batch["labels"][1] = 0 if name == "bert classes" else -100
    inputs = {"use_cache": False} if name == "llama" else {}
    expected = free(**batch, **inputs).logits
    seen = []
    compute = torch.nn.functional.scaled_dot_product_attention

    def look(*args, **kwargs):
        seen.append((kwargs.get("attn_mask"), kwargs.get("is_causal")))
        return compute(*args, **kwargs)

    monkeypatch.setattr(attention, "APPLE", "cpu")
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", look)
    found = free(**batch, **inputs).logits
    rows = [0, 2, 3]
    real = batch["attention_mask"][rows].bool() if name == "llama" else slice(None)
    torch.testing.assert_close(found[rows][real], expected[rows][real], rtol=5e-2, atol=5e-2)
    assert found.isfinite().all() and seen
    for mask, is_causal in seen:
        assert not is_causal and (mask is None or mask.any(-1).all())


@pytest.mark.parametrize("name", ["REENTRANT", "NO_REENTRANT"])
@pytest.mark.parametrize(
    "class_name", ["BertForMaskedLM", "DebertaV2ForMaskedLM", "LayoutLMForMaskedLM"]
)
@pytest.mark.parametrize("labels", ["of tokens", "of padding"])
def test_checkpoint_wrappers_of_torch(class_name, name, labels):
    """The wrappers enclose layers with their hooks, as activation checkpointing of FSDP does.

    A layer that is computed again in the backward pass gets what it got in the forward pass."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

    kind = getattr(wrappers.CheckpointImpl, name)
    stock = build(class_name)
    free = padding_free(copy.deepcopy(stock))
    for model in (stock, free):
        model.enable_input_require_grads()
        layers = model.base_model.encoder.layer
        layers[1] = wrappers.checkpoint_wrapper(layers[1], checkpoint_impl=kind)
    batch = batch_for("bert mlm")
    if labels == "of padding":
        batch["labels"][1:3] = 7
    assert_same_gradients(free, stock, batch)


def test_an_implementation_that_is_switched_before_the_backward_pass():
    free = padding_free(make("bert mlm")).train()
    free.gradient_checkpointing_enable()
    loss = free(**batch_for("bert mlm")).loss
    padding_free(free, enabled=False)
    with pytest.raises((TypeError, AttributeError), match="after the backward pass"):
        loss.backward()


@pytest.mark.parametrize("kind", ["first of its layer", "of all modules"])
def test_hooks_that_would_get_a_flat_row(kind):
    found = []
    for model in pair("bert tokens"):
        batch = batch_for("bert tokens")
        real = batch["attention_mask"].bool()

        def ablate(module, args, output):
            is_layer = isinstance(output, torch.Tensor) and type(module).__name__ == "BertLayer"
            return ablate_first(output) if is_layer else None

        if kind == "first of its layer":
            layer = model.bert.encoder.layer[0]
            handle = layer.register_forward_hook(ablate, prepend=True)
        else:
            handle = torch.nn.modules.module.register_module_forward_hook(ablate)
        with torch.no_grad():
            found.append(model(**batch).logits[real])
        handle.remove()
    torch.testing.assert_close(*found, **CLOSE)


@pytest.mark.parametrize(
    "class_name", ["T5ForConditionalGeneration", "MBartForConditionalGeneration"]
)
def test_prefixes_of_encoder_decoders(class_name):
    """A cache with the prefix is given to the decoder, whose mask must cover it."""
    from peft import PrefixTuningConfig, get_peft_model

    stock, free, batch = pair_of(class_name)
    tuned = []
    for model in (stock, free):
        torch.manual_seed(0)
        config = PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3)
        tuned.append(get_peft_model(model, config))
    assert_same_gradients(tuned[1], tuned[0], batch)


@pytest.mark.parametrize("kind", ["four dimensions", "holes", "four dimensions, causal"])
def test_any_mask_is_computed_without_padding(kind):
    is_causal = kind.endswith("causal")
    stock = build("LlamaModel" if is_causal else "BertModel")
    free = padding_free(copy.deepcopy(stock))
    mask = batch_for("bert mlm")["attention_mask"]
    if kind == "holes":
        mask[0, 3:5] = 0
    ids = batch_for("bert mlm")["input_ids"]
    given = mask
    if kind.startswith("four"):
        given = mask[:, None, None].bool().expand(-1, 1, 12, -1)
        given = given & torch.ones(12, 12).tril().bool() if is_causal else given
    inputs = {"input_ids": ids, "attention_mask": given}
    with CountedTokens(free) as counted, torch.no_grad():
        found = free(**inputs).last_hidden_state
    assert counted.numbers == [int(mask.sum())]
    expected = stock(**inputs).last_hidden_state
    torch.testing.assert_close(found[mask == 1], expected[mask == 1], **CLOSE)


@pytest.mark.parametrize("labels", ["of tokens", "of padding"])
def test_a_whole_graph_computes_no_padding(labels):
    """In one graph, a row of which a label of padding is counted is computed whole."""
    stock, free = pair("bert tokens")
    batch = batch_for("bert tokens", lengths=(12, 7, 1, 4))
    num_tokens = 24
    if labels == "of padding":
        batch["labels"][2, 5] = 1
        num_tokens += 11
    sizes = []

    def count(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        class Counted(torch.fx.Interpreter):
            def call_function(self, target, args, kwargs):
                if target is torch.nn.functional.linear:
                    sizes.append(args[0][..., 0].numel())
                return super().call_function(target, args, kwargs)

        return Counted(graph).run

    torch.compiler.reset()
    compiled = torch.compile(free, backend=count, fullgraph=True, dynamic=True)
    assert_same_gradients(compiled, stock, batch)
    assert sizes and set(sizes) <= {num_tokens, num_tokens + 1}


ALL = torch.ones(4, 12, dtype=torch.long)
HOLES = torch.ones(4, 12, dtype=torch.long).index_fill(1, torch.tensor([4, 5]), 0)
JUMPS = torch.tensor([*range(6), *range(30, 36)]).expand(4, -1)


@pytest.mark.parametrize(
    "class_name, inputs",
    [
        ("LlamaModel", {"attention_mask": ALL, "is_causal": False}),
        ("LlamaModel", {"attention_mask": ALL, "position_ids": JUMPS, "use_cache": False}),
        ("T5EncoderModel", {"attention_mask": HOLES}),
        ("UMT5EncoderModel", {"attention_mask": HOLES}),
        ("GPT2Model", {"output_hidden_states": True}),
        ("LlamaForSequenceClassification", {"input_ids": ALL * 7}),
        ("MPNetModel", {"attention_mask": HOLES}),
        ("RoFormerModel", {"attention_mask": HOLES}),
        ("GPTNeoXJapaneseModel", {"position_ids": JUMPS, "use_cache": False}),
        ("MixtralForCausalLM", {"output_router_logits": True, "use_cache": False}),
        ("DistilBertModel", {"token_type_ids": ALL}),
    ],
)
def test_what_a_flat_row_must_not_change(class_name, inputs):
    stock = build(class_name)
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm")
    batch.pop("labels")
    batch |= inputs
    expected = real_outputs(stock, batch)
    torch.testing.assert_close(real_outputs(free, batch), expected, **CLOSE)
    if "output_hidden_states" in inputs:
        states = zip(free(**batch)[-1], stock(**batch)[-1], strict=True)
        assert all(one.shape == other.shape for one, other in states)


def test_choices_padded_on_the_left():
    stock = build("BertForMultipleChoice")
    free = padding_free(copy.deepcopy(stock))
    rows = batch_for("bert mlm", side="left")
    rows.pop("labels")
    batch = {name: value.unflatten(0, (2, 2)) for name, value in rows.items()}
    torch.testing.assert_close(free(**batch).logits, stock(**batch).logits, **CLOSE)


def test_switched_off_and_saved(tmp_path):
    """Nothing of `padding_free` is saved, shared with a copy, or left after an error or a switch
    back."""
    stock, free = pair("bert mlm")
    batch = batch_for("bert mlm")
    # Switching a second time changes nothing.
    padding_free(padding_free(free))
    for name, model in (("stock", stock), ("free", free)):
        model.save_pretrained(tmp_path / name)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "free" / file).read_bytes() == (tmp_path / "stock" / file).read_bytes()
    twin = copy.deepcopy(free)
    with torch.no_grad():
        twin.bert.embeddings.word_embeddings.weight.zero_()
    with pytest.raises(IndexError):
        free(input_ids=batch["input_ids"] + VOCAB, attention_mask=batch["attention_mask"])
    expected = stock(**batch).logits
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(free(**batch).logits[real], expected[real], **CLOSE)
    assert not torch.allclose(twin(**batch).logits[real], expected[real], atol=1e-3)
    free.train().bert.eval()
    modes = [module.training for module in free.modules()]
    for model in (free, padding_free(twin, enabled=False)):
        padding_free(model, enabled=False)
        assert model.config._attn_implementation == stock.config._attn_implementation
        assert (
            type(model) is transformers.BertForMaskedLM
            and model.state_dict().keys() == stock.state_dict().keys()
        )
        for module, other in zip(model.modules(), stock.modules(), strict=True):
            assert vars(module).keys() == vars(other).keys()
    again = padding_free(padding_free(free), enabled=False)
    assert [module.training for module in again.modules()] == modes
    # A model that was switched back computes the same logits at padding, too.
    torch.testing.assert_close(free.eval()(**batch).logits, expected, rtol=0, atol=0)


def test_a_head_that_reads_the_last_place():
    """Such a head still gets the state of a padding token."""
    stock = build("GPT2DoubleHeadsModel", num_labels=1)
    free = padding_free(copy.deepcopy(stock))
    for side in ("left", "right"):
        batch = batch_for("bert mlm", side)
        batch.pop("labels")
        torch.testing.assert_close(free(**batch).mc_logits, stock(**batch).mc_logits, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_meet_outside_attention_are_refused(dtype):
    """A layer adds a thousandth of the state of the token before.

    In half precision, this looks like an error of rounding."""

    class Mixing(torch.nn.Linear):
        def forward(self, states):
            mapped = super().forward(states)
            return mapped + 0.001 * mapped.roll(1, dims=1)

    model = make("bert classes").to(dtype)
    model.bert.encoder.layer[0].intermediate.dense.__class__ = Mixing
    with pytest.raises(ValueError, match="BertForSequenceClassification"):
        padding_free(model)


def test_tokens_that_meet_outside_attention_are_refused():
    """A layer adds a hundredth of the mean of a row, its padding included."""

    class Mixing(torch.nn.Linear):
        def forward(self, states):
            mapped = super().forward(states)
            return mapped + 0.01 * mapped.mean(1, keepdim=True)

    model = make("bert classes")
    layer = model.bert.encoder.layer[0].intermediate
    layer.dense.__class__ = Mixing
    with pytest.raises(ValueError, match="BertForSequenceClassification"):
        padding_free(model)


def test_threads_do_not_meet():
    stock, free = pair("bert classes")
    sizes = ((12, 3), (5, 9, 2), (1, 1, 8))
    batches = [batch_for("bert classes", lengths=lengths) for lengths in sizes]
    expected = [stock(**batch).logits for batch in batches]
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            found = free(**batches[number]).logits
            if not torch.allclose(found, expected[number], atol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_train_do_not_meet():
    """Each thread keeps the labelled places of its own batch."""
    stock, free = pair("bert mlm")
    sizes = ((12, 3), (5, 9, 2), (1, 1, 8))
    batches = [batch_for("bert mlm", lengths=lengths) for lengths in sizes]
    stock.train()
    free.train()
    expected = [stock(**batch).loss.item() for batch in batches]
    wrong = []

    def work(number: int) -> None:
        for _ in range(20):
            loss = free(**batches[number]).loss.item()
            if abs(loss - expected[number]) > 1e-5:
                wrong.append(number)

    errors = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    hook = threading.excepthook
    threading.excepthook = errors.append
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.excepthook = hook
    assert not wrong and not errors


@pytest.mark.parametrize(
    "class_name", ["UMT5ForTokenClassification", "T5GemmaForTokenClassification"]
)
def test_labels_at_padding_of_taggers_of_two_sided_families(class_name):
    """The configuration names an encoder–decoder, but the labels belong to the source."""
    model = build(class_name)
    free = padding_free(copy.deepcopy(model))
    batch = batch_for("bert tokens")
    batch["labels"] = torch.zeros_like(batch["input_ids"])
    torch.testing.assert_close(free(**batch).loss, model(**batch).loss, **CLOSE)


def test_a_head_that_reads_padding_of_a_given_target():
    model = build("T5GemmaForSequenceClassification").eval()
    free = padding_free(copy.deepcopy(model))
    batch = batch_for("bert classes")
    del batch["labels"]
    batch["decoder_input_ids"] = batch["input_ids"]
    batch["decoder_attention_mask"] = batch["attention_mask"]
    torch.testing.assert_close(free(**batch).logits, model(**batch).logits, **CLOSE)


def test_masks_of_models_that_make_them_are_let_go():
    """The documents that are derived from a mask hold no reference to it."""
    model = padding_free(build("DebertaV2ForMaskedLM")).eval()
    masks = []

    def look(layer: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        second = args[1] if len(args) > 1 else None
        masks.append(weakref.ref(kwargs.get("attention_mask", second)))

    layer = model.deberta.encoder.layer[0]
    layer.register_forward_pre_hook(look, with_kwargs=True, prepend=True)
    batch = batch_for("bert mlm", lengths=(12, 12))
    gc.disable()
    try:
        model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        assert masks and all(mask() is None for mask in masks)
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "gpt neo"])
def test_generate(name):
    stock, free = pair(name)
    batch = batch_for(name, side="left")
    batch.pop("labels")
    for use_cache in (True, False):
        options = {
            "max_new_tokens": 8,
            "do_sample": False,
            "use_cache": use_cache,
            "pad_token_id": 0,
        }
        assert torch.equal(free.generate(**batch, **options), stock.generate(**batch, **options))


@pytest.mark.parametrize("name, side", [("llama", "left"), ("llama", "right"), ("bloom", "left")])
def test_caches(name, side):
    """A prompt with a new cache is computed as a flat row, and the cache holds the same states as
    the one of the stock model."""
    stock, free = pair(name)
    batch = batch_for("llama", side)
    batch.pop("labels")
    batch["attention_mask"][batch["attention_mask"].sum(1) == 0] = 1
    longer = torch.nn.functional.pad(batch["attention_mask"], (0, 1), value=1)
    steps = []
    for model in (stock, free):
        prompt = model(**batch)
        cache = prompt.past_key_values
        assert cache.get_seq_length() == 12
        positions = batch["attention_mask"].sum(1, keepdim=True)
        more = {"position_ids": positions} if name == "llama" else {}
        step = model(
            batch["input_ids"][:, :1], attention_mask=longer, past_key_values=cache, **more
        )
        steps.append(step.logits)
        assert model(**batch, use_cache=False).past_key_values is None
    torch.testing.assert_close(*steps, **CLOSE)


class CountedTokens(TorchFunctionMode):
    """Records how many tokens the first linear map of a model computes.

    A hook cannot count them, because layers compute padding when there are hooks within them."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        maps = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
        self.weight = next(part for part in model.modules() if isinstance(part, maps)).weight
        self.numbers: list[int] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        is_map = func in (torch.nn.functional.linear, torch.Tensor.matmul)
        if is_map and args[1].data_ptr() == self.weight.data_ptr():
            self.numbers.append(args[0][..., 0].numel())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "name, more",
    [
        ("llama", {"use_cache": False}),
        ("llama", {"labels": ...}),
        ("llama classes", {}),
        ("bert classes", {}),
        ("falcon classes", {}),
        ("mpnet mlm", {}),
    ],
)
def test_evaluation_computes_real_tokens_alone(name, more):
    _, free = pair(name)
    batch = batch_for(name)
    labels = batch.pop("labels")
    given = {key: labels if value is ... else value for key, value in more.items()}
    with CountedTokens(free) as counted:
        free(**batch, **given)
        free.base_model(**batch)
    assert counted.numbers == [24, 24]


def real_outputs(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors of the output of a model, without the values that belong to padding."""
    real = torch.ones(4, 12, dtype=torch.bool)
    if "attention_mask" in inputs:
        real = inputs["attention_mask"].bool()
    outputs = {}
    for name, value in model(**inputs).items():
        if isinstance(value, torch.Tensor):
            is_of_tokens = value.shape[:2] == real.shape
            outputs[name] = value[real] if is_of_tokens else value
    return outputs


def scaled(rope_type: str, **options) -> dict:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 1e4, **options}}


LONG = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 16}
DYNAMIC = {"max_position_embeddings": 8, **scaled("dynamic", factor=2.0)}
GEMMA3 = {
    "vision_config": {"image_size": 28, "patch_size": 14},
    "mm_tokens_per_image": 4,
    "image_token_id": 50,
}
PLACES = {
    "start_positions": torch.tensor([3, 2, 0, 1]),
    "end_positions": torch.tensor([5, 3, 0, 2]),
}
# Only the second row has an image.
IMAGE = torch.zeros(4, 12, dtype=torch.long).index_fill(1, torch.arange(1, 4), 1)
IMAGE[[0, 2, 3]] = 0
ROW = torch.ones(4, 12, dtype=torch.long).index_fill(0, torch.tensor([1]), 0)

RESTART = {"position_ids": torch.cat([torch.arange(5), torch.arange(7)]).expand(4, -1)}
NO_MASK = {"attention_mask": None}
NO_CACHE = {"use_cache": False}
GAPS = {"position_ids": RESTART["position_ids"] * 2}

# Each entry has the class of the model, fields of its configuration, and more inputs of its batch.
UNUSUAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "the places of an answer": ("BertForQuestionAnswering", {}, PLACES),
    "images in another row": ("Gemma3ForConditionalGeneration", GEMMA3, {"token_type_ids": IMAGE}),
    "chunks of attention": ("Llama4ForCausalLM", {"attention_chunk_size": 20}, {}),
    "holes in a window": ("ModernBertForMaskedLM", {}, {"attention_mask": HOLES}),
    "a row of padding": ("LlamaForSequenceClassification", {}, {"attention_mask": ROW}),
    "padding alone": ("LlamaForCausalLM", {}, {"attention_mask": ROW * 0}),
    "dynamic frequencies": ("LlamaForCausalLM", DYNAMIC, NO_CACHE),
    "long frequencies": ("Phi3ForCausalLM", scaled("longrope", **LONG), NO_CACHE),
    "positions that restart": ("BertModel", {}, RESTART),
    "the same, causal": ("LlamaModel", {}, RESTART),
    "the same, packed": ("LlamaModel", {}, {**RESTART, **NO_MASK, **NO_CACHE}),
    "positions with gaps": ("LlamaModel", {}, {**GAPS, **NO_MASK, **NO_CACHE}),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_not_understood_is_as_it_was(case):
    class_name, fields, others = UNUSUAL[case]
    stock = build(class_name, **fields)
    free = padding_free(copy.deepcopy(stock))
    longest = 30 if case == "chunks of attention" else 12
    batch = batch_for("bert mlm", lengths=(longest, 7, 1, 4))
    batch.pop("labels")
    if case == "a row of padding":
        batch["input_ids"][1] = 0
    if "frequencies" in case:
        # The frequencies depend on the length of the longest row with its padding.
        batch = {name: torch.nn.functional.pad(value, (0, 8)) for name, value in batch.items()}
    batch = {name: value for name, value in (batch | others).items() if value is not None}
    torch.testing.assert_close(real_outputs(free, batch), real_outputs(stock, batch), **CLOSE)


@pytest.mark.parametrize("way", ["eager", "checkpointing", "encoder", "base", "whole"])
def test_what_changes_afterwards(way):
    """A padding-free model gets another attention implementation or gradient checkpointing, or it
    is compiled: in parts, or as a whole in one graph."""
    name = "bert mlm" if way == "base" else "bert classes"
    stock, free = pair(name)
    batch = batch_for(name)
    torch.compiler.reset()
    if way == "eager":
        free.set_attn_implementation(way)
    elif way == "checkpointing":
        free.gradient_checkpointing_enable()
        free.enable_input_require_grads()
    elif way == "whole":
        free = torch.compile(free, backend="eager", fullgraph=True)
    elif way == "encoder":
        free.bert.encoder.compile(backend="eager")
    else:
        free.bert.compile(backend="eager")
    assert_same_gradients(free, stock, batch)


def compiled_by_regions(class_name: str) -> torch.nn.Module:
    return compile_regions(padding_free(build(class_name)), backend="eager")


OWN = rl.RoFormerLiteConfig(
    vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2, num_attention_heads=2
)
# Each entry has the number of graphs after the first batch of padded rows, and after twenty.
COMPILED = {
    "bert": (lambda: compiled_by_regions("BertForMaskedLM"), 6, 11),
    "own": (
        lambda: compile_regions(rl.RoFormerLiteForMaskedLM(OWN), backend="eager"),
        7,
        12,
    ),
    "whole": (lambda: compiled_as_a_whole("BertForMaskedLM"), 1, 2),
}


def compiled_as_a_whole(class_name: str) -> torch.nn.Module:
    model = padding_free(build(class_name))
    model.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "whole" else pytest.param(kind, marks=pytest.mark.slow) for kind in COMPILED],
)
def test_compiled_graphs_are_few(kind):
    """Further lengths of rows add no graphs. Full batches, and evaluations between steps of
    training, add some. No function reaches the limit beyond which torch stops compiling it."""
    make_compiled, num_first, num_all = COMPILED[kind]
    torch.compiler.reset()
    counters.clear()
    model = make_compiled()
    generator = random.Random(0)
    num_graphs = []
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for step in range(32):
            lengths = [generator.randint(2, 30) for _ in range(6)]
            model.train(step < 20 or step % 4 < 2)
            if step >= 20 and step % 2 == 1:
                lengths = [max(lengths)] * 6
            loss = model(**batch_for("bert mlm", lengths=tuple(lengths))).loss
            if model.training:
                loss.backward()
            num_graphs.append(counters["stats"]["unique_graphs"])
    assert num_graphs[0] == num_first
    assert num_graphs[1:20] == [num_all] * 19
    assert num_graphs[-1] <= 3 * num_all


def test_labels_of_padding_and_autocast():
    stock, free = pair("gpt2")
    batch = batch_for("gpt2")
    # The labels of padding count in the stock model, and must do so in the padding-free one.
    batch["labels"] = batch["input_ids"]
    assert_same_gradients(free, stock, batch)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(free(**batch).loss, stock(**batch).loss, rtol=2e-2, atol=2e-2)


def test_every_model_within_a_module():
    towers = torch.nn.ModuleList([make("bert mlm"), torch.nn.Sequential(make("bert classes"))])
    padding_free(towers)
    assert transformers.BertModel not in (type(towers[0].bert), type(towers[1][0].bert))
    towers.append(build("MambaForCausalLM"))
    with pytest.raises(ValueError, match="MambaForCausalLM"):
        padding_free(towers)
    assert (
        type(towers[0].bert) is transformers.BertModel
        and type(towers[0]) is transformers.BertForMaskedLM
    )


@pytest.mark.parametrize("kind", ["adapter_names", "alora"])
def test_adapters_that_know_rows(kind):
    from peft import LoraConfig, get_peft_model

    options = {}
    call = {}
    if kind == "alora":
        options["alora_invocation_tokens"] = [50, 51]
    else:
        call["adapter_names"] = ["default", "__base__"] * 2
    lora = LoraConfig(
        task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False, **options
    )
    outputs = []
    batch = batch_for("llama")
    batch["input_ids"][:2, 1:3] = torch.tensor([50, 51])
    real = batch["attention_mask"].bool()
    for is_free in (False, True):
        torch.manual_seed(0)
        model = get_peft_model(padding_free(make("llama"), enabled=is_free), lora).eval()
        outputs.append(model(**batch, **call).logits[real])
    torch.testing.assert_close(*outputs, **CLOSE)


@pytest.mark.slow
def test_continuous_batching():
    """transformers packs the requests itself, and refuses an attention that it does not know.

    A model that was switched back generates the tokens of one that was never switched."""
    stock, free = pair("llama")
    settings = transformers.GenerationConfig(
        max_new_tokens=3, do_sample=False, eos_token_id=2, pad_token_id=0
    )
    prompts = [[5, 6, 7], [8, 9]]
    with pytest.raises(ValueError, match="padding_free.*continuous batching"):
        free.generate_batch(inputs=prompts, generation_config=settings)
    answers = []
    for model in (stock, padding_free(free, enabled=False)):
        found = model.generate_batch(inputs=prompts, generation_config=settings)
        answers.append([output.generated_tokens for output in found.values()])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("is_first", [True, False])
def test_adapters(is_first):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    lora = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    stock = make("bert mlm")
    free = make("bert mlm")
    torch.manual_seed(1)
    stock = get_peft_model(stock, lora)
    torch.manual_seed(1)
    if is_first:
        free = get_peft_model(padding_free(free), lora)
    else:
        free = padding_free(get_peft_model(free, lora))
    batch = batch_for("bert mlm")
    assert_same_gradients(free, stock, batch)


def own_image(row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query // 3 == 1) & (key // 3 == 1)


def same_third(
    row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    return query // 5 == key // 5


def first_keys(
    row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor
) -> torch.Tensor:
    return key < 2


def last_keys(row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key > 11


def holes(row: torch.Tensor, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Causal, but a few queries do not see a few keys."""
    is_hidden = (query >= 6) & (query < 12) & (key >= 2) & (key < 5)
    return (key <= query) & ~is_hidden


WINDOW = masking_utils.sliding_window_causal_mask_function(4)
TWO_SIDED_WINDOW = masking_utils.sliding_window_bidirectional_mask_function(3)
ONE_SIDED = masking_utils.sliding_window_overlay(4)
CAUSAL = masking_utils.causal_mask_function
BIDIRECTIONAL = masking_utils.bidirectional_mask_function
PACKED = masking_utils.packed_sequence_mask_function(torch.arange(14).expand(3, -1) // 5)
OWN_PACKED = same_document(torch.arange(14).expand(3, -1) // 5)
# Each entry says whether the documents of the mask and their pattern are known.
MASK_FUNCTIONS = {
    "causal": (CAUSAL, True),
    "bidirectional": (BIDIRECTIONAL, True),
    "window": (WINDOW, True),
    "window to both sides": (TWO_SIDED_WINDOW, True),
    "window to one side": (ONE_SIDED, False),
    "packed": (masking_utils.and_masks(CAUSAL, PACKED), True),
    "packed, own": (masking_utils.and_masks(CAUSAL, OWN_PACKED), True),
    "packed, window": (masking_utils.and_masks(TWO_SIDED_WINDOW, PACKED), True),
    "packed, of a user": (masking_utils.and_masks(CAUSAL, same_third), False),
    "image": (masking_utils.or_masks(CAUSAL, own_image), False),
    "sinks": (masking_utils.or_masks(WINDOW, masking_utils.and_masks(CAUSAL, first_keys)), False),
    "prefix": (masking_utils.or_masks(CAUSAL, first_keys), False),
    "last keys": (masking_utils.or_masks(WINDOW, last_keys), False),
    "holes": (holes, False),
}
# The ways in which attention of a flat row is computed.
FORMS = ("by document", "groups", "rows")


@pytest.mark.parametrize("name", MASK_FUNCTIONS)
@pytest.mark.parametrize("padding", ["none", "right", "left", "holes"])
@pytest.mark.parametrize("form", FORMS)
def test_flat_rows_see_what_the_mask_says(name, padding, form, monkeypatch):
    """Each form of attention, and its gradients, equal sdpa with the ordinary mask."""
    mask_function, is_known = MASK_FUNCTIONS[name]
    batch_size = 3
    length = 14
    is_real = torch.arange(length) < torch.tensor([14, 9, 1])[:, None]
    if padding == "none":
        is_real = torch.ones(batch_size, length, dtype=torch.bool)
    elif padding == "left":
        is_real = is_real.flip(1)
    elif padding == "holes":
        is_real[:2, 2] = is_real[:2, 6:8] = False
    mask = DocumentMask(
        Plan(),
        batch_size=batch_size,
        q_length=length,
        kv_length=length,
        mask_function=mask_function,
        attention_mask=is_real,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        dtype=torch.float32,
        device="cpu",
        config=None,
    )
    flat = mask.make_flat()
    assert (flat.pattern is not None) == (is_known and padding != "holes")
    if flat.pattern is None and form != "rows":
        form = "rows"
    monkeypatch.setattr(attention, "form_of", lambda *args, **kwargs: form)
    # Groups begin at each shorter document, and have gaps.
    monkeypatch.setattr(groups, "MIN_PAIRS", 1)
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, batch_size, length, 2, 8, generator=generator)
    states.requires_grad_()
    module = torch.nn.Module()
    query, key, value = (tokens.transpose(1, 2) for tokens in states)
    dense = mask.dense()
    # A query without any key has no meaning.
    sees = dense.any(-1)[:, 0] & is_real
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, dense)
    expected = expected.transpose(1, 2)[sees]
    rows = [mask.tokens().flatten(tokens).transpose(1, 2) for tokens in states]
    found = attention.padding_free_attention(module, *rows, flat)[0]
    found = mask.tokens().restore(found)[sees]
    torch.testing.assert_close(found, expected, **CLOSE)
    weights = torch.randn(expected.shape, generator=generator)
    gradients = [
        torch.autograd.grad((output * weights).sum(), states, retain_graph=True)[0]
        for output in (found, expected)
    ]
    torch.testing.assert_close(*gradients, **CLOSE)


def test_a_copy_of_a_compiled_model_has_its_own_weights():
    model = padding_free(make("bert classes"))
    model.compile(backend="eager")
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in copied.parameters():
            weight.zero_()
        logits = copied(torch.arange(1, 7)[None]).logits
    assert not logits.any()


def test_a_cache_of_fixed_size_is_generated_from():
    """The window is shorter than the prompt, and `generate` makes the mask itself."""
    model = build("MistralForCausalLM", sliding_window=4).eval()
    ids = torch.randint(3, VOCAB, (2, 8), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 3, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(ids, **options)
    assert torch.equal(padding_free(model).generate(ids, **options), expected)


def test_hooks_in_a_later_layer_of_t5():
    """The first layer is flat, and the layer with the hook gets its position bias as a batch."""
    model = build("T5EncoderModel").eval()
    mask = (torch.arange(16) < torch.tensor([[9], [5], [3]])).long()
    ids = torch.randint(2, VOCAB, mask.shape, generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    padding_free(model)
    model.encoder.block[1].layer[0].SelfAttention.q.register_forward_hook(lambda *_: None)
    found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask != 0], expected[mask != 0], **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("class_name", ["BertModel", "LlamaModel", "MixtralModel"])
def test_whether_a_model_is_causal(class_name, dtype):
    """The answer depends neither on rounding nor on how strong the attention of random weights is."""
    model_class = getattr(transformers, class_name)
    config = build(class_name).config
    torch.manual_seed(0)
    model = padding_free(model_class(config).to(dtype).eval())
    batch = batch_for("bert mlm", side="left")
    batch.pop("labels")
    with torch.no_grad():
        found = model(**batch).last_hidden_state[:, 0]
    # An encoder has a pooler, which reads the first position, so rows are computed whole.
    is_computed = bool(found[1:].abs().sum() > 0)
    assert is_computed == (class_name == "BertModel")


def test_virtual_tokens_before_those_of_the_batch():
    from peft import PromptTuningConfig, get_peft_model

    stock, _ = pair("llama")
    tuned = []
    for model in (stock, copy.deepcopy(stock)):
        torch.manual_seed(0)
        config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
        tuned.append(get_peft_model(model, config))
    assert_same_gradients(padding_free(tuned[1]), tuned[0], batch_for("llama"))


def test_weights_that_are_elsewhere_until_they_are_used():
    """The position bias of T5 is computed before the layer that has its weights."""
    stock, free, batch = pair_of("T5ForConditionalGeneration")
    cpu_offload(free.eval(), execution_device=torch.device("cpu"))
    torch.testing.assert_close(free(**batch).loss, stock.eval()(**batch).loss, **CLOSE)


@pytest.mark.parametrize("class_name", ["BertForMaskedLM", "T5ForConditionalGeneration"])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_weights_that_are_elsewhere_before(class_name, is_on_disk, tmp_path):
    """The trial loads them by the hooks of accelerate, and shares them."""
    stock = build(class_name)
    free = copy.deepcopy(stock)
    device = torch.device("cpu")
    if is_on_disk:
        disk_offload(free, tmp_path, execution_device=device)
    else:
        cpu_offload(free, execution_device=device)
    batch = batch_for("bert mlm")
    torch.testing.assert_close(padding_free(free)(**batch).loss, stock(**batch).loss, **CLOSE)
    assert {weight.device.type for weight in free.parameters()} == {"meta"}


def test_a_fault_of_this_package_is_no_refusal(monkeypatch):
    """An error of the model's own code says that the model can't be padding-free."""
    model = make("bert mlm")
    with monkeypatch.context() as patched:
        patched.setattr(FlatTokens, "index_on", lambda *_: "no tensor")
        with pytest.raises(TypeError, match="index_select"):
            padding_free(model)

    def fails(*args: Any, **kwargs: Any) -> None:
        raise KeyError("mask")

    monkeypatch.setattr(model.bert.encoder.layer[0].attention.self, "forward", fails)
    with pytest.raises(PaddingFreeError, match="BertForMaskedLM can't be padding-free.*mask"):
        padding_free(model)
    with pytest.raises(PaddingFreeError, match="MambaForCausalLM"):
        padding_free(build("MambaForCausalLM"))


def test_states_of_packed_rows_are_let_go():
    """A flat row that is a view of the batch does not keep the batch alive."""
    free = padding_free(build("LlamaModel"))
    states = []

    def look(module, args, output):
        states.append(weakref.ref(output))

    free.get_input_embeddings().register_forward_hook(look)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1, 2]])
    for _ in range(3):
        free(torch.randint(5, VOCAB, (1, 12)), position_ids=positions, use_cache=False)
    vectors = torch.randn(4, 12, 64, requires_grad=True)
    free(inputs_embeds=vectors, attention_mask=batch_for("llama")["attention_mask"])
    states.append(weakref.ref(vectors))
    del vectors
    gc.collect()
    assert [state() for state in states] == [None] * 4


def test_sources_and_targets_of_the_same_shape():
    """Attention modules that compute scores themselves tell the two sides apart in inference mode,
    and T5's cross-attention has no bias even if both sides have the same tokens."""
    mask = torch.tensor([[1] * 12, [1] * 2 + [0] * 10, [0] * 5 + [1] * 7, [1, 0] * 6])
    ids = torch.randint(5, VOCAB, mask.shape, generator=torch.Generator().manual_seed(0))
    for class_name in ("MvpForConditionalGeneration", "T5ForConditionalGeneration"):
        stock = build(class_name)
        free = padding_free(copy.deepcopy(stock))
        for target in (mask, mask.flip(0)):
            inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
            inputs |= {"decoder_attention_mask": target, "use_cache": False}
            with torch.inference_mode():
                logits = [model(**inputs).logits[target == 1] for model in (free, stock)]
            torch.testing.assert_close(*logits, **CLOSE)


def test_masks_of_four_dimensions_that_are_used_again():
    """What was decided in another call with the same mask does not count."""
    stock, free = pair("bert tokens")
    batch = batch_for("bert tokens")
    real = batch["attention_mask"].bool()
    batch["attention_mask"] = real[:, None, None].expand(-1, 1, 12, -1).contiguous()
    for more in ({}, {"output_hidden_states": True}, {}):
        found, expected = (model(**batch, **more) for model in (free, stock))
        torch.testing.assert_close(found.logits[real], expected.logits[real], **CLOSE)
        for one, other in zip(found.hidden_states or (), expected.hidden_states or (), strict=True):
            torch.testing.assert_close(one[real], other[real], **CLOSE)
    # A plan is for one call also if two masks share their memory.
    losses = []
    for model in (free, stock):
        model.train().zero_grad()
        model.gradient_checkpointing_enable()
        both = torch.stack([batch["attention_mask"], batch["attention_mask"].flip(0)])
        parts = [batch | {"attention_mask": both[0]}]
        parts.append({name: value.flip(0) for name, value in batch.items()})
        parts[1]["attention_mask"] = both[1]
        sum(model(**part).loss for part in parts).backward()
        losses.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*losses, **CLOSE)


def test_saved_outputs_are_plain_tensors(tmp_path):
    _, free = pair("bert tokens")
    batch = batch_for("bert tokens")
    with torch.no_grad():
        output = free(**batch, output_hidden_states=False)
    torch.save(output.logits, tmp_path / "logits")
    torch.testing.assert_close(torch.load(tmp_path / "logits"), output.logits, rtol=0, atol=0)


def test_a_forward_that_names_no_arguments():
    class Passing(transformers.BertModel):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs)

    stock = Passing(build("BertModel").config).eval()
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm", side="left")
    given = (batch["input_ids"], batch["attention_mask"])
    expected = stock(*given)
    found = free(*given)
    torch.testing.assert_close(found.pooler_output, expected.pooler_output, **CLOSE)
