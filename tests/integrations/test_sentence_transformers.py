"""Our encoder in sentence-transformers: pooling, length, saving. tests/training/test_sentence_models.py trains it."""

import pytest
import torch
from conftest import build, stack_config
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import hf_roformer_lite as rl
from hf_roformer_lite.model.padding import pool


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_pooling_is_our_own(mode, tmp_path):
    texts = ["harbour boat sail", "oven bread flour dough crust", "orbit", "", "wave " * 60]
    tokenizer = rl.RoFormerLiteTokenizer.train(texts, vocab_size=2000, model_max_length=24, show_progress=False)
    for part in (tokenizer, build(rl.RoFormerLiteModel, stack_config(vocab_size=len(tokenizer)))):
        part.save_pretrained(tmp_path)
    model = SentenceTransformer(modules=[Transformer(str(tmp_path)), Pooling(32, pooling_mode=mode)], device="cpu")
    assert model.max_seq_length == 24
    found = torch.tensor(model.encode(texts, batch_size=len(texts)))
    inputs = model.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == 24
    ours = rl.RoFormerLiteModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        states = ours(**inputs).last_hidden_state
        expected = pool(states, {"lasttoken": "last"}.get(mode, mode), None, inputs["attention_mask"])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    torch.testing.assert_close(torch.tensor(again.encode(texts)), expected, rtol=0, atol=1e-6)
    model.max_seq_length = 6
    assert model.tokenize(texts)["input_ids"].shape[1] == 6
