"""`device_map`: layers on several devices, and weights that come from memory or disk when they are needed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy_training import HEADS, make_model, make_rows

from hf_roformer_lite.model.attention_plan import plan_self_attention
from hf_roformer_lite.model.ragged import RaggedBatch

CPU = torch.device("cpu")
SCRIPT = Path(__file__).parent / "two_devices.py"


@pytest.mark.slow
def test_layers_on_two_devices():
    environment = {**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    copies, differences = map(json.loads, done.stdout.splitlines()[-2:])
    for kind, by_lengths in copies.items():  # with few and with many groups of lengths
        sent = 3 if kind == "seq2seq" else 2  # one for each layout, and one for the places of the labels
        assert by_lengths == [{"read": 1, "sent": sent, "others that wait": 0}] * 2, kind
    assert "privateuseone:0', 'privateuseone:1" in differences.pop("mixed")
    assert len(differences) == 7 and max(differences.values()) < 1e-4, differences


@pytest.mark.parametrize("backend", ["sdpa", "flex_attention", "flash_attention_2"])
@pytest.mark.parametrize("window", [None, 2])
def test_plans_and_batches_move_only_when_they_must(backend, window):
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    for dense in (False, True):
        batch = RaggedBatch.build(2, 4, CPU, mask, dense=dense)
        plan = plan_self_attention(batch, backend, False, window)
        assert batch.to("cpu") is batch and plan.to("cpu", non_blocking=False) is plan
        assert batch.to("meta").position_ids.is_meta
        if backend == "flex_attention":  # whose masks are made where they are asked for
            assert plan.mask_on(CPU) is plan.mask_on(CPU) and plan.mask_on(CPU).kv_num_blocks.device == CPU
        else:
            assert plan.to("meta") is not plan


@pytest.mark.parametrize("kind", ["mlm", "seq2seq"])
def test_weights_on_the_disk(kind, tmp_path):
    whole = make_model(kind)
    whole.save_pretrained(tmp_path / "model", max_shard_size="20kB")
    room = sum(p.numel() * 4 for p in whole.parameters()) // 2
    model = type(whole).from_pretrained(
        tmp_path / "model", device_map="auto", max_memory={"cpu": room}, offload_folder=tmp_path / "disk"
    )
    assert "disk" in model.hf_device_map.values() and any(p.is_meta for p in model.parameters())
    inputs = {key: torch.stack([row[key] for row in make_rows(kind)]) for key in make_rows(kind)[0]}
    with torch.no_grad():
        got, wanted = model(**inputs), whole(**inputs)
    torch.testing.assert_close(got.logits, wanted.logits, rtol=0, atol=1e-6)
    if model.can_generate():
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        texts = [m.generate(**source, max_new_tokens=5, num_beams=2) for m in (model, whole)]
        assert torch.equal(*texts)
    model.save_pretrained(tmp_path / "again")
    again = HEADS[kind][0].from_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in whole.state_dict().items())
