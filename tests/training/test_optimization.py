"""What the program adds to the Trainer: batches by tokens, rates that follow the clock, and Muon."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_training import make_batch, make_model
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments, get_scheduler
from transformers.trainer_utils import SchedulerType

from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.train import callbacks as clock_module
from roformer_lite.train.callbacks import TrainingClock, follow_the_clock
from roformer_lite.train.muon import MuonWithAdamW, make_muon
from roformer_lite.train.token_budget import TokenBudgetBatchSampler

LENGTHS = np.minimum(
    np.random.default_rng(0).lognormal(3.2, 0.6, 3_000).astype(int) + 2, 128
).tolist()


def batches_of(
    budget: int, *places: int, lengths: list[int] = LENGTHS, seed: int = 1, epoch: int = 0
) -> list:
    """The batches of an epoch, those of one process or all."""
    sampler = TokenBudgetBatchSampler(lengths, budget, seed, *places)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    return batches


@pytest.mark.parametrize("budget", [130, 4_096, 10**6])
def test_every_example_once_and_never_over_the_budget(budget):
    for epoch in range(3):
        batches = batches_of(budget, epoch=epoch)
        assert sorted(index for batch in batches for index in batch) == list(range(len(LENGTHS)))
        totals = [sum(LENGTHS[index] for index in batch) for batch in batches]
        # well filled
        assert max(totals) <= budget and (budget != 4_096 or np.mean(totals) > 0.9 * budget)


@pytest.mark.parametrize(("world_size", "budget"), [(2, 512), (24, 512), (32, 1_024)])
def test_processes_share_the_batches_evenly(world_size, budget):
    """The batches of a step have nearly as many tokens, but for the last steps, which do not fill a
    group."""
    lengths = LENGTHS * 10
    shares = [
        batches_of(budget, rank, world_size, lengths=lengths, seed=3) for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    interleaved = [batch for step in zip(*shares, strict=True) for batch in step]
    count = TokenBudgetBatchSampler(lengths, budget).num_batches
    taken = sorted(index for batch in interleaved[:count] for index in batch)
    assert (
        taken == list(range(len(lengths)))
        and interleaved[count:] == interleaved[: len(interleaved) - count]
    )
    if 24 % world_size == 0:
        assert interleaved[:count] == batches_of(budget, lengths=lengths, seed=3)
    tokens = np.array(
        [[sum(lengths[index] for index in batch) for batch in share] for share in shares]
    )
    group = 24 if 24 % world_size == 0 else world_size
    tokens = tokens[:, : count // group * group // world_size]
    spread = (tokens.max(0) - tokens.min(0)) / tokens.max(0)
    assert tokens.shape[1] > 20 and spread.max() < 0.03


def test_the_order_is_random():
    """Of examples and of the groups, by the seed and the epoch: nothing goes from full batches to
    less full ones."""
    lengths = LENGTHS * 10
    batches = batches_of(512, lengths=lengths)
    assert batches != batches_of(512, lengths=lengths, seed=2) and batches != batches_of(
        512, lengths=lengths, epoch=1
    )
    shortest = [min(lengths[index] for index in batch) for batch in batches]
    longest = [max(lengths[index] for index in batch) for batch in batches]
    assert max(shortest) < np.quantile(LENGTHS, 0.5) < min(longest)
    tokens = np.array([sum(lengths[index] for index in batch) for batch in batches])
    middle = tokens[: len(tokens) // 24 * 24].reshape(-1, 24)
    assert abs(np.corrcoef(np.arange(len(middle)), middle.mean(1))[0, 1]) < 0.5


@pytest.fixture
def fake_time(monkeypatch):
    fake = SimpleNamespace(now=100.0)
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(monotonic=lambda: fake.now))
    return fake


def rates(clock, fake_time, steps, seconds_a_step, warmup_steps, kind="linear", total_steps=1_000):
    """The learning rates of a run that goes on until the clock or the steps end it."""
    args = SimpleNamespace(
        warmup_steps=warmup_steps,
        lr_scheduler_type=SchedulerType(kind),
        world_size=1,
        device=torch.device("cpu"),
        save_strategy="steps",
    )
    optimizer = torch.optim.SGD(
        [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)], lr=1.0
    )
    in_steps = warmup_steps if warmup_steps >= 1 else int(warmup_steps * total_steps)
    scheduler = get_scheduler(kind, optimizer, in_steps, total_steps)
    follow_the_clock(scheduler, clock, args, total_steps)
    control, state = TrainerControl(), TrainerState()
    clock.on_train_begin(args, state, control)
    seen = []
    for _ in range(steps):
        seen.append([group["lr"] for group in optimizer.param_groups])
        fake_time.now += seconds_a_step
        optimizer.step()
        scheduler.step()
        clock.on_step_end(args, state, control)
        if control.should_training_stop:
            break
    assert all(first == second for first, second in seen)
    return [first for first, _ in seen], control


def test_rate_ends_with_the_time(fake_time):
    clock = TrainingClock(limit=50.0)
    seen, control = rates(clock, fake_time, 1_000, seconds_a_step=0.5, warmup_steps=10)
    assert len(seen) == 100  # 50 seconds of the 500 that all steps would have taken
    assert control.should_save
    assert seen[:11] == pytest.approx([step / 10 for step in range(11)])
    assert seen[-1] < 0.03 and min(seen) >= 0
    falls = [before - after for before, after in zip(seen[11:], seen[12:], strict=False)]
    assert max(falls) == pytest.approx(min(falls), rel=1e-6)  # a straight line, as linear is


def test_rate_ends_with_the_steps_when_they_come_first(fake_time):
    timed, _ = rates(TrainingClock(limit=10_000.0), fake_time, 100, 0.5, 10, total_steps=100)
    falling = [(100 - step) / 90 for step in range(10, 100)]
    assert timed == pytest.approx([step / 10 for step in range(10)] + falling)


def test_warm_up_as_a_share_is_a_share_of_the_time(fake_time):
    seen, _ = rates(
        TrainingClock(limit=50.0), fake_time, 1_000, 0.5, warmup_steps=0.1, kind="cosine"
    )
    assert seen.index(max(seen)) in (10, 11, 12) and seen[-1] < 0.01  # of 100 steps


def test_time_spent_survives_a_checkpoint(fake_time):
    clock = TrainingClock(limit=50.0)
    rates(clock, fake_time, 60, 0.5, warmup_steps=10)
    state = TrainerState(stateful_callbacks={"TrainingClock": copy.deepcopy(clock.state())})
    fake_time.now += 10_000  # the machine was off
    resumed = TrainingClock(limit=50.0)
    resumed.on_train_begin(SimpleNamespace(), state, TrainerControl())
    assert resumed.elapsed == pytest.approx(30.0) and not resumed.is_over
    assert resumed.warmup_elapsed == clock.warmup_elapsed > 0


def test_schedules_without_a_curve_are_refused(fake_time):
    with pytest.raises(
        InputError, match="--time_limit_minutes can't be combined with lr_scheduler_type=reduce_lr"
    ):
        rates(TrainingClock(limit=1.0), fake_time, 1, 1.0, 0, kind="reduce_lr_on_plateau")


ARGUMENTS = {
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "optim_args": "lr=2e-3,momentum=0.9",
}


def optimizer_for(model: torch.nn.Module, folder: Path) -> MuonWithAdamW:
    args = TrainingArguments(folder, use_cpu=True, **ARGUMENTS)
    return make_muon(model, args, Trainer(model, args).get_decay_parameter_names(model))


def one_step(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    model.train()(**make_batch("mlm")).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def test_equals_the_two_optimizers_side_by_side(tmp_path):
    """Also after it was saved and loaded, and while a schedule changes the rates."""
    ours, theirs = make_model("mlm"), make_model("mlm")
    optimizer = optimizer_for(ours, tmp_path)
    named = dict(theirs.named_parameters())
    matrices = {name for name, weight in named.items() if ".layers." in name and weight.ndim == 2}
    # neither biases nor norms
    decayed = {name for name, weight in named.items() if weight.ndim == 2}
    muon = torch.optim.Muon(
        [named[name] for name in named if name in matrices],
        lr=2e-3,
        momentum=0.9,
        weight_decay=0.1,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = {
        decays: [n for n in named if n not in matrices and (n in decayed) == decays]
        for decays in (True, False)
    }
    assert len(matrices) > 10 and all(rest.values())
    groups = [
        {"params": [named[n] for n in rest[d]], "weight_decay": 0.1 * d} for d in (True, False)
    ]
    adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
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


def test_frozen_weights_are_left_alone(tmp_path):
    model = make_model("seq2seq")
    model.get_input_embeddings().requires_grad_(False)
    next(
        module for name, module in model.named_modules() if name.endswith(".layers")
    ).requires_grad_(False)
    names = {weight: name for name, weight in model.named_parameters() if weight.requires_grad}
    groups = [
        [names[weight] for weight in group["params"]]
        for group in optimizer_for(model, tmp_path).param_groups
    ]
    assert sorted(sum(groups, [])) == sorted(names.values())
    assert all(".layers." in name for name in groups[-1]) and len(groups[-1]) > 5


def test_long_texts_with_labels_are_seen_fewer_times_in_smaller_batches(tmp_path):
    """250 texts, truncated at 2,048 tokens, are 8 million tokens in 15.6 passes, and four of them
    have 8,192."""
    rows = [f"{'red blue ' * 1200},{number % 2}\n" for number in range(250)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(rows))
    common = "--size tiny --vocab_size 300 --max_steps 1 --text_scores false --baselines false --use_cpu "
    common += "--validation_fraction 0 --disable_tqdm"
    for options, epochs, batch in ((common, 15, 4), (f"{common} --max_length 64", 20, 32)):
        out = tmp_path / str(epochs)
        files = ["--train_file", str(tmp_path / "a.csv"), "--output_dir", str(out)]
        assert main(["train", "classify", *files, *options.split()]) == 0
        arguments = json.loads((out / "results.json").read_text())["training"]["arguments"]
        assert (arguments["num_train_epochs"], arguments["per_device_train_batch_size"]) == (
            epochs,
            batch,
        )
