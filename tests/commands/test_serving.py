"""Serving of causal models: transformers' server and its continuous batching answer as `generate` does."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest
import torch
from conftest import VOCAB, build, stack_config
from saved_models import save_model
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteModel
from roformer_lite.cli import main

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
def saved(tmp_path_factory) -> Path:
    folder = save_model("causal", tmp_path_factory.mktemp("served") / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def continuation(saved: Path, prompt: str, count: int = 8) -> str:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=not prompt.startswith("user"))
    tokens = model.generate(**inputs, max_new_tokens=count, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.slow
def test_the_command(saved):
    """In a process of its own, with continuous batching, asked by OpenAI's client."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "roformer_lite.cli", "serve", str(saved), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--continuous-batching", "--cb-num-blocks", "16"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    greedy = {"model": str(saved), "max_tokens": 8, "temperature": 0}
    try:
        for _ in range(600):
            try:
                answer = client.completions.create(prompt="one two", **greedy)
                break
            except openai.APIConnectionError:
                assert server.poll() is None, server.stderr.read()
                time.sleep(0.2)
        messages = [{"role": "user", "content": "one two"}]
        chat = client.chat.completions.create(messages=messages, **greedy)
        stream = client.chat.completions.create(messages=messages, stream=True, **greedy)
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        with pytest.raises(openai.BadRequestError):
            client.completions.create(prompt="one two", **{**greedy, "model": "other"})
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert answer.choices[0].text == continuation(saved, "one two") != ""
    assert chat.choices[0].message.content == "".join(pieces) == continuation(saved, "user one two ")


def test_what_the_command_refuses(saved, tmp_path, capsys):
    encoder, saved = str(save_model("mlm", tmp_path / "encoder")), str(saved)
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, message in (
            ([saved, "--cb-num-blocks", "4"], "--cb_num_blocks 4 has no effect without --continuous_batching"),
            ([saved, "--port", port], f"--port {port} can't be used: Address already in use"),
            ([saved, "--port", "0"], "port"),
            ([saved, "--device", "cuda:77"], "--device cuda:77 can't be used here"),
            ([encoder], "RoFormerLiteForMaskedLM is not a causal model"),
        ):
            assert main(["serve", *options]) == 2
            assert message in capsys.readouterr().err
