"""The program adds batches by tokens, a clock, and Muon to the Trainer."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from program import TINY, run, write_rows
from toy_training import arguments, make_batch, make_model
from transformers import Trainer, TrainerControl, TrainerState, get_scheduler

from hf_roformer_lite.batches import TokenBudgetBatchSampler
from roformer_lite.training import callbacks as clock_module
from roformer_lite.training.callbacks import TrainingClock, seconds_of
from roformer_lite.training.muon import MuonWithAdamW, with_muon

LENGTHS = np.minimum(
    np.random.default_rng(0).lognormal(3.2, 0.6, 3_000).astype(int) + 2, 128
).tolist()


def batches_of(
    budget: int,
    rank: int = 0,
    world_size: int = 1,
    lengths: list[int] = LENGTHS,
    seed: int = 1,
    epoch: int = 0,
) -> list:
    """Return the batches of an epoch, for one process or for all."""
    sampler = TokenBudgetBatchSampler(lengths, budget, seed, rank, world_size)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches


def tokens_of(batch: list[int], lengths: list[int] = LENGTHS) -> int:
    """Return the number of tokens of the examples of a batch."""
    return sum(lengths[index] for index in batch)


@pytest.mark.parametrize("budget", [130, 4_096, 10**6])
def test_every_example_once_and_never_over_the_budget(budget):
    for epoch in range(3):
        batches = batches_of(budget, epoch=epoch)
        assert sorted(index for batch in batches for index in batch) == list(range(len(LENGTHS)))
        totals = [tokens_of(batch) for batch in batches]
        # The batches of a middle budget are well filled, too.
        assert max(totals) <= budget and (budget != 4_096 or np.mean(totals) > 0.9 * budget)


@pytest.mark.parametrize(("world_size", "budget"), [(2, 4_096), (24, 4_096), (32, 8_192)])
def test_processes_share_the_batches_evenly(world_size, budget):
    """The batches of a step have nearly equal numbers of tokens.

    Together they are the batches of a single process.
    """
    lengths = LENGTHS * 10
    shares = [
        batches_of(budget, rank, world_size, lengths=lengths, seed=3) for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    interleaved = [batch for step in zip(*shares, strict=True) for batch in step]
    count = TokenBudgetBatchSampler(lengths, budget, seed=0, rank=0, world_size=1).num_batches
    assert interleaved[count:] == interleaved[: len(interleaved) - count]
    assert interleaved[:count] == batches_of(budget, lengths=lengths, seed=3)
    tokens = np.array([[tokens_of(batch, lengths) for batch in share] for share in shares])
    spread = (tokens.max(0) - tokens.min(0)) / tokens.max(0)
    assert tokens.shape[1] > 3 and spread.max() < 0.03


def test_the_order_is_random():
    """Examples and batches are shuffled by the seed and the epoch."""
    lengths = LENGTHS * 10
    batches = batches_of(512, lengths=lengths)
    for other in ({"seed": 2}, {"epoch": 1}):
        assert batches != batches_of(512, lengths=lengths, **other)


def test_time_spent_survives_a_checkpoint(monkeypatch):
    fake_time = SimpleNamespace(now=100.0, monotonic=lambda: fake_time.now)
    monkeypatch.setattr(clock_module, "time", fake_time)
    clock = TrainingClock()
    fake_time.now += 7
    clock.on_train_begin(SimpleNamespace(), TrainerState(), TrainerControl())
    fake_time.now += 30
    state = TrainerState(stateful_callbacks={"TrainingClock": clock.state()})
    # The machine is off for a while.
    fake_time.now += 10_000
    resumed = TrainingClock(**state.stateful_callbacks["TrainingClock"]["args"])
    resumed.on_train_begin(SimpleNamespace(), state, TrainerControl())
    fake_time.now += 5
    state.stateful_callbacks["TrainingClock"] = resumed.state()
    assert seconds_of(state) == pytest.approx(35.0)


def optimizer_for(model: torch.nn.Module, folder: Path) -> MuonWithAdamW:
    args = arguments(folder, learning_rate=1e-3, weight_decay=0.1, adam_beta2=0.95)
    return with_muon(Trainer(model, args).create_optimizer(), model)


def one_step(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model.train()(**make_batch("mlm")).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def separate_optimizers(
    named: dict[str, torch.nn.Parameter],
) -> tuple[torch.optim.Muon, torch.optim.AdamW]:
    """Return torch's Muon for the matrices of the layers, and its AdamW for all other weights."""
    matrices = []
    rest = {True: [], False: []}
    for name, weight in named.items():
        # Biases and the weights of norms are vectors, which do not decay.
        decays = weight.ndim == 2
        if decays and ".layers." in name:
            matrices.append(weight)
        else:
            rest[decays].append(weight)
    assert len(matrices) > 10 and all(rest.values())
    muon = torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    groups = [
        {"params": rest[True], "weight_decay": 0.1},
        {"params": rest[False], "weight_decay": 0.0},
    ]
    return muon, torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)


def test_equals_the_two_optimizers_side_by_side(tmp_path):
    """They stay equal after saving and loading, and while a schedule changes the rates."""
    ours = make_model("mlm")
    theirs = make_model("mlm")
    optimizer = optimizer_for(ours, tmp_path)
    named = dict(theirs.named_parameters())
    muon, adamw = separate_optimizers(named)
    every = [optimizer, muon, adamw]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(part, 0.8) for part in every]
    for step in range(6):
        one_step(ours, optimizer)
        one_step(theirs, muon, adamw)
        for schedule in schedules:
            schedule.step()
        if step == 2:
            state = optimizer.state_dict()
            optimizer = optimizer_for(ours, tmp_path)
            optimizer.load_state_dict(state)
            schedules[0].optimizer = optimizer
    start = make_model("mlm").state_dict()
    for name, weight in ours.named_parameters():
        assert torch.equal(weight, named[name]) and not torch.equal(weight, start[name]), name


@pytest.mark.parametrize("name", "linear cosine polynomial inverse_sqrt".split())
def test_the_rates_of_both_optimizers_decay_together(name, tmp_path):
    """The schedule with polynomial decay reads the first rate from the defaults."""
    optimizer = optimizer_for(make_model("mlm"), tmp_path)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=20)
    rates = []
    for _ in range(12):
        optimizer.step()
        schedule.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    adamw_rates, *_, muon_rates = zip(*rates, strict=True)
    assert muon_rates == pytest.approx(adamw_rates)
    assert max(adamw_rates) == adamw_rates[1] == 1e-3
    assert adamw_rates[-1] < 0.75e-3


def test_frozen_weights_are_left_alone(tmp_path):
    model = make_model("seq2seq")
    model.get_input_embeddings().requires_grad_(False)
    stacks = [module for name, module in model.named_modules() if name.endswith(".layers")]
    stacks[0].requires_grad_(False)
    names = {weight: name for name, weight in model.named_parameters() if weight.requires_grad}
    groups = [
        [names[weight] for weight in group["params"]]
        for group in optimizer_for(model, tmp_path).param_groups
    ]
    assert sorted(sum(groups, [])) == sorted(names.values())
    assert all(".layers." in name for name in groups[-1]) and len(groups[-1]) > 5


@pytest.mark.slow
def test_long_texts_with_labels_are_seen_fewer_times_in_smaller_batches(tmp_path, monkeypatch):
    """The 250 texts of 2,048 tokens make 8 million tokens in 15.6 epochs.

    Four of them make a batch of 8,192 tokens.
    """
    rows = [{"text": "red blue " * 1200, "label": label} for label in "01" * 125]
    data = write_rows(tmp_path / "a.jsonl", rows)
    command = (
        f"train classify {TINY} --join_baseline false --baselines false --validation_fraction 0"
    )
    seen = []

    def interrupt(clock, args, state, control, **kwargs) -> None:
        seen.append((args.num_train_epochs, args.per_device_train_batch_size))
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainingClock, "on_step_begin", interrupt)
    for options in ("", "--max_length 64"):
        run(f"{command} {options}", train_file=data, output_dir=tmp_path / "m", status=130)
    assert seen == [(15, 4), (20, 32)]
