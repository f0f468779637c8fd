"""Whether a training is faster in bfloat16 on this processor, found out by trying a few of its batches.

Processors differ: some multiply bfloat16 at four times the rate of float32, others more slowly. Weights, optimizer and
loss stay in float32 either way; autocast multiplies matrices in the type that is chosen.
"""

import math
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer

from .resume import note, noted
from .trainer_arguments import RoFormerLiteTrainingArguments

MIN_GAIN = 1.1  # a smaller gain could be chance
MIN_STEPS = 200  # of a training that is worth a trial
_BATCHES, _ROUNDS = 3, 2  # each batch in both types; the first round compiles its shapes
_NOTE = "bf16"
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")  # by which processors multiply bfloat16


def make_trainer_of_faster_type(
    make: Callable[[], Trainer], args: RoFormerLiteTrainingArguments, state_dir: Path, resume_from: str | None
) -> Trainer:
    """The trainer that `make` makes of `args`, after `args.bf16` is decided where the user has left it open.

    A continued training keeps what it began with. The trial is left out, and float32 taken, on other devices than
    CPUs, on a processor without bfloat16, with `torch_compile`, for models in shards, and for trainings shorter than
    200 steps.
    """
    if not args.may_choose_type:
        return make()
    begun = noted(Path(resume_from).parent, _NOTE) if resume_from else None
    if begun is not None:
        _take(begun, args, state_dir)
        return make()
    trainer = make()
    gain = gain_of_bfloat16(trainer) if _is_possible(trainer) else None
    _take(gain is not None and gain >= MIN_GAIN, args, state_dir)
    if gain is not None and args.should_save:
        print(_sentence(gain), file=sys.stderr)
    if args.bf16:
        trainer.accelerator.native_amp = True  # autocast on a CPU is of bfloat16
    return trainer


def _take(bf16: bool, args: RoFormerLiteTrainingArguments, state_dir: Path) -> None:
    args.take_type(bf16)
    if args.should_save:
        note(state_dir, _NOTE, bf16)


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it."""
    has = getattr(torch.cpu, "get_capabilities", dict)()  # not in every version of torch
    return any(has.get(name, False) for name in _INSTRUCTIONS)


def _is_possible(trainer: Trainer) -> bool:
    """Whether a trial can help, in all processes."""
    args, in_parts = trainer.args, trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    is_possible = args.device.type == "cpu" and multiplies_bfloat16() and not in_parts and _steps(trainer) >= MIN_STEPS
    return bool(_sum_of_processes(trainer, [not is_possible])[0] == 0)


def _sum_of_processes(trainer: Trainer, numbers: list[float]) -> list[float]:
    """Sums over all processes, which come to the same decision by them."""
    if trainer.args.world_size == 1:
        return numbers
    device = trainer.args.device
    return trainer.accelerator.reduce(torch.tensor(numbers, dtype=torch.float32, device=device)).tolist()


def gain_of_bfloat16(trainer: Trainer) -> float:
    """How many times as fast as in float32 a few training batches are in bfloat16, forwards and backwards.

    Nothing is changed: neither weights nor the state of random numbers.
    """
    model, was_training = trainer.model, trainer.model.training
    best = {False: 0.0, True: 0.0}  # seconds of all batches, each in its fastest round
    with torch.random.fork_rng([]):
        model.train()
        for batch in islice(iter(trainer.get_train_dataloader()), _BATCHES):
            rounds = [{half: _seconds(trainer, batch, half) for half in best} for _ in range(_ROUNDS)]
            for half in best:
                best[half] += min(seconds[half] for seconds in rounds)
        model.train(was_training)
    trainer.model.zero_grad()
    in_float32, in_bfloat16 = _sum_of_processes(trainer, [best[False], best[True]])
    return in_float32 / in_bfloat16


def without_autocast(model: nn.Module) -> None:
    """Take away what accelerate has put before `forward`: what is measured at the end is the model as it is saved.

    `Accelerator.unwrap_model` goes through all decorators of a `forward`, also those that belong to it.
    """
    vars(model).pop("forward", None)


def _seconds(trainer: Trainer, batch: dict[str, Any], half: bool) -> float:
    started = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    return time.perf_counter() - started


def _steps(trainer: Trainer) -> float:
    """About how many steps the training takes."""
    args = trainer.args
    if args.max_steps > 0:
        return args.max_steps
    batches = len(trainer.get_train_dataloader())
    return math.ceil(batches / args.gradient_accumulation_steps * args.num_train_epochs)


def _sentence(gain: float) -> str:
    tried = f"Tried on {_BATCHES} batches, bfloat16 is {gain:.2f} times as fast as float32 on this processor"
    if gain < MIN_GAIN:
        return f"{tried}: training in float32 (--bf16 true takes bfloat16)"
    return f"{tried}: training in bfloat16 (--bf16 false takes float32)"
