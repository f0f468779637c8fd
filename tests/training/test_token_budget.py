"""Token-budget batches: the cap, the whole data, the same for everybody, and resuming."""

import numpy as np
import pytest
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader

from roformer_lite.train.token_budget import TokenBudgetBatchSampler

LENGTHS = np.minimum(np.random.default_rng(0).lognormal(3.2, 0.6, 3_000).astype(int) + 2, 128).tolist()


@pytest.mark.parametrize("budget", [130, 512, 4_096, 10**6])
def test_every_example_once_and_never_over_the_budget(budget):
    sampler = TokenBudgetBatchSampler(LENGTHS, budget, seed=1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        assert sorted(index for batch in batches for index in batch) == list(range(len(LENGTHS)))
        assert max(sum(LENGTHS[index] for index in batch) for batch in batches) <= budget


def test_batches_are_well_filled_and_mixed():
    sampler = TokenBudgetBatchSampler(LENGTHS, 4_096)
    totals = [sum(LENGTHS[i] for i in batch) for batch in sampler]
    assert np.mean(totals) > 0.9 * 4_096
    shortest = [min(LENGTHS[i] for i in batch) for batch in sampler]
    longest = [max(LENGTHS[i] for i in batch) for batch in sampler]
    assert max(shortest) < np.quantile(LENGTHS, 0.2) and min(longest) > np.quantile(LENGTHS, 0.8)


def test_seed_and_epoch_decide():
    def drawn(seed, epoch):
        sampler = TokenBudgetBatchSampler(LENGTHS, 1_024, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert drawn(1, 2) == drawn(1, 2)
    assert drawn(1, 2) != drawn(1, 3)
    assert drawn(1, 2) != drawn(2, 2)


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_batches_evenly(world_size):
    whole = list(TokenBudgetBatchSampler(LENGTHS, 1_024, seed=1))
    shares = [list(TokenBudgetBatchSampler(LENGTHS, 1_024, 1, rank, world_size)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    interleaved = [batch for step in zip(*shares, strict=True) for batch in step]
    assert interleaved[: len(whole)] == whole
    assert interleaved[len(whole) :] == whole[: len(interleaved) - len(whole)]


@pytest.mark.parametrize("budget", [512, 1_024])
@pytest.mark.parametrize("world_size", [2, 4, 24, 32])
def test_the_batches_of_a_step_have_nearly_as_many_tokens(world_size, budget):
    """But for the last steps, whose batches do not fill a group."""
    lengths = LENGTHS * 10
    shares = [list(TokenBudgetBatchSampler(lengths, budget, 3, rank, world_size)) for rank in range(world_size)]
    tokens = np.array([[sum(lengths[index] for index in batch) for batch in share] for share in shares])
    group = 24 if 24 % world_size == 0 else world_size
    tokens = tokens[:, : TokenBudgetBatchSampler(lengths, budget).num_batches // group * group // world_size]
    spread = (tokens.max(0) - tokens.min(0)) / tokens.max(0)
    assert tokens.shape[1] > 20 and spread.max() < 0.03


def test_the_order_is_random():
    """Of the groups, and within them: neither an epoch nor its part goes from full batches to less full ones."""
    sampler, totals = TokenBudgetBatchSampler(LENGTHS * 10, 512, seed=3), []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        totals.append(np.array([sum(LENGTHS[index % len(LENGTHS)] for index in batch) for batch in sampler]))
    for tokens in totals:
        middle = tokens[: len(tokens) // 24 * 24].reshape(-1, 24)
        means = middle.mean(1)
        assert abs(np.corrcoef(np.arange(len(means)), means)[0, 1]) < 0.5
        rising, falling = ((sign * np.diff(middle, axis=1) > 0).sum() for sign in (1, -1))
        assert 0.8 < rising / falling < 1.25
    assert (totals[0] != totals[1]).any()


def test_resuming_skips_what_was_seen():
    """The way the Trainer does it: skip_first_batches, then set_epoch on the sampler inside."""
    sampler = TokenBudgetBatchSampler(LENGTHS, 1_024, seed=1)
    loader = prepare_data_loader(
        DataLoader(range(len(LENGTHS)), batch_sampler=sampler, collate_fn=list), num_processes=1, process_index=0
    )
    sampler.set_epoch(4)
    expected = list(sampler)[7:]
    sampler.set_epoch(0)
    skipping = skip_first_batches(loader, 7)
    skipping.batch_sampler.batch_sampler.set_epoch(4)
    assert list(skipping) == expected


def test_what_cannot_be_batched():
    with pytest.raises(ValueError, match="max_tokens=100 is below the longest example, which has 128 tokens"):
        TokenBudgetBatchSampler(LENGTHS, 100)
    with pytest.raises(ValueError, match="no examples"):
        TokenBudgetBatchSampler([], 100)
