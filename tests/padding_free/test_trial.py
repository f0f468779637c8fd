"""`padding_free` tries each model, and leaves one that cannot be padding-free as it was."""

import copy
from typing import Any

import pytest
import torch
import transformers
from comparisons import assert_close, assert_same_outputs, batch_for, build, inputs_for
from conftest import assert_equal

from hf_roformer_lite import PaddingFreeError, padding_free
from hf_roformer_lite.padding_free import trial
from hf_roformer_lite.padding_free.batch import FlatTokens
from hf_roformer_lite.padding_free.masks import FlatMask


def test_a_configuration_that_asks_for_attentions():
    """Only eager attention returns them, and a configuration that asks for them could not be saved
    with another implementation."""
    stock = build("BertForMaskedLM", attn_implementation="eager", output_attentions=True)
    with pytest.raises(ValueError, match="output_attentions=True, which requires eager attention"):
        padding_free(stock)
    stock.config.output_attentions = False
    free = padding_free(copy.deepcopy(stock))
    batch = batch_for("bert mlm") | {"output_attentions": True}
    assert len(free(**batch).attentions) == 2
    assert_same_outputs(free, stock, batch)


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
    padding_free(NeedsMore(build("bert mlm").config))
    assert "the head of NeedsMore could not be tried" in warnings[0]


def test_the_trial_does_not_depend_on_the_default_device():
    model = build("bert classes")
    with torch.device("meta"):
        padding_free(model)
    assert model.config._attn_implementation == "padding_free"


def test_the_trial_is_seen_by_nobody():
    model = build("bert classes")
    seen = []
    for module in model.modules():
        module.register_forward_hook(lambda *_: seen.append(1))
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    padding_free(model)
    assert not seen
    assert_equal(dict(model.named_buffers()), buffers)


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
        batch = inputs_for("bert classes")
        assert_close(padding_free(net)(**batch), stock(**batch))
        return
    with pytest.raises(ValueError, match="Net"):
        padding_free(net)
    assert type(net.encoder) is transformers.BertModel


def test_what_is_no_model():
    with pytest.raises(TypeError, match="bert-base-uncased.*|from_pretrained"):
        padding_free("bert-base-uncased")
    with pytest.raises(TypeError, match="Linear"):
        padding_free(torch.nn.Linear(2, 2))


def test_a_model_whose_states_are_not_its_first_output():
    fields = {"vocab_size": 99, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
    config = transformers.ClapTextConfig(num_attention_heads=2, **fields)
    with pytest.raises(PaddingFreeError, match="outputs differ"):
        padding_free(transformers.ClapTextModelWithProjection(config).eval())


def add_token_before(states: torch.Tensor) -> torch.Tensor:
    """Add a thousandth of the state of the token before.

    In half precision, this looks like an error of rounding."""
    return states + 0.001 * states.roll(1, dims=1)


def add_mean(states: torch.Tensor) -> torch.Tensor:
    """Add a hundredth of the mean of a row, its padding included."""
    return states + 0.01 * states.mean(1, keepdim=True)


@pytest.mark.parametrize(
    "mix, dtype",
    [
        (add_token_before, torch.float32),
        (add_token_before, torch.bfloat16),
        (add_mean, torch.float32),
    ],
)
def test_tokens_that_meet_outside_attention_are_refused(mix, dtype):
    class Mixing(torch.nn.Linear):
        def forward(self, states):
            return mix(super().forward(states))

    model = build("bert classes").to(dtype)
    model.bert.encoder.layer[0].intermediate.dense.__class__ = Mixing
    with pytest.raises(ValueError, match="BertForSequenceClassification"):
        padding_free(model)


def test_a_module_that_adds_its_mask_itself():
    class Adding(transformers.models.bert.modeling_bert.BertAttention):
        def forward(self, states, mask=None, **kwargs):
            added = None if mask is None else states.new_zeros(1) + mask
            return super().forward(states, added, **kwargs)

    model = build("bert classes")
    model.bert.encoder.layer[0].attention.__class__ = Adding
    with pytest.raises(PaddingFreeError, match="directly"):
        padding_free(model)


def test_every_model_within_a_module():
    towers = torch.nn.ModuleList([build("bert mlm"), torch.nn.Sequential(build("bert classes"))])
    padding_free(towers)
    assert transformers.BertModel not in (type(towers[0].bert), type(towers[1][0].bert))
    towers.append(build("MambaForCausalLM"))
    with pytest.raises(ValueError, match="MambaForCausalLM"):
        padding_free(towers)
    assert type(towers[0].bert) is transformers.BertModel
    assert type(towers[0]) is transformers.BertForMaskedLM
    # A `forward` of the instance would be called in place of that of a padding-free model.
    towers[0].forward = torch.no_grad()(towers[0].forward)
    with pytest.raises(PaddingFreeError, match="forward"):
        padding_free(towers[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("class_name", ["BertModel", "LlamaModel", "MixtralModel"])
def test_whether_a_model_is_causal(class_name, dtype):
    """The answer depends neither on rounding nor on how strong the attention of random weights
    is."""
    model_class = getattr(transformers, class_name)
    config = build(class_name).config
    torch.manual_seed(0)
    model = padding_free(model_class(config).to(dtype).eval())
    batch = inputs_for("bert mlm", side="left")
    with torch.no_grad():
        found = model(**batch).last_hidden_state[:, 0]
    # An encoder has a pooler, which reads the first position, so rows are computed whole.
    is_computed = bool(found[1:].abs().sum() > 0)
    assert is_computed == (class_name == "BertModel")


def test_a_fault_of_this_package_is_no_refusal(monkeypatch):
    """An error of the model's own code says that the model can't be padding-free."""
    model = build("bert mlm")
    with monkeypatch.context() as patched:
        patched.setattr(FlatTokens, "index_on", lambda *_: "no tensor")
        with pytest.raises(TypeError, match="index_select"):
            padding_free(model)
        patched.undo()
        # The innermost frame is torch's.
        patched.setattr(FlatMask, "runs", [((1, 3),)] * 3)
        with pytest.raises(RuntimeError, match="split_sizes"):
            padding_free(model)

    def fails(*args: Any, **kwargs: Any) -> None:
        raise KeyError("mask")

    monkeypatch.setattr(model.bert.encoder.layer[0].attention.self, "forward", fails)
    with pytest.raises(PaddingFreeError, match="BertForMaskedLM can't be padding-free.*mask"):
        padding_free(model)
    config = transformers.ViTConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=2)
    with pytest.raises(PaddingFreeError, match="ViTModel"):
        padding_free(transformers.ViTModel(config))
