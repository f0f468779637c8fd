"""Whether a training is faster in bfloat16 on this processor, found out by trying a few of its
batches.

Processors differ: some multiply bfloat16 at four times the rate of float32, others more slowly.
Weights, optimizer and loss stay in float32 either way; autocast multiplies matrices in the type
that is chosen.
"""

import math
import sys
import time
from itertools import islice
from typing import Any

import torch
from transformers import Trainer

MIN_GAIN = 1.1  # a smaller gain could be chance
MIN_STEPS = 200  # of a training that is worth a trial
_BATCHES, _ROUNDS = 3, 2  # each batch in both types; the first round compiles its shapes
# by which processors multiply bfloat16
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16")


def choose_bfloat16(trainer: Trainer) -> bool:
    """Train in bfloat16 if a trial, in all processes, shows that it is faster; a line says what
    came out.

    It is not tried, and float32 stays, on other devices than CPUs, on a processor without bfloat16,
    for models in shards, and for trainings shorter than 200 steps. A trial changes neither weights
    nor the state of random numbers.
    """
    args = trainer.args
    is_possible = args.device.type == "cpu" and multiplies_bfloat16() and not args.torch_compile
    is_possible = is_possible and not trainer.is_fsdp_enabled and steps_of(trainer) >= MIN_STEPS
    if _sum_of_processes(trainer, [not is_possible])[0]:
        return use_bfloat16(trainer, False)
    model, was_training = trainer.model, trainer.model.training
    best = {False: 0.0, True: 0.0}  # seconds of all batches, each in its fastest round
    with torch.random.fork_rng([]):
        model.train()
        for batch in islice(iter(trainer.get_train_dataloader()), _BATCHES):
            rounds = [
                {half: _seconds(trainer, batch, half) for half in best} for _ in range(_ROUNDS)
            ]
            for half in best:
                best[half] += min(seconds[half] for seconds in rounds)
        model.train(was_training)
    model.zero_grad()
    in_float32, in_bfloat16 = _sum_of_processes(trainer, [best[False], best[True]])
    gain = in_float32 / in_bfloat16
    is_faster = gain >= MIN_GAIN
    if args.should_save:
        names = ("bfloat16 (--bf16 false takes float32)", "float32 (--bf16 true takes bfloat16)")
        tried = f"Tried on {_BATCHES} batches, bfloat16 is {gain:.2f} times as fast as float32 on this processor"
        print(f"{tried}: training in {names[not is_faster]}", file=sys.stderr)
    return use_bfloat16(trainer, is_faster)


def use_bfloat16(trainer: Trainer, chosen: bool) -> bool:
    """Train in bfloat16 if that is `chosen`, which is returned."""
    trainer.args.bf16 = chosen
    if chosen:
        trainer.args.mixed_precision = "bf16"
        trainer.accelerator.native_amp = True  # autocast on a CPU is of bfloat16
    return chosen


def multiplies_bfloat16() -> bool:
    """Whether the processor has instructions for it."""
    has = getattr(torch.cpu, "get_capabilities", dict)()  # not in every version of torch
    return any(has.get(name, False) for name in _INSTRUCTIONS)


def steps_of(trainer: Trainer) -> float:
    """About how many steps the training takes."""
    args = trainer.args
    if args.max_steps > 0:
        return args.max_steps
    return math.ceil(
        len(trainer.get_train_dataloader())
        / args.gradient_accumulation_steps
        * args.num_train_epochs
    )


def _sum_of_processes(trainer: Trainer, numbers: list[float]) -> list[float]:
    """Sums over all processes, which come to the same decision by them."""
    if trainer.args.world_size == 1:
        return numbers
    return trainer.accelerator.reduce(
        torch.tensor(numbers, dtype=torch.float32, device=trainer.args.device)
    ).tolist()


def _seconds(trainer: Trainer, batch: dict[str, Any], half: bool) -> float:
    started = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    return time.perf_counter() - started
