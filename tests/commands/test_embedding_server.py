"""`serve` of an encoder: the vectors of the model as OpenAI's API has them, and requests that are refused."""

import numpy as np
import openai
import pytest
import torch
from conftest import build, stack_config
from fastapi.testclient import TestClient

from hf_roformer_lite import RoFormerLiteForMaskedLM, RoFormerLiteForSequenceClassification, RoFormerLiteTokenizer
from roformer_lite.cli import main
from roformer_lite.commands.embedding_server import embedding_application
from roformer_lite.sentence_encoder import SentenceEncoder

TEXTS = ["a fine film", "far too long for what it says", "fine"]


@pytest.fixture(scope="module")
def tokenizer() -> RoFormerLiteTokenizer:
    return RoFormerLiteTokenizer.train(TEXTS * 4, vocab_size=300, model_max_length=64)


@pytest.fixture(scope="module")
def model(tokenizer) -> RoFormerLiteForMaskedLM:
    return build(RoFormerLiteForMaskedLM, stack_config(vocab_size=len(tokenizer), classifier_pooling="cls"))


@pytest.fixture(scope="module")
def client(model, tokenizer):
    with TestClient(embedding_application(model, tokenizer, "encoder")) as client:
        yield client


def test_vectors(client, model, tokenizer):
    """As lists, and by OpenAI's client, which asks for base64."""
    with torch.no_grad():
        pooled = [SentenceEncoder(model)(**tokenizer(text, return_tensors="pt"))[1][0] for text in TEXTS]
    vectors = torch.nn.functional.normalize(torch.stack(pooled)).numpy()
    answer = client.post("/v1/embeddings", json={"input": TEXTS}).json()
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    np.testing.assert_allclose([item["embedding"] for item in answer["data"]], vectors, rtol=0, atol=1e-6)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, tokenizer(TEXTS)["input_ids"]))
    found = client.post("/v1/embeddings", json={"input": TEXTS[1]}).json()["data"][0]["embedding"]
    assert found == pytest.approx(vectors[1].tolist(), abs=1e-6)
    others = openai.OpenAI(base_url="http://testserver/v1", api_key="none", http_client=client)
    (name,) = [found.id for found in others.models.list()]
    found = others.embeddings.create(model=name, input=TEXTS).data
    np.testing.assert_allclose([item.embedding for item in found], vectors, rtol=0, atol=1e-6)


def test_bad_requests(client):
    for body, message in (
        ({}, "input"),
        ({"input": []}, "at least 1 item"),
        ({"input": ["a"] * 2049}, "at most 2048 items"),
        ({"input": [[1, 2]]}, "valid string"),
        ({"input": "film " * 200}, "and the model reads 1 to 64"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "model": "other"}, "this server has 'encoder' alone"),
        ({"input": "a" * 2_000_000}, "at most 1,048,576 bytes"),
    ):
        reply = client.post("/v1/embeddings", json=body)
        assert 400 <= reply.status_code < 500 and message in str(reply.json()["detail"]), (message, reply.text)
    half = client.post("/v1/embeddings", content=b'{"input": "\\ud800"}', headers={"Content-Type": "application/json"})
    assert half.status_code == 422 and client.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_the_command_and_what_it_refuses(model, tokenizer, tmp_path, capsys, monkeypatch):
    for folder, part in (("encoder", model), ("labels", RoFormerLiteForSequenceClassification)):
        part = part if folder == "encoder" else build(part, stack_config(vocab_size=len(tokenizer)))
        part.save_pretrained(tmp_path / folder)
        tokenizer.save_pretrained(tmp_path / folder)
    for options, message in (
        (["encoder", "--continuous-batching"], "--continuous_batching is for causal models"),
        (["encoder", "--cb-num-blocks", "4"], "--cb_num_blocks 4 has no effect without --continuous_batching"),
        (["encoder", "--device", "cuda:77"], "--device cuda:77 can't be used here"),
        (["labels"], "RoFormerLiteForSequenceClassification has no server"),
    ):
        assert main(["serve", str(tmp_path / options[0]), *options[1:]]) == 2
        assert message in capsys.readouterr().err
    started: list[tuple] = []
    monkeypatch.setattr("uvicorn.run", lambda application, **options: started.append((application, options)))
    assert main(["serve", str(tmp_path / "encoder"), "--device", "cpu", "--dtype", "bfloat16", "--port", "8001"]) == 0
    ((application, options),) = started
    assert options == {"host": "localhost", "port": 8001, "log_level": "warning"}
    with TestClient(application) as client:
        answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": str(tmp_path / "encoder")}).json()
    assert [np.linalg.norm(item["embedding"]) for item in answer["data"]] == pytest.approx([1] * 3, abs=1e-3)
