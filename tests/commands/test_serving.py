"""Serving of causal models: transformers' handlers and its continuous batching answer as `generate` does."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import torch
from conftest import VOCAB, build, stack_config
from fastapi.testclient import TestClient
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig, RoFormerForCausalLM

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM, RoFormerLiteModel, RoFormerLiteTokenizer
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE
from roformer_lite.cli import main
from roformer_lite.commands.text_server import text_application

LINES = ["one two three four five six", "two four six eight ten", "three six nine twelve"] * 4
TEMPLATE = "{% for message in messages %}{{ message.role + ' ' + message.content + ' ' }}{% endfor %}"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["grouped-gated-rms", "sliding", "learned-typed", "partial-rotary-value"])
def test_continuous_batching(name, backend, generator):
    model = build(RoFormerLiteForCausalLM, stack_config(name, backend, tie_word_embeddings=False))
    prompts = [torch.randint(5, VOCAB, (length,), generator=generator).tolist() for length in (3, 9, 1, 6)]
    greedy = GenerationConfig(max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0)
    one_by_one = [model.generate(torch.tensor([ids]), greedy)[0, len(ids) :].tolist() for ids in prompts]
    small = ContinuousBatchingConfig(
        page_size=32, num_blocks=16, max_batch_tokens=16
    )  # so that requests wait, or split
    together = model.generate_batch(prompts, greedy, continuous_batching_config=small, progress_bar=False)
    assert [answer.generated_tokens for answer in together.values()] == one_by_one
    assert len({tuple(tokens) for tokens in one_by_one}) > 1


def test_is_causal_says_what_the_stack_is():
    encoder, ids = build(RoFormerLiteModel, stack_config()), torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(encoder(ids, is_causal=False)[0], encoder(ids)[0])
    with pytest.raises(ValueError, match="is_causal=True.*is_decoder=False"):
        encoder(ids, is_causal=True)


@pytest.fixture(scope="module")
def tokenizer() -> RoFormerLiteTokenizer:
    tokenizer = RoFormerLiteTokenizer.train(LINES, vocab_size=300)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def model(tokenizer) -> RoFormerLiteForCausalLM:
    """A language model that can be expressed as RoFormer too."""
    fields = {**EXPRESSIBLE, "lm_head_transform": True, "lm_head_bias": True, "vocab_size": len(tokenizer)}
    return build(RoFormerLiteForCausalLM, RoFormerLiteConfig.from_preset("tiny", **fields))


@pytest.fixture(scope="module")
def saved(model, tokenizer, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("served") / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def continuation(model, tokenizer, prompt: str, count: int = 8) -> str:
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=not prompt.startswith("user"))
    tokens = model.generate(**inputs, max_new_tokens=count, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.fixture(scope="module")
def client(model, tokenizer):
    with TestClient(text_application(model, tokenizer, "story")) as client:
        yield client


def test_completions_and_chats(client, model, tokenizer):
    """Short, of the default length, and as a stream."""
    greedy = {"prompt": "one two", "temperature": 0}
    short = client.post("/v1/completions", json={**greedy, "model": "story", "max_tokens": 8}).json()
    text = short["choices"][0]["text"]
    assert text == continuation(model, tokenizer, "one two") != "" and short["usage"]["completion_tokens"] == 8
    whole = client.post("/v1/completions", json=greedy).json()
    assert whole["usage"]["completion_tokens"] <= 1024 and whole["choices"][0]["text"].startswith(text)
    stream = client.post("/v1/completions", json={**greedy, "max_tokens": 8, "stream": True}).text
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    for content in ("one two", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]):
        messages = [{"role": "user", "content": content}]
        chat = client.post("/v1/chat/completions", json={"messages": messages, "temperature": 0, "max_tokens": 8})
        expected = continuation(model, tokenizer, "user one two ")
        assert chat.json()["choices"][0]["message"]["content"] == expected, chat.json()
    assert client.get("/v1/models").json()["data"][0]["id"] == "story" and client.get("/health").status_code == 200


USER = {"role": "user", "content": "a"}
BAD_REQUESTS = {
    "no JSON": ("completions", b"{", "JSON"),
    "NaN": ("completions", b'{"prompt": "a", "temperature": NaN}', "finite"),
    "no prompt": ("completions", {}, "prompt"),
    "half a character": ("completions", b'{"prompt": "\\ud800"}', "prompt"),
    "endless": ("completions", {"prompt": "a", "max_tokens": 10**9}, "max_tokens 1,000,000,000 is too large"),
    "long": ("completions", {"prompt": "one two " * 20_000}, "and the model reads 2,048 with its answer"),
    "huge": ("completions", {"prompt": "a" * 2_000_000}, "at most 1,048,576 bytes"),
    "temperature": ("completions", {"prompt": "a", "temperature": -1}, "temperature"),
    "penalty": ("completions", {"prompt": "a", "frequency_penalty": -2}, "frequency_penalty"),
    "seed": ("completions", {"prompt": "a", "seed": 2**80}, "seed"),
    "config": ("completions", {"prompt": "a", "generation_config": '{"num_beams": 500}'}, "generation_config"),
    "another model": ("completions", {"prompt": "a", "model": "other"}, "pinned"),
    "unknown": ("completions", {"prompt": "a", "strange": 1}, "strange"),
    "no messages": ("chat/completions", {"messages": []}, "messages"),
    "picture": ("chat/completions", {"messages": [{**USER, "content": [{"type": "image_url"}]}]}, "content"),
    "long chat": ("chat/completions", {"messages": [{**USER, "content": "one two " * 20_000}]}, "with its answer"),
    "tools": ("chat/completions", {"messages": [{**USER, "tool_calls": [1]}]}, "template"),
}


def test_bad_requests(client):
    """Each is answered with what is wrong with it, and the server goes on."""
    for case, (path, body, message) in BAD_REQUESTS.items():
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply = client.post(f"/v1/{path}", content=content, headers={"Content-Type": "application/json"})
        assert 400 <= reply.status_code < 500 and message in str(reply.json()["detail"]), (case, reply.text)
    assert client.post("/v1/completions", content=iter([b"{}"])).status_code == 413  # of unknown length
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200


def test_learned_positions_and_no_template(tokenizer):
    """Prompt and answer share them, also where a request does not say how long the answer shall be."""
    model = build(RoFormerLiteForCausalLM, stack_config("learned-typed", is_decoder=True, vocab_size=len(tokenizer)))
    model.generation_config.eos_token_id = -1
    plain = RoFormerLiteTokenizer.train(LINES, vocab_size=300)
    with TestClient(text_application(model, plain, "small")) as client:
        reply = client.post("/v1/completions", json={"prompt": "one two"}).json()
        assert reply["usage"]["total_tokens"] == 64
        reply = client.post("/v1/chat/completions", json={"messages": [USER]})
        assert reply.status_code == 400 and "chat template" in reply.json()["detail"]


@pytest.mark.slow
def test_the_command(saved, model, tokenizer):
    """In a process of its own, with continuous batching."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "roformer_lite.cli", "serve", saved, "--device", "cpu", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--continuous-batching", "--cb-num-blocks", "16"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    body = json.dumps({"model": saved, "prompt": "one two", "max_tokens": 8, "temperature": 0}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, headers)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(request, timeout=120) as reply:
                    answer = json.load(reply)["choices"][0]["text"]
                break
            except urllib.error.HTTPError as error:
                raise AssertionError(error.read().decode()) from error
            except urllib.error.URLError:
                assert server.poll() is None, server.stderr.read()
                time.sleep(0.2)
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert answer == continuation(model, tokenizer, "one two") != ""


def test_a_class_of_transformers_is_served_too(saved, model, tokenizer, tmp_path):
    """A model that RoFormer can express, for other servers, and for ours."""
    assert main(["convert", saved, str(tmp_path / "stock"), "--to", "roformer"]) == 0
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "stock")
    assert type(stock) is RoFormerForCausalLM
    inputs = tokenizer("one two", return_tensors="pt")
    torch.testing.assert_close(stock(**inputs).logits, model(**inputs).logits, rtol=0, atol=1e-4)
    with TestClient(text_application(stock, tokenizer, "stock")) as client:
        reply = client.post("/v1/completions", json={"prompt": "one two", "temperature": 0, "max_tokens": 8}).json()
    assert reply["choices"][0]["text"] == continuation(stock, tokenizer, "one two")
