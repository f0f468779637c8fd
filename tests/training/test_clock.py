"""The learning rate that follows the time limit, and the time that a training has taken."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState, get_scheduler
from transformers.trainer_utils import SchedulerType

from roformer_lite.errors import InputError
from roformer_lite.train import callbacks as clock_module
from roformer_lite.train.callbacks import TrainingClock, follow_the_clock


class FakeTime:
    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def fake_time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(clock_module, "time", fake)
    return fake


def rates(clock, fake_time, steps, seconds_a_step, warmup_steps, kind="linear", total_steps=1_000):
    """The learning rates of a run that goes on until the clock or the steps end it."""
    args = SimpleNamespace(
        warmup_steps=warmup_steps, lr_scheduler_type=SchedulerType(kind), world_size=1, device=torch.device("cpu")
    )
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(2)], lr=1.0)
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
    scheduler = get_scheduler("linear", torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), 10, 100)
    plain = []
    for _ in range(100):
        plain.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step()
    assert timed == pytest.approx(plain)


def test_warm_up_as_a_share_is_a_share_of_the_time(fake_time):
    seen, _ = rates(TrainingClock(limit=50.0), fake_time, 1_000, 0.5, warmup_steps=0.1, kind="cosine")
    assert seen.index(max(seen)) in (10, 11, 12)  # of 100 steps
    assert seen[-1] < 0.01


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
    with pytest.raises(InputError, match="--time_limit_minutes can't be combined with lr_scheduler_type=reduce_lr"):
        rates(TrainingClock(limit=1.0), fake_time, 1, 1.0, 0, kind="reduce_lr_on_plateau")
