"""Serving: transformers' server and its continuous batching answer as `generate` does."""

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
from transformers import AutoTokenizer, ContinuousBatchingConfig, GenerationConfig, RoFormerForCausalLM

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM, RoFormerLiteModel, RoFormerLiteTokenizer
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE
from roformer_lite.cli import main

LINES = ["one two three four five six", "two four six eight ten", "three six nine twelve"] * 4


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
def saved(tmp_path_factory):
    """A language model that can be said in RoFormer's terms as well, its tokenizer, and its copy for stock classes."""
    folder = tmp_path_factory.mktemp("served")
    tokenizer = RoFormerLiteTokenizer.train(LINES, vocab_size=300)
    fields = {**EXPRESSIBLE, "lm_head_transform": True, "lm_head_bias": True, "vocab_size": len(tokenizer)}
    model = build(RoFormerLiteForCausalLM, RoFormerLiteConfig.from_preset("tiny", **fields))
    for kind in ("model", "stock"):
        if kind == "model":
            model.save_pretrained(folder / kind)
            tokenizer.save_pretrained(folder / kind)
        else:
            assert main(["convert", str(folder / "model"), str(folder / kind), "--to", "roformer"]) == 0
    return folder


def answer_of(process: subprocess.Popen, port: int, model: str) -> str:
    """The server's continuation of a prompt, once it listens."""
    request = {"model": model, "prompt": "one two", "max_tokens": 8, "temperature": 0}
    for _ in range(600):
        try:
            post = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(request).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(post, timeout=120) as reply:
                return json.load(reply)["choices"][0]["text"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except urllib.error.URLError:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.2)
    raise AssertionError("the server never listened")


@pytest.mark.parametrize(
    "options", [[], ["--continuous-batching", "--cb-num-blocks", "16"]], ids=["plain", "batching"]
)
def test_server(saved, options, tmp_path):
    model, tokenizer = (
        RoFormerLiteForCausalLM.from_pretrained(saved / "model"),
        AutoTokenizer.from_pretrained(saved / "model"),
    )
    prompt = tokenizer("one two", return_tensors="pt")
    tokens = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "roformer_lite.cli", "serve", str(saved / "model"), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port), *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        answer = answer_of(server, port, str(saved / "model"))
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert answer == tokenizer.decode(tokens, skip_special_tokens=True) != ""


def test_servers_that_know_no_plugin(saved):
    """A model that RoFormer can express, for whatever loads stock classes alone."""
    code = (
        "import sys, torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model, tokenizer = (c.from_pretrained(sys.argv[1]) for c in (AutoModelForCausalLM, AutoTokenizer))\n"
        "assert not any(name.startswith('hf_roformer_lite') for name in sys.modules)\n"
        "print(type(model).__name__, model(**tokenizer('one two', return_tensors='pt')).logits.flatten().tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(saved / "stock")], capture_output=True, text=True, cwd=saved
    )
    assert done.returncode == 0, done.stderr
    name, logits = done.stdout.split(maxsplit=1)
    prompt = AutoTokenizer.from_pretrained(saved / "model")("one two", return_tensors="pt")
    expected = RoFormerLiteForCausalLM.from_pretrained(saved / "model")(**prompt).logits
    assert name == RoFormerForCausalLM.__name__
    torch.testing.assert_close(torch.tensor(json.loads(logits)), expected.flatten(), rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def server(saved):
    """Address and model of a server that answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "roformer_lite.cli", "serve", str(saved / "model"), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with open(saved / "server.log", "w") as log:
        process = subprocess.Popen(command, env=environment, stderr=log, stdout=log)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).close()
            break
        except urllib.error.URLError:
            assert process.poll() is None, (saved / "server.log").read_text()
            time.sleep(0.2)
    yield f"http://127.0.0.1:{port}", str(saved / "model")
    process.terminate()
    process.wait(timeout=60)


def post(server: tuple[str, str], path: str, body: bytes | dict) -> tuple[int, dict]:
    """Status and content of the answer, which must come soon."""
    url, model = server
    if isinstance(body, dict):
        body = json.dumps({"model": model, **body}).encode()
    request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


BAD_REQUESTS = {
    "no JSON": ("/v1/completions", b"{", "not JSON"),
    "no object": ("/v1/completions", b"[1]", "JSON object"),
    "deep": ("/v1/completions", b"[" * 100_000, "not JSON"),
    "NaN": ("/v1/completions", b'{"prompt": "a", "temperature": NaN}', "NaN"),
    "no prompt": ("/v1/completions", {}, "prompt is missing"),
    "a list": ("/v1/completions", {"prompt": ["a"]}, "prompt must be a text"),
    "half a character": ("/v1/completions", b'{"prompt": "\\ud800"}', "no text"),
    "endless": ("/v1/completions", {"prompt": "a", "max_tokens": 1_000_000_000}, "max_tokens 1,000,000,000"),
    "negative": ("/v1/completions", {"prompt": "a", "max_tokens": -1}, "max_tokens must be"),
    "words": ("/v1/completions", {"prompt": "a", "max_tokens": "many"}, "max_tokens must be"),
    "long": ("/v1/completions", {"prompt": "one two " * 20_000}, "more tokens than the model reads"),
    "huge": ("/v1/completions", {"prompt": "a" * 2_000_000}, "larger than"),
    "temperature": ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
    "top_p": ("/v1/completions", {"prompt": "a", "top_p": "x"}, "top_p"),
    "penalty": ("/v1/completions", {"prompt": "a", "frequency_penalty": -2}, "frequency_penalty"),
    "seed": ("/v1/completions", {"prompt": "a", "seed": "x"}, "seed"),
    "large seed": ("/v1/completions", {"prompt": "a", "seed": 2**80}, "seed"),
    "stop": ("/v1/completions", {"prompt": "a", "stop": [1]}, "stop"),
    "config": ("/v1/completions", {"prompt": "a", "generation_config": "{"}, "generation_config"),
    "config that never ends": (
        "/v1/completions",
        {"prompt": "a", "generation_config": '{"max_length": 100000}'},
        "max_length",
    ),
    "beams": ("/v1/completions", {"prompt": "a", "generation_config": '{"num_beams": 500}'}, "num_beams"),
    "config of code": (
        "/v1/completions",
        {"prompt": "a", "generation_config": '{"compile_config": {}}'},
        "cannot be set",
    ),
    "another model": ("/v1/completions", {"prompt": "a", "model": "other"}, "pinned"),
    "model": ("/v1/completions", {"prompt": "a", "model": 5}, "model must be a text"),
    "no messages": ("/v1/chat/completions", {}, "messages is missing"),
    "empty": ("/v1/chat/completions", {"messages": []}, "messages must not be empty"),
    "message": ("/v1/chat/completions", {"messages": ["a"]}, "messages must be a list of objects"),
    "role": ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "role is missing"),
    "part": ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "part"),
    "no template": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "chat_template"),
    "bias": ("/v1/chat/completions", {"messages": [{"role": "user"}], "logit_bias": {"x": 1}}, "logit_bias"),
    "input": ("/v1/responses", {"input": 5}, "input must be a text"),
    "output": ("/v1/responses", {"input": "a", "max_output_tokens": 10**9}, "max_output_tokens"),
    "load": ("/load_model", {"model": 5}, "model must be a text"),
    "audio": ("/v1/audio/transcriptions", {}, "text alone"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_requests(case, server):
    """Each is told what is wrong with it."""
    path, body, message = BAD_REQUESTS[case]
    status, answer = post(server, path, body)
    assert 400 <= status < 500 and message in str(answer["detail"]), answer


def test_the_server_goes_on(server):
    """After all of these, right requests are answered: short, of the default length, and as a stream."""
    for path, body, _ in BAD_REQUESTS.values():
        post(server, path, body)
    greedy = {"prompt": "one two", "temperature": 0}
    status, short = post(server, "/v1/completions", {**greedy, "max_tokens": 8, "stop": None})
    assert status == 200 and short["usage"]["completion_tokens"] == 8
    status, configured = post(server, "/v1/completions", {**greedy, "generation_config": '{"max_new_tokens": 8}'})
    assert status == 200 and configured["choices"] == short["choices"]
    status, whole = post(server, "/v1/completions", greedy)
    assert status == 200 and whole["usage"]["completion_tokens"] <= 1024
    url, model = server
    request = json.dumps({"model": model, **greedy, "max_tokens": 8, "stream": True}).encode()
    post_stream = urllib.request.Request(f"{url}/v1/completions", request, {"Content-Type": "application/json"})
    with urllib.request.urlopen(post_stream, timeout=60) as reply:
        chunks = [json.loads(line[6:]) for line in reply.read().decode().splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == short["choices"][0]["text"]
