"""Attention of ragged tokens by torch's kernel for GPUs: when it is chosen, and what it is told, without a GPU."""

import pytest
import torch
from conftest import stack_config

from hf_roformer_lite.model import attention_documents
from hf_roformer_lite.model.attention_documents import VARLEN, VarlenPlan, document_backend, plan_documents

GPU = torch.device("cuda")


def ample(device: torch.device) -> tuple[int, int]:
    return 8, 0


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", ample)


@pytest.mark.parametrize(
    "fields, device, dtype, is_training, wanted",
    [
        ({}, GPU, torch.bfloat16, True, VARLEN),
        ({}, GPU, torch.float16, False, VARLEN),
        ({}, GPU, torch.float32, False, "sdpa"),
        ({}, torch.device("cpu"), torch.bfloat16, False, "sdpa"),
        ({"backend": "eager"}, GPU, torch.bfloat16, False, "eager"),
        ({"hidden_size": 48}, GPU, torch.bfloat16, False, "sdpa"),  # heads of 12
        ({"attention_dropout": 0.1}, GPU, torch.bfloat16, True, "sdpa"),
        ({"attention_dropout": 0.1}, GPU, torch.bfloat16, False, VARLEN),
    ],
)
def test_when_it_is_chosen(fields, device, dtype, is_training, wanted, gpu):
    assert document_backend(stack_config(**fields), device, dtype, is_training) == wanted


def test_not_on_old_gpus_or_when_switched_off(gpu, monkeypatch):
    arguments = stack_config(), GPU, torch.bfloat16, False
    monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    assert document_backend(*arguments) == "sdpa"
    monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert document_backend(*arguments) == "sdpa"


def test_under_autocast_its_dtype_counts(gpu, monkeypatch):
    monkeypatch.setattr(attention_documents, "autocast_dtype", lambda device: torch.bfloat16)
    assert document_backend(stack_config(), GPU, torch.float32, True) == VARLEN


def reference(
    query, key, value, query_borders, key_borders, longest_query, longest_key, *, scale, window_size, enable_gqa
):
    """`varlen_attn` as torch documents it, one document after the other."""
    assert query_borders.dtype == key_borders.dtype == torch.int32 and enable_gqa == (query.shape[1] != key.shape[1])
    groups, outputs = query.shape[1] // key.shape[1], []
    lengths = [borders.diff().tolist() for borders in (query_borders, key_borders)]
    assert [longest_query, longest_key] == [max(of_side) for of_side in lengths]
    sides = query.split(lengths[0]), key.split(lengths[1]), value.split(lengths[1])
    for q, k, v in zip(*sides, strict=True):
        distance = torch.arange(len(q))[:, None] - torch.arange(len(k))
        left, right = window_size
        seen = torch.ones_like(distance, dtype=torch.bool)
        seen &= (distance <= left) | (left < 0)
        seen &= (-distance <= right) | (right < 0)
        k, v = (states.repeat_interleave(groups, 1) for states in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v))
    return torch.cat(outputs)


@pytest.mark.parametrize(
    "key_lengths, is_causal, window",
    [
        ([5, 1, 9], False, None),
        ([5, 1, 9], True, None),
        ([5, 1, 9], False, 2),
        ([5, 1, 9], True, 3),
        ([2, 7, 3], False, None),
    ],
)
def test_same_as_rows(key_lengths, is_causal, window, monkeypatch):
    monkeypatch.setattr(attention_documents, "varlen_attention", reference)
    lengths = [5, 1, 9]
    query, key, value = (torch.randn(n, h, 8) for n, h in ((15, 4), (sum(key_lengths), 4), (sum(key_lengths), 4)))

    def sdpa(module, *states, scaling, is_causal, **kwargs):
        *states, mask = states
        output = torch.nn.functional.scaled_dot_product_attention(*states, mask, is_causal=is_causal, scale=scaling)
        return output.transpose(1, 2), None

    settings = lengths, key_lengths, 15, len(key)
    plans = [plan_documents(*settings, backend, is_causal, window) for backend in (VARLEN, "sdpa")]
    assert isinstance(plans[0], VarlenPlan)
    ragged, rows = (plan.attend(sdpa, None, query, key, value, scaling=0.3)[0] for plan in plans)
    torch.testing.assert_close(ragged, rows, rtol=0, atol=1e-5)


def test_documents_without_tokens_go_in_rows():
    assert not isinstance(plan_documents([2, 0], [2, 0], 2, 2, VARLEN, False, None), VarlenPlan)


def test_torch_has_the_kernel():
    assert attention_documents.varlen_attention is torch.nn.attention.varlen.varlen_attn
