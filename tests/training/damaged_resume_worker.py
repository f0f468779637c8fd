"""Two processes take up a training whose checkpoint is damaged, again and again; what they say goes into a file."""

import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as sharded
from transformers import TrainingArguments

from roformer_lite.cli import main as command_line
from roformer_lite.errors import InputError
from roformer_lite.training.resume import check_checkpoint

OPTIONS = (
    "train mlm --size tiny --config hidden_size=16 num_attention_heads=2 intermediate_size=16 num_hidden_layers=1 "
    "--vocab_size 300 --block_size 16 --line_by_line true --max_steps 2 --save_strategy steps --save_steps 1 "
    "--eval_strategy no --keep_checkpoints true --baselines false --use_cpu true --disable_tqdm true"
).split()
DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
}
OF_EVERY_PROCESS = ["rng_state_0.pth", "rng_state_1.pth"]
DDP_FILES = ["optimizer.pt", "scheduler.pt", *OF_EVERY_PROCESS, "model.safetensors"]
PARTS = ("pytorch_model_fsdp_0", "optimizer_0")
FSDP_FILES = ["scheduler.pt", *OF_EVERY_PROCESS]
FSDP_FILES += [f"{part}/{name}" for part in PARTS for name in (".metadata", "__0_0.distcp", "__1_0.distcp")]


@contextlib.contextmanager
def damaged(path: Path, damage: Callable[[Path], object]) -> Iterator[None]:
    """A file that both processes see damaged inside the `with`."""
    content = path.read_bytes()
    dist.barrier()
    if dist.get_rank() == 0:
        damage(path)
    dist.barrier()
    yield
    dist.barrier()
    if dist.get_rank() == 0:
        path.write_bytes(content)
    dist.barrier()


def from_all(value: str) -> list[str]:
    """What each process has to say."""
    values: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def told_by_command(command: list[str]) -> str:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        status = command_line(command)
    return f"{status} {errors.getvalue().splitlines()[-1]}"


def told_by_check(checkpoint: Path, args: TrainingArguments) -> str:
    try:
        check_checkpoint(checkpoint, args)
    except InputError as error:
        return str(error)
    return "right"


def save_in_shards(checkpoint: Path, of_ddp: Path) -> None:
    """A checkpoint as FSDP2 leaves it: every process writes its part of model and optimizer."""
    for part in PARTS:
        sharded.save({f"of process {dist.get_rank()}": torch.ones(50)}, checkpoint_id=checkpoint / part)
    if dist.get_rank() == 0:
        for name in ("scheduler.pt", *OF_EVERY_PROCESS, "trainer_state.json"):
            shutil.copy(of_ddp / name, checkpoint)
    dist.barrier()


def main(out: Path) -> None:
    command = [*OPTIONS, "--train_file", str(out / "text.txt"), "--output_dir", str(out / "model")]
    if not (out / "model.training").exists():
        sys.exit(command_line(command))
    args = TrainingArguments(str(out / "other"), use_cpu=True)
    assert args.world_size == dist.get_world_size() == 2
    told: dict[str, list[str]] = {}
    checkpoint = out / "model.training" / "checkpoint-1"
    for name in DDP_FILES:
        for damage, change in DAMAGES.items():
            with damaged(checkpoint / name, change):
                told[f"ddp {name} {damage}"] = from_all(told_by_command(command))
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    save_in_shards(out / "sharded", checkpoint)
    told["fsdp, whole"] = from_all(told_by_check(out / "sharded", args))
    for name in FSDP_FILES:
        for damage, change in DAMAGES.items():
            with damaged(out / "sharded" / name, change):
                told[f"fsdp {name} {damage}"] = from_all(told_by_check(out / "sharded", args))
    if dist.get_rank() == 0:
        (out / "told.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
