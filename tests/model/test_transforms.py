"""The numbers stay the same: for no rows, in pieces, by functions of torch that transform a model."""

import pytest
import torch
from conftest import CLOSE, VOCAB, build, seq2seq_config, stack_config
from torch.func import functional_call, grad

import hf_roformer_lite as rl
from hf_roformer_lite.model.modeling_roformer_lite import RoFormerLiteMLP

IDS = torch.randint(5, VOCAB, (3, 8), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS).index_put((torch.tensor([0, 0, 1]), torch.tensor([6, 7, 0])), torch.tensor(0))
LABELS = IDS.masked_fill(MASK == 0, -100)
CLASSES = torch.tensor([0, 1, 2])
HEADS = {
    rl.RoFormerLiteForMaskedLM: {"labels": LABELS},
    rl.RoFormerLiteForCausalLM: {"labels": LABELS},
    rl.RoFormerLiteForTokenClassification: {"labels": LABELS},
    rl.RoFormerLiteForSequenceClassification: {"labels": CLASSES},
    rl.RoFormerLiteForQuestionAnswering: {"start_positions": CLASSES, "end_positions": CLASSES},
    rl.RoFormerLiteForConditionalGeneration: {"labels": LABELS},
}
every_head = pytest.mark.parametrize("model_class", HEADS)


def head(model_class, **fields):
    if model_class is rl.RoFormerLiteForConditionalGeneration:
        return build(model_class, seq2seq_config())
    is_tagger = model_class is rl.RoFormerLiteForTokenClassification
    return build(model_class, stack_config(num_labels=VOCAB if is_tagger else 3, **fields))


def gradients(model) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


# No rows


@every_head
def test_no_rows_with_a_head(model_class):
    for training in (False, True):
        model = head(model_class).train(training)
        targets = {name: value[:0] for name, value in HEADS[model_class].items()}
        model(IDS[:0], attention_mask=MASK[:0], **targets).loss.backward()
        found = gradients(model)
        assert found and all((gradient == 0).all() for gradient in found.values())


# Functions of torch


@every_head
def test_functional_gradients(model_class):
    """Of padded input; of a language model of packed documents, too."""
    described = [{"attention_mask": MASK}]
    if model_class is rl.RoFormerLiteForMaskedLM:
        described.append({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]] * 3)})
    for more in described:
        model, inputs = head(model_class).train(), {"input_ids": IDS, **more, **HEADS[model_class]}
        weights = dict(model.named_parameters())
        found = grad(lambda weights: functional_call(model, weights, (), inputs).loss)(weights)  # noqa: B023
        model(**inputs).loss.backward()
        for name, gradient in gradients(model).items():
            torch.testing.assert_close(found[name], gradient, **CLOSE, msg=name)


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_in_chunks(gated):
    whole, *chunked = (
        RoFormerLiteMLP(stack_config(gated_mlp=gated, chunk_size_feed_forward=size)).double()
        for size in (0, 1, 7, 100)
    )
    states = torch.randn(3, 15, 32, dtype=torch.double)
    for mlp in chunked:
        mlp.load_state_dict(whole.state_dict())
        torch.testing.assert_close(mlp(states), whole(states))
