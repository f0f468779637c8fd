"""`torch.compile`: few graphs for batches of all lengths, no padding in them, and the numbers of the plain model."""

import random

import pytest
import torch
from conftest import VOCAB, build, seq2seq_config, stack_config

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration, RoFormerLiteForMaskedLM
from hf_roformer_lite.model import host_side, operators
from hf_roformer_lite.model.ragged import RaggedBatch

MODELS = {
    "mlm": lambda: build(RoFormerLiteForMaskedLM, stack_config()),
    "sliding causal": lambda: build(RoFormerLiteForCausalLM, stack_config("sliding")),
    "pair": lambda: build(RoFormerLiteForConditionalGeneration, seq2seq_config()),
}


def rows(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, VOCAB, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(sum(lengths)))
    return ids, (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def random_batch(kind: str, draw: random.Random, number: int = 4) -> dict[str, torch.Tensor]:
    ids, mask = rows([draw.randint(2, 30) for _ in range(number)])
    target, target_mask = rows([draw.randint(2, 30) for _ in range(number)]) if kind == "pair" else (ids, mask)
    labels = target.masked_fill(target_mask == 0, -100)
    if kind == "mlm":
        labels = labels.masked_fill(torch.rand(labels.shape, generator=torch.Generator().manual_seed(0)) < 0.7, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def graphs() -> int:
    assert not torch._dynamo.utils.counters["graph_break"]
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.parametrize("kind", MODELS)
def test_few_graphs_for_all_lengths(kind):
    """And numbers of rows from two on. Only what is traced, without a backend that makes code of it."""
    model, draw = MODELS[kind](), random.Random(0)
    compiled = torch.compile(model, backend="eager")
    for number in range(100):
        batch = random_batch(kind, draw, draw.randint(2, 9))
        is_training = number % 2 == 0
        model.train(is_training)
        with torch.set_grad_enabled(is_training):
            loss = compiled(**batch).loss
            torch.testing.assert_close(loss, model(**batch).loss, rtol=0, atol=1e-5)
    assert 2 <= graphs() <= 4


@pytest.mark.parametrize("side", ["attention_mask", "decoder_attention_mask"])
def test_pair_with_one_padded_side(side):
    model = MODELS["pair"]()
    (ids, mask), (target, target_mask) = rows([9, 4, 6]), rows([5, 8, 2])
    masks = {"attention_mask": mask, "decoder_attention_mask": target_mask}
    inputs = {"input_ids": ids, "decoder_input_ids": target, side: masks[side], "use_cache": False}
    with torch.no_grad():
        logits = torch.compile(model, backend="eager")(**inputs).logits
        torch.testing.assert_close(logits, model(**inputs).logits, rtol=0, atol=1e-5)
    assert graphs() == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("kind", MODELS)
def test_same_losses_logits_and_gradients(kind, backend):
    model, draw = MODELS[kind](), random.Random(1)
    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        batch, found = random_batch(kind, draw), []
        for run in (compiled, model):
            model.train().zero_grad()
            loss = run(**batch).loss
            loss.backward()
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            with torch.no_grad():
                model.eval()
                found.append([loss, *gradients, run(**batch).logits])
        torch.testing.assert_close(*found, rtol=0, atol=1e-5)
    assert graphs() <= 4


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_dropout_drops_the_same(backend):
    """A graph draws what the plain model draws, with the same seed, and other numbers in each layer and step."""
    model = build(RoFormerLiteForMaskedLM, stack_config(hidden_dropout=0.3)).train()
    compiled, batch, losses = torch.compile(model, backend=backend), random_batch("mlm", random.Random(4)), []
    for seed in (0, 1):
        found = []
        for run in (compiled, model):
            torch.manual_seed(seed)
            model.zero_grad()
            loss = run(**batch).loss
            loss.backward()
            found.append([loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        torch.testing.assert_close(*found, rtol=0, atol=1e-5)
        losses.append(found[0][0].item())
    assert losses[0] != losses[1]
    assert graphs() == 1


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_two_passes_over_one_batch_drop_different_numbers(backend):
    """As R-Drop needs it."""
    model = build(RoFormerLiteForMaskedLM, stack_config(hidden_dropout=0.3)).train()
    batch = random_batch("mlm", random.Random(5))
    losses = torch.compile(lambda: [model(**batch).loss for _ in range(2)], backend=backend)()
    assert losses[0].item() != losses[1].item()


def test_training_after_evaluation_in_inference_mode():
    """On the same lengths, whose plan both share."""
    model, batch = MODELS["mlm"](), random_batch("mlm", random.Random(3))
    compiled = torch.compile(model, backend="aot_eager")
    with torch.inference_mode():
        compiled.eval()(**batch)
    compiled.train()(**batch).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_batch_without_a_real_token():
    model = MODELS["mlm"]().eval()
    compiled, (ids, mask) = torch.compile(model, backend="eager"), rows([3, 5])
    with torch.no_grad():
        for given in (mask, torch.zeros_like(mask)):
            wanted = model(input_ids=ids, attention_mask=given).logits
            torch.testing.assert_close(compiled(input_ids=ids, attention_mask=given).logits, wanted, rtol=0, atol=1e-5)


def test_operators_return_tensors_of_their_own(monkeypatch):
    """What was sent in one buffer, as to a GPU, would be views of it, which torch refuses."""

    def send(value, device):
        return host_side._send(list(value), torch.device("cpu"))

    monkeypatch.setattr(operators, "move_together", send)
    _, mask = rows([3, 5])
    index, positions, lengths = operators.find_tokens(mask)
    assert index.tolist() == [0, 1, 2, 5, 6, 7, 8, 9] and positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert lengths.tolist() == [3, 5]
    places, labels = operators.find_labelled(torch.tensor([[-100, 7], [8, -100]]), -100)
    assert (places.tolist(), labels.tolist()) == ([1, 2], [7, 8])


def test_the_graph_has_no_padding():
    """The first layer gets as many rows as there are tokens."""
    seen = []

    def backend(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    model = MODELS["mlm"]().train()
    draw = random.Random(2)
    torch.compile(model, backend=backend)(**random_batch("mlm", draw))
    names = [getattr(target, "_name", "").rpartition("::")[2] for target in map(_overload, seen)]
    assert names.count("find_tokens") == 1 and names.count("find_labelled") == 1
    assert names.count("attend") == model.config.num_hidden_layers


def _overload(target):
    return getattr(target, "default", target)


@pytest.mark.parametrize("is_causal, window", [(False, None), (True, None), (False, 2), (True, 3)])
def test_attention_operator(is_causal, window):
    """The operator, its shapes in a graph and its gradient against the plan of the plain model."""
    lengths = torch.tensor([5, 1, 9])
    query, key, value = (torch.randn(15, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    arguments = query, key, value, lengths, lengths, "sdpa", is_causal, window, 0.3
    torch.library.opcheck(operators.attend, arguments, test_utils=("test_schema", "test_faketensor"))
    found = operators.attend(*arguments)
    gradients = torch.autograd.grad(found.square().sum(), (query, key, value))
    wanted = by_document(query, key, value, lengths.tolist(), is_causal, window, 0.3).flatten(1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    expected = torch.autograd.grad(wanted.square().sum(), (query, key, value))
    torch.testing.assert_close(gradients, expected, rtol=0, atol=1e-4)


def by_document(query, key, value, lengths, is_causal, window, scaling) -> torch.Tensor:
    """Attention written out, one document after the other."""
    outputs = []
    groups = query.shape[1] // key.shape[1]
    for q, k, v in zip(*(states.split(lengths) for states in (query, key, value)), strict=True):
        distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
        seen = distance >= 0 if is_causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            seen = seen & (distance < window if is_causal else distance.abs() <= window)
        k, v = (states.repeat_interleave(groups, 1) for states in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scaling
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v))
    return torch.cat(outputs)


def test_tokens_operator():
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 1]]).bool()
    torch.library.opcheck(operators.find_tokens, (mask,), test_utils=("test_schema", "test_faketensor"))
    index, positions, lengths = operators.find_tokens(mask)
    plain = RaggedBatch.build(3, 3, mask.device, mask)
    assert torch.equal(index, plain.token_index) and torch.equal(positions, plain.position_ids)
    assert lengths.tolist() == list(plain.lengths) == [2, 0, 2]
