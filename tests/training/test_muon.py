"""`--optim muon`: Muon for the matrices of the layers, AdamW for the rest."""

import json
from pathlib import Path

import pytest
import torch
from conftest import build, seq2seq_config, stack_config
from safetensors.torch import load_file
from toy_training import make_model, make_rows
from transformers import Trainer, TrainingArguments

import hf_roformer_lite as rl
from roformer_lite.cli import main
from roformer_lite.errors import InputError
from roformer_lite.train.callbacks import TrainingClock
from roformer_lite.train.muon import MuonWithAdamW, make_muon, muon_arguments

ARGUMENTS = {"learning_rate": 1e-3, "weight_decay": 0.1, "adam_beta2": 0.95, "optim_args": "lr=2e-3,momentum=0.9"}


def optimizer_for(model: torch.nn.Module, folder: Path) -> MuonWithAdamW:
    args = TrainingArguments(folder, use_cpu=True, **ARGUMENTS)
    return make_muon(model, args, Trainer(model, args).get_decay_parameter_names(model))


def one_step(model: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> None:
    batch = {name: torch.stack([row[name] for row in make_rows("mlm")]) for name in make_rows("mlm")[0]}
    model.train()(**batch).loss.backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def test_equals_the_two_optimizers_side_by_side(tmp_path):
    """Also after it was saved and loaded, and while a schedule changes the rates."""
    ours, theirs = make_model("mlm"), make_model("mlm")
    optimizer = optimizer_for(ours, tmp_path)
    named = dict(theirs.named_parameters())
    matrices = {name for name, weight in named.items() if ".layers." in name and weight.ndim == 2}
    decayed = {name for name, weight in named.items() if weight.ndim == 2}  # neither biases nor norms
    muon = torch.optim.Muon(
        [named[name] for name in named if name in matrices],
        lr=2e-3,
        momentum=0.9,
        weight_decay=0.1,
        adjust_lr_fn="match_rms_adamw",
    )
    rest = {decays: [n for n in named if n not in matrices and (n in decayed) == decays] for decays in (True, False)}
    assert len(matrices) > 10 and all(rest.values())
    groups = [{"params": [named[n] for n in rest[d]], "weight_decay": 0.1 * d} for d in (True, False)]
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


@pytest.mark.parametrize("kind", ["mlm", "causal", "single", "token", "seq2seq", "frozen"])
def test_muon_has_the_matrices_of_the_layers_alone(kind, tmp_path):
    model = make_model("mlm" if kind == "frozen" else kind)
    if kind == "frozen":
        model.get_input_embeddings().weight.requires_grad_(False)
    optimizer = optimizer_for(model, tmp_path)
    names = {id(weight): name for name, weight in model.named_parameters()}
    *others, matrices = optimizer.param_groups
    assert [names[id(weight)] for weight in matrices["params"]] == [
        name for name, weight in model.named_parameters() if ".layers." in name and weight.ndim == 2
    ]
    given = [weight for group in optimizer.param_groups for weight in group["params"]]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert len(given) == len(trained) and {*map(id, given)} == {*map(id, trained)}
    assert {group["weight_decay"] for group in others} == {0.1, 0.0}


def test_layers_that_are_frozen(tmp_path):
    model = build(rl.RoFormerLiteForMaskedLM, stack_config())
    model.model.layers.requires_grad_(False)
    with pytest.raises(InputError, match="no matrices to train"):
        optimizer_for(model, tmp_path)


def test_arguments():
    assert muon_arguments("lr=2e-2, ns_steps=6,momentum=0.9") == {"lr": 0.02, "ns_steps": 6, "momentum": 0.9}
    assert muon_arguments(None) == {}
    for wrong, told in {
        "beta=1": "optim_args=beta=1: with --optim muon the names are lr, momentum, weight_decay, ns_steps",
        "lr=much": "--training_arguments optim_args=lr=much: 'much' is no number",
        "ns_steps=2.5": "--training_arguments optim_args=ns_steps=2.5: '2.5' is no number",
        "momentum=1": "momentum=1.0 must be at least 0 and below 1",
        "lr=nan": "optim_args lr=nan must be finite",
    }.items():
        with pytest.raises(InputError, match=told):
            muon_arguments(wrong)


def interrupt(clock, args, state, control, **kwargs) -> None:
    """`on_step_begin` of the clock: as if the user had pressed Ctrl+C."""
    if state.global_step == 4:
        raise KeyboardInterrupt


def test_the_command_continues_bit_for_bit(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("".join(f"line {n} says that {n} is a number\n" for n in range(40)), "utf-8")
    options = (
        f"train mlm --train_file {tmp_path / 'text.txt'} --size tiny --config num_hidden_layers=1 --vocab_size 300 "
        "--use_cpu true --disable_tqdm true --max_steps 6 --per_device_train_batch_size 8 "
        "--baselines false --optim muon --ema_decay 0.9 "
        "--training_arguments save_strategy=steps save_steps=2 eval_strategy=no optim_args=momentum=0.9"
    ).split()
    assert main([*options, "--output_dir", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(TrainingClock, "on_step_begin", interrupt)
        assert main([*options, "--output_dir", str(tmp_path / "model")]) == 130
    assert main([*options, "--output_dir", str(tmp_path / "model"), "--optim", "adamw_torch"]) == 2
    assert "optim" in capsys.readouterr().err
    assert main([*options, "--output_dir", str(tmp_path / "model")]) == 0
    assert "Resuming from step 4" in capsys.readouterr().err
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "model")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert json.loads((tmp_path / "model" / "results.json").read_text())["training"]["arguments"]["optim"] == "muon"


def test_a_name_that_torch_does_not_know(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a line\n" * 40, "utf-8")
    options = f"train mlm --train_file {tmp_path / 'text.txt'} --output_dir {tmp_path / 'm'} --optim muon".split()
    assert main([*options, "--training_arguments", "optim_args=rank=3"]) == 2
    assert "--training_arguments optim_args=rank=3: with --optim muon the names are" in capsys.readouterr().err
    assert not (tmp_path / "m.training").exists()


def test_a_pair_learns_by_it(tmp_path):
    model = build(rl.RoFormerLiteForConditionalGeneration, seq2seq_config())
    optimizer = optimizer_for(model, tmp_path)
    batch = {name: torch.stack([row[name] for row in make_rows("seq2seq")]) for name in make_rows("seq2seq")[0]}
    losses = []
    for _ in range(30):
        loss = model.train()(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
