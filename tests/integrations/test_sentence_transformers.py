"""Our encoder in sentence-transformers: pooling, length, training, saving, and loading in a fresh process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import build, stack_config
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import hf_roformer_lite as rl
from hf_roformer_lite.model.padding import pool

TOPICS = ["harbour boat sail wave tide", "oven bread flour dough crust", "orbit star moon comet sky"]
WORDS = [topic.split() for topic in TOPICS]


def saved_encoder(directory: Path, texts: list[str]) -> str:
    tokenizer = rl.RoFormerLiteTokenizer.train(texts, vocab_size=2000, model_max_length=24, show_progress=False)
    config = stack_config(vocab_size=len(tokenizer))
    build(rl.RoFormerLiteModel, config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def sentences(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Sentences of words of one topic each, and the number of the topic."""
    draw = np.random.default_rng(seed)
    topics = draw.integers(0, len(WORDS), count)
    return [" ".join(draw.choice(WORDS[topic], draw.integers(2, 7))) for topic in topics], topics


def pairs(count: int, seed: int) -> Dataset:
    (first, topics), (second, others) = sentences(count, seed), sentences(count, seed + 1)
    scores = (topics == others).astype(float).tolist()
    return Dataset.from_dict({"sentence1": first, "sentence2": second, "score": scores})


def train_one_epoch(model: SentenceTransformer, train: Dataset, test: Dataset, folder: Path) -> tuple[float, float]:
    """Spearman correlations of `test` before and after."""
    evaluator = EmbeddingSimilarityEvaluator(test["sentence1"], test["sentence2"], test["score"], name="test")
    before = evaluator(model)["test_spearman_cosine"]
    options = {"num_train_epochs": 1, "per_device_train_batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 10}
    arguments = SentenceTransformerTrainingArguments(
        str(folder), report_to="none", save_strategy="no", disable_tqdm=True, seed=1, **options
    )
    SentenceTransformerTrainer(model, arguments, train_dataset=train, loss=CoSENTLoss(model)).train()
    return before, evaluator(model)["test_spearman_cosine"]


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_pooling_is_our_own(mode, tmp_path):
    texts = [*sentences(20, 0)[0], "moon", "", "wave " * 60]
    transformer = Transformer(saved_encoder(tmp_path, texts))
    model = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode=mode)], device="cpu")
    assert model.max_seq_length == 24
    found = torch.tensor(model.encode(texts, batch_size=len(texts)))
    inputs = model.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape[1] == 24
    ours = rl.RoFormerLiteModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        states = ours(**inputs).last_hidden_state
        expected = pool(states, {"lasttoken": "last"}.get(mode, mode), None, inputs["attention_mask"])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    model.max_seq_length = 6
    assert model.tokenize(texts)["input_ids"].shape[1] == 6


def test_train_save_and_load_in_a_fresh_process(tmp_path):
    train, test = pairs(1000, 1), pairs(200, 3)
    model = SentenceTransformer(saved_encoder(tmp_path / "encoder", train["sentence1"]), device="cpu")
    before, after = train_one_epoch(model, train, test, tmp_path / "state")
    assert after > 0.7 and after > before + 0.2, (before, after)
    model.save_pretrained(str(tmp_path / "saved"))
    np.save(tmp_path / "expected.npy", model.encode(test["sentence1"]))
    code = (
        "import sys, numpy, hf_roformer_lite\n"
        "from sentence_transformers import SentenceTransformer\n"
        "folder, texts = sys.argv[1], sys.argv[2].split(';')\n"
        "model = SentenceTransformer(folder + '/saved', device='cpu')\n"
        "assert model.max_seq_length == 24\n"
        "found = model.encode(texts)\n"
        "assert abs(found - numpy.load(folder + '/expected.npy')).max() <= 1e-6\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), ";".join(test["sentence1"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
