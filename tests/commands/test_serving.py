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
from hf_roformer_lite.cli import main
from hf_roformer_lite.conversion.roformer import EXPRESSIBLE

LINES = ["one two three four five six", "two four six eight ten", "three six nine twelve"] * 4


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
    command = [sys.executable, "-m", "hf_roformer_lite.cli", "serve", str(saved / "model"), "--device", "cpu"]
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
