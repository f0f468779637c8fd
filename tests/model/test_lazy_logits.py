"""Logits while training: the same as ever for who reads them, and not computed for anybody else."""

import copy
import pickle

import pytest
import torch
from accelerate.utils import convert_outputs_to_fp32
from conftest import VOCAB, build, seq2seq_config, stack_config
from torch.utils import _pytree

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration, RoFormerLiteForMaskedLM

CLASSES = [RoFormerLiteForMaskedLM, RoFormerLiteForCausalLM, RoFormerLiteForConditionalGeneration]
IDS = torch.randint(5, VOCAB, (3, 8), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS).index_fill(1, torch.tensor([7]), 0)
LABELS = IDS.masked_fill((MASK == 0) | (IDS % 3 > 0), -100)
LABELS[:, -1] = 5  # the pair computes nothing behind the last label


@pytest.fixture(params=CLASSES, ids=lambda kind: kind.__name__)
def models(request):
    """The same model, without and with logits at all positions, and how often its head ran on how many positions."""
    is_pair = request.param is RoFormerLiteForConditionalGeneration
    sparse = build(request.param, seq2seq_config() if is_pair else stack_config(lm_head_transform=True)).train()
    dense = copy.deepcopy(sparse)
    dense.config.get_text_config(decoder=True).sparse_prediction = False
    rows: list[int] = []
    sparse.lm_head.register_forward_hook(lambda module, args, logits: rows.append(logits.shape[:-1].numel()))
    return sparse, dense, rows


def run(model, **more):
    return model(IDS, attention_mask=MASK, labels=LABELS, **more)


@pytest.mark.parametrize(
    "read",
    [
        lambda output: output.logits,
        lambda output: output["logits"],
        lambda output: output[1],
        lambda output: output[:2][1],
        lambda output: output.to_tuple()[1],
        lambda output: getattr(output, "logits", None),
    ],
)
def test_read(models, read):
    sparse, dense, rows = models
    output, expected = run(sparse), run(dense)
    assert output.loss is output["loss"] is output[0] and len(rows) == 1 and rows[0] < IDS.numel()
    for _ in range(2):
        torch.testing.assert_close(read(output), expected.logits, rtol=0, atol=1e-5)
    assert rows[1:] == [IDS.numel()] and isinstance(output.logits, torch.Tensor)
    torch.testing.assert_close(run(sparse, return_dict=False)[1], expected.logits, rtol=0, atol=1e-5)
    assert list(output) == list(expected) and isinstance(output, type(expected))


def test_gradients_through_them(models):
    sparse, dense, _ = models
    for model in (sparse, dense):
        output = run(model)
        with torch.no_grad():
            output.logits.argmax()
        (output.loss + output.logits.square().mean()).backward()
    for ours, theirs in zip(sparse.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-5)


def test_autocast_and_accelerate(models):
    sparse, dense, rows = models
    for model in (sparse, dense):
        model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    expected = run(dense).logits
    assert expected.dtype == torch.bfloat16
    torch.testing.assert_close(run(sparse).logits, expected, rtol=0, atol=1e-5)
    rows.clear()
    output = convert_outputs_to_fp32(sparse.forward)(IDS, attention_mask=MASK, labels=LABELS)
    assert len(rows) == 1
    torch.testing.assert_close(output.logits, expected, rtol=0, atol=1e-5)


def test_taken_apart_and_put_together(models):
    sparse, dense, rows = models
    expected = run(dense).logits
    output = _pytree.tree_map(lambda entry: entry, run(sparse))
    again = type(output)(**dict(output.items()))
    assert len(rows) == 1
    torch.testing.assert_close(again.logits, expected, rtol=0, atol=1e-5)
    with torch.no_grad():
        pickled = pickle.loads(pickle.dumps(run(sparse)))
    torch.testing.assert_close(pickled.logits, expected, rtol=0, atol=1e-5)
    gathered = type(output)((key, torch.cat([output[key][None]] * 2)) for key in output)  # as nn.DataParallel does
    assert gathered.logits.shape == (2, *expected.shape)


def test_too_late(models):
    sparse, _, _ = models
    optimizer = torch.optim.AdamW(sparse.parameters(), 1e-2)
    late, early = run(sparse), run(sparse)
    late.loss.backward()
    before = early.logits
    optimizer.step()
    assert early.logits is before
    with pytest.raises(RuntimeError, match=r"logits: .* step of the optimizer; .*sparse_prediction=False"):
        print(late.logits)
