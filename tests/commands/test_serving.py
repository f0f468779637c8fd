"""Serving of causal models: transformers' server and its continuous batching answer as `generate`
does."""

import socket

import pytest
import torch
from conftest import VOCAB, build, stack_config
from saved_models import save_model
from transformers import ContinuousBatchingConfig, GenerationConfig

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteModel
from roformer_lite.cli import main


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
    small = ContinuousBatchingConfig(
        page_size=32, num_blocks=16, max_batch_tokens=16
    )  # so that requests wait, or split
    together = model.generate_batch(
        prompts, greedy, continuous_batching_config=small, progress_bar=False
    )
    assert [answer.generated_tokens for answer in together.values()] == one_by_one
    assert len({tuple(tokens) for tokens in one_by_one}) > 1


def test_is_causal_says_what_the_stack_is():
    encoder, ids = build(RoFormerLiteModel, stack_config()), torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(encoder(ids, is_causal=False)[0], encoder(ids)[0])
    with pytest.raises(ValueError, match="is_causal=True.*is_decoder=False"):
        encoder(ids, is_causal=True)


def test_what_the_command_refuses(tmp_path, capsys):
    """(The server answers in test_readme.py.)"""
    encoder, saved = (str(save_model(kind, tmp_path / kind)) for kind in ("mlm", "causal"))
    with socket.create_server(("localhost", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, message in (
            (
                [saved, "--cb-num-blocks", "4"],
                "--cb_num_blocks 4 has no effect without --continuous_batching",
            ),
            ([saved, "--port", port], f"--port {port} can't be used: Address already in use"),
            ([saved, "--port", "0"], "--port"),
            ([saved, "--device", "cuda:77"], "--device cuda:77 can't be used here"),
            ([encoder], "RoFormerLiteForMaskedLM is not a causal model"),
        ):
            assert main(["serve", *options]) == 2
            assert message in capsys.readouterr().err
