"""The products of all layers: every way through `fast_linear` gives what `nn.Linear` gives, with its gradients."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers.activations import ACT2FN

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMaskedLM, RoFormerLiteModel
from hf_roformer_lite.model import fast_linear as linear_module
from hf_roformer_lite.model import parallel_heads
from hf_roformer_lite.model.dropout import RoFormerLiteDropout
from hf_roformer_lite.model.fast_linear import RoFormerLiteLinear, activated_linear, choose_num_rows
from hf_roformer_lite.model.fused_cross_entropy import linear_cross_entropy


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(3, 16, 8), (8, 256, 512), (8, 512, 256), (40, 256, 300), (500, 512, 512), (512, 512, 512)],
    ids=["small", "weight on the left", "few rows", "some rows", "many rows", "a round number of rows"],
)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_nn_linear(rows, inputs, outputs, bias):
    torch.manual_seed(0)
    ours, plain = RoFormerLiteLinear(inputs, outputs, bias=bias), nn.Linear(inputs, outputs, bias=bias)
    plain.load_state_dict(ours.state_dict())
    results = []
    for module in (ours, plain):
        states = torch.randn(2, rows // 2 or 1, inputs, generator=torch.Generator().manual_seed(1)).requires_grad_()
        output = module(states)
        output.square().sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(module(states), output.detach(), rtol=1e-5, atol=1e-5)
        results.append([output, states.grad, *(parameter.grad for parameter in module.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert mine.shape == theirs.shape and mine.is_contiguous()
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-4)


def test_gradient_of_the_gradient(monkeypatch):
    monkeypatch.setattr(linear_module, "_has_choice", lambda states, weight: True)
    monkeypatch.setattr(linear_module, "_product", F.linear)
    factors = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (5, 4), (5,))]
    assert torch.autograd.gradcheck(linear_module.fast_linear, factors)
    assert torch.autograd.gradgradcheck(linear_module.fast_linear, factors)


@pytest.mark.parametrize("rows", [7, 300])  # below and above one chunk
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_cross_entropy(rows, smoothing, bias):
    torch.manual_seed(0)
    head = RoFormerLiteLinear(16, 50, bias=bias).double()
    states = torch.randn(rows, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 50, (rows,))
    leaves = [states, *head.parameters()]
    fused = linear_cross_entropy(states, head, labels, smoothing)
    plain = F.cross_entropy(head(states), labels, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(fused, plain)
    for mine, theirs in zip(
        torch.autograd.grad(fused / 3, leaves), torch.autograd.grad(plain / 3, leaves), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_second_order_of_the_loss():
    """`create_graph=True`: gradients of gradients are those of logits and cross-entropy written out."""
    torch.manual_seed(0)
    head, labels = RoFormerLiteLinear(6, 11).double(), torch.randint(0, 11, (9,))
    states = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    leaves, results = [states, *head.parameters()], []
    for loss in (
        linear_cross_entropy(states, head, labels, 0.1),
        F.cross_entropy(head(states), labels, reduction="sum", label_smoothing=0.1),
    ):
        grads = torch.autograd.grad(loss, leaves, create_graph=True)
        penalty = sum(grad.square().sum() for grad in grads)
        results.append([*grads, *torch.autograd.grad(penalty, leaves)])
    torch.testing.assert_close(*results)


def test_linear_cross_entropy_of_a_frozen_head():
    head = RoFormerLiteLinear(8, 20).requires_grad_(False)
    states = torch.randn(5, 8, requires_grad=True)
    linear_cross_entropy(states, head, torch.arange(5)).backward()
    assert states.grad.abs().sum() > 0 and head.weight.grad is None


def test_linear_cross_entropy_under_autocast():
    torch.manual_seed(0)
    head, states, labels = RoFormerLiteLinear(32, 99), torch.randn(300, 32, requires_grad=True), torch.arange(300) % 99
    with torch.autocast("cpu", torch.bfloat16):
        fused = linear_cross_entropy(states, head, labels)
        plain = F.cross_entropy(head(states).float(), labels, reduction="sum")
    mine, theirs = (torch.autograd.grad(loss, [states, head.weight]) for loss in (fused, plain))
    torch.testing.assert_close(fused, plain, rtol=1e-3, atol=0)
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.01 * other.norm()  # bfloat16 keeps 8 bits


def test_a_head_with_a_hook_is_called():
    """Whatever is attached to the LM head takes part in the loss, as adapters do."""
    model = RoFormerLiteForMaskedLM(RoFormerLiteConfig.from_preset("tiny", vocab_size=50)).train()
    ids = torch.randint(5, 50, (2, 9))
    model.model.eval()
    with torch.no_grad():
        without = model(ids, labels=ids).loss
    seen = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape) or output * 0)
    loss = model(ids, labels=ids).loss
    assert seen == [(18, 50)]
    torch.testing.assert_close(loss, torch.tensor(50.0).log())
    assert abs(loss - without) > 1e-3


@pytest.mark.parametrize("attach", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_the_head_are_called(attach):
    model = RoFormerLiteForMaskedLM(RoFormerLiteConfig.from_preset("tiny", vocab_size=50)).train()
    ids, seen = torch.randint(5, 50, (2, 9)), []
    getattr(model.lm_head, attach)(lambda *arguments: seen.append(1))
    model(ids, labels=ids).loss.backward()
    assert seen


def test_models_can_be_pickled_and_moved():
    """As every module: to another process, and to a device that has no numbers."""
    config = RoFormerLiteConfig.from_preset("tiny", vocab_size=50)
    model, ids = RoFormerLiteForMaskedLM(config).eval(), torch.randint(5, 50, (2, 9))
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0, atol=0)
    assert model.to("meta")(ids.to("meta")).logits.shape == (2, 9, 50)


def test_one_vector():
    head = RoFormerLiteLinear(256, 512)
    vector = torch.randn(256)
    torch.testing.assert_close(head(vector), F.linear(vector, head.weight, head.bias), rtol=1e-5, atol=1e-5)


def test_operations_are_counted():
    head, states = RoFormerLiteLinear(512, 512), torch.randn(512, 512)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        head(states)
    assert counter.get_total_flops() == 2 * 512 * 512 * 512


def test_few_shapes_are_compiled():
    """A library that keeps compiled code for each shape must not be asked for each length of a batch."""
    head = RoFormerLiteLinear(512, 512)
    with torch.no_grad(), torch.profiler.profile() as profile:
        for rows in range(400, 500):
            head(torch.zeros(rows, 512))
    compiled = [event.count for event in profile.key_averages() if "mkldnn" in event.key]
    assert 0 < sum(compiled) <= 2 * 7  # the multiples of 16


def test_ragged_batches_have_few_numbers_of_rows():
    rows = [choose_num_rows(tokens, 2**20, torch.device("cpu"), torch.float32) for tokens in range(1, 4097)]
    assert rows[:95] == list(range(1, 96))  # too small a product for a choice
    assert all(tokens <= n <= tokens * 17 / 16 for tokens, n in enumerate(rows, 1))
    assert len(set(rows[1023:])) <= 2 * 16 + 1
    assert choose_num_rows(1001, 2**20, torch.device("cpu"), torch.float64) == 1001
    with torch.autocast("cpu", torch.bfloat16):
        assert choose_num_rows(1001, 2**20, torch.device("cpu"), torch.float32) == 1001
    config = RoFormerLiteConfig.from_preset("mini", vocab_size=100, num_hidden_layers=1)
    model, mask = RoFormerLiteModel(config).eval(), torch.ones(4, 128, dtype=torch.long)
    mask[1:, 100:] = 0
    ids = torch.randint(5, 100, mask.shape)
    assert model.lay_out(input_ids=ids, attention_mask=mask).tokens.num_rows == 432 > int(mask.sum()) == 428
    with torch.no_grad():
        padded = model(ids, mask).last_hidden_state
        alone = [model(row[m.bool()][None]).last_hidden_state[0] for row, m in zip(ids, mask, strict=True)]
    torch.testing.assert_close(padded[mask.bool()], torch.cat(alone), rtol=0, atol=1e-5)


def replica(module: nn.Module) -> nn.Module:
    """What `nn.DataParallel` runs on each card: modules whose weights are attributes, not parameters."""
    copy = module._replicate_for_data_parallel()
    for name, child in module.named_children():
        setattr(copy, name, replica(child))
    for name, weight in module._parameters.items():
        setattr(copy, name, weight)
    return copy


def test_replicas_of_data_parallel():
    config = RoFormerLiteConfig.from_preset("tiny", vocab_size=100)
    model, mask = RoFormerLiteForMaskedLM(config).eval(), torch.ones(3, 9, dtype=torch.long)
    mask[1:, 4:] = 0
    ids = torch.randint(5, 100, mask.shape)
    with torch.no_grad():
        torch.testing.assert_close(replica(model)(ids, mask).logits, model(ids, mask).logits)


def test_dropout_in_per_sample_gradients():
    dropout = RoFormerLiteDropout(0.5).train()
    rows = torch.func.vmap(dropout, randomness="different")(torch.ones(3, 1000))
    assert all(400 < int(row.count_nonzero()) < 600 for row in rows) and not rows[0].equal(rows[1])
    assert not RoFormerLiteDropout(1.0).train()(torch.ones(5)).any()


def test_the_activation_is_called():
    """Whoever replaces or hooks `act_fn` changes the result, with and without gradients."""
    mlp = RoFormerLiteModel(RoFormerLiteConfig.from_preset("tiny", vocab_size=50)).eval().layers[0].mlp
    states, seen = torch.randn(4, 128), []
    expected = mlp.down_proj(mlp.up_proj(states).relu() + 1)
    mlp.act_fn = nn.ReLU()
    mlp.act_fn.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]) or output + 1)
    for needs_grad in (False, True):
        with torch.set_grad_enabled(needs_grad):
            torch.testing.assert_close(mlp(states), expected, rtol=0, atol=1e-6)
    assert len(seen) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_in_one_pass(dtype):
    """Without gradients GELU is computed with the product; with them, and beside hooks, by its module."""
    torch.manual_seed(0)
    linear, gelu = RoFormerLiteLinear(512, 512, dtype=dtype), ACT2FN["gelu"]
    states, seen = torch.randn(8, 64, 512, dtype=dtype), []
    expected = F.gelu(F.linear(states, linear.weight, linear.bias)).detach()
    tolerance = {"rtol": 0, "atol": 1e-5 if dtype == torch.float32 else 2e-2}
    with torch.no_grad(), torch.profiler.profile() as profile:
        torch.testing.assert_close(activated_linear(linear, gelu, states), expected, **tolerance)
    assert not [event.key for event in profile.key_averages() if "gelu" in event.key]
    with_gradient = activated_linear(linear, gelu, states)
    torch.testing.assert_close(with_gradient.detach(), expected, **tolerance)
    assert with_gradient.requires_grad
    linear.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    with torch.no_grad():
        torch.testing.assert_close(activated_linear(linear, gelu, states), expected, **tolerance)
    assert seen == [(8, 64, 512)]


def test_onednn_can_be_switched_off():
    linear, states = RoFormerLiteLinear(512, 512), torch.randn(512, 512)
    with torch.no_grad(), torch.profiler.profile() as profile, torch.backends.mkldnn.flags(enabled=False):
        output = linear(states)
    assert not [event.key for event in profile.key_averages() if "mkldnn" in event.key]
    torch.testing.assert_close(output, F.linear(states, linear.weight, linear.bias), rtol=1e-5, atol=1e-5)


def test_stacked_heads_one_by_one(monkeypatch):
    """Parallel heads: one after the other, as on a CPU, or all in one product, as elsewhere and in traces."""
    torch.manual_seed(0)
    config = RoFormerLiteConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=3, layer_style="parallel_heads", hidden_act="prelu"
    )
    unit = parallel_heads.RoFormerLiteStackedUnit(config, 3, 16, 24, 0.0).double()
    for parameter in unit.parameters():
        nn.init.normal_(parameter)
    states = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    leaves = [states, *unit.parameters()]
    one_by_one = unit(states)
    seen = []
    handle = unit.up_proj.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    torch.testing.assert_close(unit(states), one_by_one)
    handle.remove()
    assert seen == [(3, 5, 24)]  # hooks, offloading among them, see their module
    monkeypatch.setattr(parallel_heads, "is_traced_or_transformed", lambda states: True)
    together = unit(states)
    torch.testing.assert_close(one_by_one, together)
    weights = torch.randn_like(together)
    for mine, theirs in zip(
        torch.autograd.grad((one_by_one * weights).sum(), leaves),
        torch.autograd.grad((together * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
