"""The numbers stay the same: for no rows, in pieces, computed again, by functions of torch that transform a model."""

import pytest
import torch
from conftest import CLOSE, STACKS, STYLES, VOCAB, build, seq2seq_config, stack_config
from torch.func import functional_call, grad, jvp

from hf_roformer_lite import (
    RoFormerLiteForCausalLM,
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteForMaskedLM,
    RoFormerLiteForQuestionAnswering,
    RoFormerLiteForSequenceClassification,
    RoFormerLiteForTokenClassification,
    RoFormerLiteModel,
)
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteMLP

IDS = torch.randint(5, VOCAB, (3, 8), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS).index_put((torch.tensor([0, 0, 1]), torch.tensor([6, 7, 0])), torch.tensor(0))
LABELS = IDS.masked_fill(MASK == 0, -100)
CLASSES = torch.tensor([0, 1, 2])
HEADS = {
    RoFormerLiteForMaskedLM: {"labels": LABELS},
    RoFormerLiteForCausalLM: {"labels": LABELS},
    RoFormerLiteForTokenClassification: {"labels": LABELS},
    RoFormerLiteForSequenceClassification: {"labels": CLASSES},
    RoFormerLiteForQuestionAnswering: {"start_positions": CLASSES, "end_positions": CLASSES},
    RoFormerLiteForConditionalGeneration: {"labels": LABELS},
}
every_head = pytest.mark.parametrize("model_class", HEADS)


def head(model_class, **fields):
    if model_class is RoFormerLiteForConditionalGeneration:
        return build(model_class, seq2seq_config())
    is_tagger = model_class is RoFormerLiteForTokenClassification
    return build(model_class, stack_config(num_labels=VOCAB if is_tagger else 3, **fields))


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


# No rows


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*STACKS, *STYLES])
def test_no_rows(name, backend):
    for is_decoder in (False, True):
        model, none = build(RoFormerLiteModel, stack_config(name, backend, is_decoder=is_decoder)), IDS[:0]
        for more in ({}, {"attention_mask": none}, {"position_ids": none}, {"use_cache": False}):
            assert model(none, **more).last_hidden_state.shape == (0, 8, 32)
        assert model(IDS[:, :0], use_cache=False).last_hidden_state.shape == (3, 0, 32)


@pytest.mark.parametrize("training", [False, True])
@every_head
def test_no_rows_with_a_head(model_class, training):
    model = head(model_class).train(training)
    targets = {name: value[:0] for name, value in HEADS[model_class].items()}
    model(IDS[:0], attention_mask=MASK[:0], **targets).loss.backward()
    found = gradients(model)
    assert found and all((gradient == 0).all() for gradient in found.values())


def test_no_rows_to_pool():
    for pooling in ("mean", "cls", "last"):
        model = head(RoFormerLiteForSequenceClassification, classifier_pooling=pooling)
        assert model(IDS[:0]).logits.shape == (0, 3) and model(IDS[:, :0]).logits.isfinite().all()


# Functions of torch


def assert_functional_gradients(model, inputs: dict[str, torch.Tensor]) -> None:
    inputs = {"input_ids": IDS, **inputs}
    weights = dict(model.named_parameters())
    found = grad(lambda weights: functional_call(model, weights, (), inputs).loss)(weights)
    model(**inputs).loss.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, **CLOSE, msg=name)


@pytest.mark.parametrize("training", [False, True])
@every_head
def test_functional_gradients_of_padded_input(model_class, training):
    assert_functional_gradients(head(model_class).train(training), {"attention_mask": MASK, **HEADS[model_class]})


def test_functional_gradients_of_packed_documents():
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]] * 3)
    assert_functional_gradients(head(RoFormerLiteForMaskedLM).train(), {"position_ids": positions, "labels": LABELS})


def test_forward_mode_of_padded_input():
    model = build(RoFormerLiteModel, stack_config(backend="eager")).double()
    vectors = torch.randn(3, 8, 32, dtype=torch.double)
    direction = torch.randn_like(vectors)

    def states(vectors: torch.Tensor) -> torch.Tensor:
        return model(inputs_embeds=vectors, attention_mask=MASK).last_hidden_state

    step = 1e-6 * direction
    numeric = (states(vectors + step) - states(vectors - step)) / 2e-6
    torch.testing.assert_close(jvp(states, (vectors,), (direction,))[1], numeric, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("items", [None, 9])
@every_head
def test_compiled_training_step(model_class, items):
    """As one graph, with and without `num_items_in_batch`."""
    torch.compiler.reset()
    model = head(model_class).train()
    inputs = {"input_ids": IDS, "attention_mask": MASK, "num_items_in_batch": items, **HEADS[model_class]}
    loss = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs).loss
    loss.backward()
    found = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad()
    expected = model(**inputs).loss
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, **CLOSE, msg=name)


# In pieces, and again


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("chunk_size", [1, 7, 100])
def test_feed_forward_in_chunks(gated, chunk_size):
    whole = RoFormerLiteMLP(stack_config(gated_mlp=gated)).double()
    chunked = RoFormerLiteMLP(stack_config(gated_mlp=gated, chunk_size_feed_forward=chunk_size)).double()
    chunked.load_state_dict(whole.state_dict())
    states = torch.randn(3, 15, 32, dtype=torch.double, requires_grad=True)
    found = []
    for mlp in (whole, chunked):
        output = mlp(states)
        found.append([output, *torch.autograd.grad(output.sin().sum(), [states, *mlp.parameters()])])
        with torch.no_grad():
            torch.testing.assert_close(mlp(states), output)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("model_class", [RoFormerLiteForMaskedLM, RoFormerLiteForCausalLM])
def test_gradient_checkpointing(model_class, reentrant):
    """Both kinds, with windows and padding, give the gradients of a model that keeps everything."""
    ids, found = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0)), []
    for checkpoints in (False, True):
        model = build(model_class, stack_config("sliding")).train()
        if checkpoints:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(ids, attention_mask=(ids % 7 > 0).long(), labels=ids).loss.backward()
        found.append(gradients(model))
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-6, msg=name)
