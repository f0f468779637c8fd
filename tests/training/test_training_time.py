"""The learning rate that follows the clock, and the average of the weights."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState, get_scheduler
from transformers.trainer_utils import SchedulerType

from hf_roformer_lite.errors import InputError
from hf_roformer_lite.training import clock as schedule
from hf_roformer_lite.training.clock import TrainingClock, follow_the_clock
from hf_roformer_lite.training.weight_average import AVERAGED_WEIGHTS, WeightAveraging


class FakeTime:
    def __init__(self):
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def fake_time(monkeypatch):
    fake = FakeTime()
    monkeypatch.setattr(schedule, "time", fake)
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
    with pytest.raises(InputError, match="--time_limit_minutes cannot be used with --lr_scheduler_type reduce_lr"):
        rates(TrainingClock(limit=1.0), fake_time, 1, 1.0, 0, kind="reduce_lr_on_plateau")


def test_average_follows_the_formula_and_changes_places_exactly(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    model.tied = model.weight
    averaging = WeightAveraging(0.9)
    args = SimpleNamespace(output_dir=tmp_path, should_save=True, load_best_model_at_end=False)
    state, control = TrainerState(), TrainerControl()
    averaging.on_train_begin(args, state, control, model=model)
    expected, history = None, []
    for step in range(200):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        averaging.on_step_end(args, state, control, model=model)
        current = model.weight.detach().clone()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = current if expected is None else decay * expected + (1 - decay) * current
        history.append(current)
    own = model.weight.detach().clone()
    with averaging.in_place_of(model):
        torch.testing.assert_close(model.weight, expected)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(model.weight.detach(), own)
    assert torch.equal(model.weight, own)

    state.global_step = 200
    folder = tmp_path / "checkpoint-200"
    folder.mkdir()
    state.save_to_json(str(folder / "trainer_state.json"))
    averaging.on_save(args, state, control)
    assert [path.name for path in folder.glob("averaged*")] == [AVERAGED_WEIGHTS]
    resumed = WeightAveraging(0.9, resume_from=str(folder))
    resumed.on_train_begin(args, state, control, model=model)
    for one in (averaging, resumed):
        one.on_step_end(args, state, control, model=model)
    assert torch.equal(resumed.average.module.weight, averaging.average.module.weight)
    averaging.on_train_end(args, state, control, model=model)
    torch.testing.assert_close(model.weight, resumed.average.module.weight)

    (folder / AVERAGED_WEIGHTS).unlink()
    with pytest.raises(InputError, match="was not written with --ema_decay"):
        WeightAveraging(0.9, resume_from=str(folder)).on_train_begin(args, state, control, model=model)
