"""The exponential moving average of the weights."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState

from roformer_lite.errors import InputError
from roformer_lite.train.callbacks import AVERAGED_WEIGHTS, WeightAveraging


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
