"""`serve` of an encoder: the vectors of the model over HTTP, and requests that are refused with the reason."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import openai
import pytest
import torch
from conftest import build, stack_config

from hf_roformer_lite import RoFormerLiteForMaskedLM, RoFormerLiteForSequenceClassification, RoFormerLiteTokenizer
from roformer_lite.cli import main
from roformer_lite.sentence_encoder import SentenceEncoder

TEXTS = ["a fine film", "far too long for what it says", "fine"]


@pytest.fixture(scope="module")
def tokenizer() -> RoFormerLiteTokenizer:
    return RoFormerLiteTokenizer.train(TEXTS * 4, vocab_size=300, model_max_length=64)


@pytest.fixture(scope="module")
def encoder(tokenizer, tmp_path_factory):
    """Where a masked language model is saved, and its vectors of `TEXTS`."""
    directory = tmp_path_factory.mktemp("encoder")
    model = build(RoFormerLiteForMaskedLM, stack_config(vocab_size=len(tokenizer), classifier_pooling="cls"))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    with torch.no_grad():
        vectors = [SentenceEncoder(model)(**tokenizer(text, return_tensors="pt"))[1][0] for text in TEXTS]
    return directory, torch.nn.functional.normalize(torch.stack(vectors)).numpy()


@pytest.fixture(scope="module")
def url(encoder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "roformer_lite.cli", "serve", str(encoder[0]), "--host", "127.0.0.1"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    server = subprocess.Popen([*command, "--port", str(port)], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=60)
                break
            except urllib.error.URLError:
                assert server.poll() is None, server.stderr.read()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=60)


def post(url: str, body: dict) -> tuple[int, dict]:
    request = urllib.request.Request(
        f"{url}/v1/embeddings", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_vectors(url, encoder, tokenizer):
    """As lists, as tokens, and by OpenAI's client, which asks for base64."""
    status, answer = post(url, {"input": TEXTS})
    assert status == 200 and [item["index"] for item in answer["data"]] == [0, 1, 2]
    np.testing.assert_allclose([item["embedding"] for item in answer["data"]], encoder[1], rtol=0, atol=1e-6)
    ids = tokenizer(TEXTS)["input_ids"]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))
    assert post(url, {"input": ids})[1] == answer
    assert post(url, {"input": TEXTS[1]})[1]["data"][0]["embedding"] == pytest.approx(encoder[1][1].tolist(), abs=1e-6)
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    (name,) = [model.id for model in client.models.list()]
    found = client.embeddings.create(model=name, input=TEXTS).data
    np.testing.assert_allclose([item.embedding for item in found], encoder[1], rtol=0, atol=1e-6)


def test_bad_requests(url):
    for body, message in (
        ({}, "input is missing"),
        ({"input": []}, "1 to 2,048 texts"),
        ({"input": ["a"] * 2049}, "1 to 2,048 texts"),
        ({"input": ["a", 5]}, "input must be texts"),
        ({"input": [[1, 10**6]]}, "input must be texts"),
        ({"input": "\ud800"}, "no text"),
        ({"input": "film " * 200}, "and the model reads 1 to 64"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "model": "other"}, "this server has"),
        ({"input": "a" * 2_000_000}, "larger than"),
    ):
        status, answer = post(url, body)
        assert 400 <= status < 500 and message in answer["detail"], (body, answer)
    assert post(url, {"input": "a"})[0] == 200


def test_other_models_and_options(encoder, tokenizer, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["serve", str(encoder[0]), "--continuous-batching"])
    assert "unrecognized arguments: --continuous-batching" in capsys.readouterr().err
    build(RoFormerLiteForSequenceClassification, stack_config(vocab_size=len(tokenizer))).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert main(["serve", str(tmp_path)]) == 2
    assert "RoFormerLiteForSequenceClassification has no server" in capsys.readouterr().err
