"""`device_map`: weights that come from memory or disk when they are needed."""

import pytest
import torch
from toy_training import make_model, make_rows


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
    again = type(whole).from_pretrained(tmp_path / "again").state_dict()
    assert all(torch.equal(weight, again[name]) for name, weight in whole.state_dict().items())
