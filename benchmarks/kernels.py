"""The task `kernels`: where the model has code of its own in place of torch's, both measured on this machine.

`README.md`, "Why the model's code is as it is", says what each is for. Everything is float32 on the CPU, at the shapes
of that section; on other devices the model uses torch's own.
"""

from collections.abc import Callable
from itertools import cycle

import torch
from torch import nn
from torch.nn import functional as F

from hf_roformer_lite import RoFormerLiteConfig
from hf_roformer_lite.model.fast_linear import RoFormerLiteLinear
from hf_roformer_lite.model.fused_cross_entropy import linear_cross_entropy
from hf_roformer_lite.model.layers import RoFormerLiteDropout
from hf_roformer_lite.model.parallel_heads import RoFormerLiteStackedUnit

from .stacks import OURS
from .timing import Contender, measure_alternating, ratio

ONEDNN_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None


def product(rows: int, inputs: int, outputs: int, copies: int = 1) -> list[Contender]:
    """`(rows, inputs)` by a weight `(outputs, inputs)`, without gradients: torch's `F.linear` (by MKL on x86), oneDNN,
    and the weight as the first factor. With many `copies` of the weight, used one after the other, no cache holds it.
    """
    states, bias = torch.randn(rows, inputs), torch.randn(outputs)
    weights = torch.randn(outputs, inputs).repeat(copies, 1, 1).unbind()
    layers = []
    for weight in weights:
        layer = RoFormerLiteLinear(inputs, outputs, device="meta")
        layer.weight, layer.bias = nn.Parameter(weight, requires_grad=False), nn.Parameter(bias, requires_grad=False)
        layers.append(layer)
    methods: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "F.linear": lambda weight: F.linear(states, weight, bias),
        "weight first": lambda weight: (weight @ states.t()).t() + bias,
    }
    if ONEDNN_LINEAR is not None:
        methods["oneDNN"] = lambda weight: ONEDNN_LINEAR(states, weight, bias, "none", [], "")

    def alternating_weights(method: Callable, factors: list) -> Callable[[], torch.Tensor]:
        factor_of_call = cycle(factors)
        return torch.no_grad()(lambda: method(next(factor_of_call)))

    ours = Contender(OURS, alternating_weights(lambda layer: layer(states), layers))
    return [ours, *(Contender(name, alternating_weights(method, weights)) for name, method in methods.items())]


def dropout(rows: int, width: int) -> list[Contender]:
    """Dropout of 0.1 on `(rows, width)`, forward."""
    states = torch.randn(rows, width)
    modules = {OURS: RoFormerLiteDropout(0.1), "nn.Dropout": nn.Dropout(0.1)}
    return [Contender(name, lambda module=module: module(states)) for name, module in modules.items()]


def cross_entropy(rows: int, width: int, vocab_size: int) -> list[Contender]:
    """The loss of an LM head on `(rows, width)` with the gradients of states and weights."""
    states, head = torch.randn(rows, width, requires_grad=True), RoFormerLiteLinear(width, vocab_size)
    labels = torch.randint(vocab_size, (rows,))
    losses = {
        OURS: lambda: linear_cross_entropy(states, head, labels, 0.0),
        "F.cross_entropy": lambda: F.cross_entropy(head(states), labels, reduction="sum"),
    }

    def step(loss: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        total = loss()
        return (total.detach(), *torch.autograd.grad(total, (states, head.weight, head.bias)))

    return [Contender(name, lambda loss=loss: step(loss)) for name, loss in losses.items()]


def stacked_heads(heads: int, tokens: int, width: int, inner: int, train: bool) -> list[Contender]:
    """The feed-forwards of the parallel heads on `(heads, tokens, width)`: one head after the other, as the model has
    it on a CPU, and all in batched products, as elsewhere and where a module has a hook."""
    one_by_one = RoFormerLiteStackedUnit(RoFormerLiteConfig(), heads, width, inner, dropout=0.0)
    batched = RoFormerLiteStackedUnit(RoFormerLiteConfig(), heads, width, inner, dropout=0.0)
    for parameter in one_by_one.parameters():
        nn.init.normal_(parameter, std=0.02)
    batched.load_state_dict(one_by_one.state_dict())
    batched.up_proj.register_forward_hook(lambda *_: None)
    states = torch.randn(heads, tokens, width)

    def run(unit: nn.Module) -> torch.Tensor:
        with torch.set_grad_enabled(train):
            result = unit(states)
        if train:
            unit.zero_grad(set_to_none=True)
            result.square().mean().backward()
        return result.detach()

    units = {OURS: one_by_one, "batched": batched}
    return [Contender(name, lambda unit=unit: run(unit)) for name, unit in units.items()]


# Made one at a time: the copies of the weight in the second take 512 MiB.
KERNELS: dict[str, Callable[[], list[Contender]]] = {
    "product (1024, 512) by (512, 2048)": lambda: product(1024, 512, 2048),
    "product (8, 256) by (256, 8192), not in a cache": lambda: product(8, 256, 8192, copies=64),
    "dropout (1500, 256)": lambda: dropout(1500, 256),
    "LM head and cross-entropy (700, 256), vocabulary 30,522": lambda: cross_entropy(700, 256, 30522),
    "12 heads (256, 512)": lambda: stacked_heads(12, 256, 512, 2048, train=False),
    "12 heads (256, 512), with gradients": lambda: stacked_heads(12, 256, 512, 2048, train=True),
}


def measure_kernels(rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each contender of each kernel, and how many times as long as ours it takes."""
    rows = {}
    for kernel, make in KERNELS.items():
        contenders = make()
        measure_alternating(contenders, rounds)
        for contender in contenders:
            times = ratio(contender, contenders[0])
            rows[f"{kernel}: {contender.name}"] = {"milliseconds": 1000 * contender.median, "times_ours": times}
    return rows
