"""Serving of causal models: transformers' continuous batching gives the tokens of `generate`. (The
server itself runs in test_pages.py.)"""

import pytest
import torch
from conftest import VOCAB, build, stack_config
from transformers import ContinuousBatchingConfig, GenerationConfig

from hf_roformer_lite import RoFormerLiteForCausalLM, RoFormerLiteModel


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
