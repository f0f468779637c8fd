"""Serving of causal models: transformers' continuous batching gives the tokens of `generate`, and
its server is given only what it can do."""

import os
import socket
import subprocess
import sys

import httpx
import pytest
import torch
from conftest import VOCAB, build, stack_config
from fastapi import FastAPI
from fastapi.testclient import TestClient
from saved_models import save_model
from transformers import ContinuousBatchingConfig, GenerationConfig

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteModel
from roformer_lite.cli import main
from roformer_lite.commands.serve import CHAT_ROUTES, refuse_chats


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "name", ["grouped-gated-rms", "sliding", "learned-typed", "partial-rotary-value"]
)
def test_continuous_batching(name, backend, generator):
    model = build(RoFormerLiteForCausalLM, stack_config(name, backend, tie_word_embeddings=False))
    prompts = [
        torch.randint(5, VOCAB, (length,), generator=generator).tolist() for length in (3, 9, 1, 6)
    ]
    greedy = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
    one_by_one = [
        model.generate(torch.tensor([ids]), greedy)[0, len(ids) :].tolist() for ids in prompts
    ]
    # The batches are so small that requests wait or are split.
    small = ContinuousBatchingConfig(page_size=32, num_blocks=16, max_batch_tokens=16)
    together = model.generate_batch(
        prompts, greedy, continuous_batching_config=small, progress_bar=False
    )
    assert [answer.generated_tokens for answer in together.values()] == one_by_one
    assert len({tuple(tokens) for tokens in one_by_one}) > 1


def test_is_causal_says_what_the_stack_is():
    encoder = build(RoFormerLiteModel, stack_config())
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(encoder(ids, is_causal=False)[0], encoder(ids)[0])
    with pytest.raises(ValueError, match="is_causal=True.*is_decoder=False"):
        encoder(ids, is_causal=True)


def test_what_the_command_refuses(tmp_path, capsys):
    """(The server itself runs in test_pages.py.)"""
    encoder = str(save_model("mlm", tmp_path / "mlm"))
    saved = str(save_model("causal", tmp_path / "causal"))
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, message in (
            (
                [saved, "--cb-num-blocks", "4"],
                "--cb_num_blocks 4 has no effect without --continuous_batching",
            ),
            ([saved, "--port", port], f"--port {port} can't be used: Address already in use"),
            ([saved, "--port", "0"], "--port"),
            ([saved, "--device", "cuda:77"], "--device cuda:77 cannot be used here"),
            ([encoder], "RoFormerLiteForMaskedLM is not a causal model"),
        ):
            assert main(["serve", *options]) == 2
            assert message in capsys.readouterr().err


def test_a_chat_without_a_template_is_refused_in_a_sentence():
    """The other routes of the server stay as they are."""
    server = FastAPI()
    server.middleware("http")(refuse_chats)
    server.get("/v1/models")(lambda: {"data": []})
    client = TestClient(server)
    for route in CHAT_ROUTES:
        answer = client.post(route, json={"messages": []})
        assert answer.status_code == 400
        assert "needs a chat template" in answer.json()["error"]["message"]
    assert client.get("/v1/models").json() == {"data": []}


@pytest.mark.slow
def test_the_server_of_a_model_without_a_chat_template(tmp_path):
    """It also starts where nothing was ever downloaded, so that no cache exists."""
    model = save_model("causal", tmp_path / "causal")
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "roformer_lite.cli", "serve", str(model), "--port", port]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "no" / "cache")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().rpartition(" ")[2].strip()
            client = httpx.Client(transport=httpx.HTTPTransport(retries=9), timeout=60)
            models = client.get(f"{address}/models")
            assert models.status_code == 200 and models.json()["data"]
            body = {"model": str(model), "messages": [{"role": "user", "content": "a"}]}
            chat = client.post(f"{address}/chat/completions", json=body)
            assert chat.status_code == 400 and "chat template" in chat.json()["error"]["message"]
            body = {"model": str(model), "prompt": "a fine", "max_tokens": 3}
            text = client.post(f"{address}/completions", json=body)
            assert text.status_code == 200 and text.json()["choices"]
        finally:
            process.terminate()
