"""Serving of causal models: transformers' continuous batching gives the tokens of `generate`, and
its server answers."""

import socket
import subprocess
import sys

import httpx
import pytest
import torch
from conftest import assert_close, build, random_ids, stack_config
from saved_models import save_model
from transformers import ContinuousBatchingConfig, GenerationConfig, pipeline

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteModel


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "name", "grouped-gated-rms sliding learned-typed partial-rotary-value".split()
)
def test_continuous_batching(name, backend):
    model = build(RoFormerLiteForCausalLM, stack_config(name, backend, tie_word_embeddings=False))
    prompts = [random_ids(length, seed=length).tolist() for length in (3, 9, 1, 6)]
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
    assert_close(encoder(ids, is_causal=False)[0], encoder(ids)[0])
    with pytest.raises(ValueError, match="is_causal=True.*is_decoder=False"):
        encoder(ids, is_causal=True)


SERVE = "import hf_roformer_lite; from transformers.cli.transformers import app; app()"


@pytest.mark.slow
def test_transformers_serve(tmp_path):
    """The server gives the text of `generate`."""
    model_directory = save_model("causal", tmp_path / "served")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", SERVE, "serve", "served", "--port", port]
    with subprocess.Popen(command, cwd=tmp_path) as server:
        # The waiting time doubles with each attempt to connect.
        with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as client:
            url = f"http://127.0.0.1:{port}/v1/completions"
            request = {"model": "served", "prompt": "a fine film", "max_tokens": 8}
            answer = client.post(url, json=request, timeout=120)
        server.terminate()
    asked = {"max_new_tokens": 8, "do_sample": False, "return_full_text": False}
    (expected,) = pipeline("text-generation", str(model_directory))("a fine film", **asked)
    assert answer.json()["choices"][0]["text"] == expected["generated_text"]
