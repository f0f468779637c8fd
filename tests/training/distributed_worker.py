"""What the tests of distributed training run, alone or in two processes: `torchrun distributed_worker.py OUT`.

Every training here sees the same batches of four rows: one process takes all four, two data-parallel ones two each,
two tensor-parallel ones the same four each.
"""

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from accelerate import Accelerator
from conftest import build, stack_config
from datasets import IterableDataset
from torch.utils.data import DataLoader
from toy_training import HEADS, make_model, make_rows
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig
from transformers.distributed.checkpoint import load_optimizer_distributed, save_optimizer_distributed

import hf_roformer_lite as rl
from roformer_lite.train.muon import make_muon

KINDS = ("mlm", "seq2seq")
STEPS = 20


def batch_of(kind: str, rows: slice = slice(None)) -> dict[str, torch.Tensor]:
    chosen = make_rows(kind)[rows]
    return {key: torch.stack([row[key] for row in chosen]) for key in chosen[0]}


def with_trainer(
    kind: str,
    model: PreTrainedModel,
    out: Path,
    rows=None,
    resume: bool = False,
    trainer_class: type[Trainer] = Trainer,
    **options,
) -> list[float]:
    """Train with the stock Trainer, or with another; returns the loss of every step."""
    arguments = TrainingArguments(
        out,
        **{
            "per_device_train_batch_size": 4 // (dist.get_world_size() if dist.is_initialized() else 1),
            "max_steps": STEPS,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "disable_tqdm": True,
            **options,
        },
    )
    rows = make_rows(kind) if rows is None else rows
    trainer = trainer_class(model, arguments, train_dataset=rows, eval_dataset=make_rows(kind))
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(out)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def streamed_rows(kind: str) -> IterableDataset:
    """The rows again and again, as a stream of unknown length."""
    return IterableDataset.from_generator(lambda: (row for _ in range(STEPS) for row in make_rows(kind)))


def is_data_parallel(model: PreTrainedModel) -> bool:
    """Whether the processes share the rows of a model in shards."""
    config = getattr(model.config, "distributed_config", None)
    return config is not None and config.fsdp_size > 1


def with_loop(kind: str, model: PreTrainedModel, steps: range = range(STEPS), optimizer=None) -> list[float]:
    """Train by hand on one batch, whole or shared by the processes of a data-parallel model."""
    is_shared = is_data_parallel(model)
    size = dist.get_world_size() if is_shared else 1
    rank = dist.get_rank() if is_shared else 0
    items = (batch_of(kind)["labels"] != -100).sum()
    batch = batch_of(kind, slice(rank * 8 // size, (rank + 1) * 8 // size))
    optimizer = optimizer or adamw(model)
    losses = []
    for _ in steps:
        loss = model.train()(**batch, num_items_in_batch=items).loss * size
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.detach() / size
        if is_shared:
            dist.all_reduce(loss)
        losses.append(float(loss))
    return losses


def adamw(model: PreTrainedModel) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def muon(model: PreTrainedModel) -> torch.optim.Optimizer:
    numbers = {"learning_rate": 1e-3, "weight_decay": 0.01, "adam_beta1": 0.9, "adam_beta2": 0.999}
    arguments = SimpleNamespace(**numbers, adam_epsilon=1e-8, optim_args=None)
    return make_muon(model, arguments, [name for name, weight in model.named_parameters() if weight.ndim == 2])


def with_accelerate(kind: str, make_optimizer: Callable[[PreTrainedModel], torch.optim.Optimizer]) -> list[float]:
    """Train by accelerate's own loop: prepare, backward, gather."""
    accelerator = Accelerator(cpu=True)
    model = make_model(kind).train()
    loader = DataLoader(make_rows(kind), batch_size=4 // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, make_optimizer(model), loader)
    losses: list[float] = []
    while len(losses) < STEPS:
        for batch in loader:
            items = accelerator.gather((batch["labels"] != -100).sum()[None]).sum()
            loss = model(**batch, num_items_in_batch=items).loss
            accelerator.backward(loss * accelerator.num_processes)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(accelerator.gather(loss.detach()[None]).sum()))
    return losses


def worst_gradient(kind: str, sharded: PreTrainedModel, whole: PreTrainedModel) -> float:
    """Largest difference of any gradient between a model in shards and the same in one piece."""
    is_shared = is_data_parallel(sharded)
    half = slice(dist.get_rank() * 4, dist.get_rank() * 4 + 4)
    items = (batch_of(kind)["labels"] != -100).sum()
    loss = sharded.train()(**batch_of(kind, half if is_shared else slice(None)), num_items_in_batch=items).loss
    (loss * (2 if is_shared else 1)).backward()
    whole.train()(**batch_of(kind), num_items_in_batch=items).loss.backward()
    wanted = {name: parameter.grad for name, parameter in whole.named_parameters()}
    worst = 0.0
    for name, parameter in sharded.named_parameters():
        gradient = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
        worst = max(worst, float((gradient - wanted[name]).abs().max()))
    sharded.zero_grad()
    whole.zero_grad()
    return worst


def generated(model: PreTrainedModel) -> list[list[int]]:
    """Token ids of a greedy and a beam search over rows of different lengths."""
    source = batch_of("seq2seq", slice(2, 5))
    inputs = {"input_ids": source["input_ids"], "attention_mask": source["attention_mask"]}
    if not model.config.is_encoder_decoder:
        inputs = {name: value.flip(1) for name, value in inputs.items()}  # padding to the left
    options = {"max_new_tokens": 6, "min_new_tokens": 6}
    return [row for beams in (1, 3) for row in model.eval().generate(**inputs, num_beams=beams, **options).tolist()]


MODELS = {
    **{kind: lambda kind=kind: make_model(kind) for kind in KINDS},
    "shared": lambda: build(
        rl.RoFormerLiteForConditionalGeneration,
        rl.RoFormerLiteSeq2SeqConfig(encoder=stack_config(), decoder=stack_config(), share_embeddings=True),
    ),
    "grouped": lambda: build(rl.RoFormerLiteForCausalLM, stack_config("grouped-gated-rms", tie_word_embeddings=False)),
}
SHARDED = {"fsdp": ("mlm", "shared"), "tp": ("mlm", "seq2seq", "grouped")}  # Trainer runs the plain pair with FSDP2


def load(name: str, out: Path, **sizes) -> PreTrainedModel:
    """A model of `MODELS` in shards."""
    config = DistributedConfig(**sizes)
    return type(MODELS[name]()).from_pretrained(out / f"start-{name}", distributed_config=config)


def sharded(out: Path, results: dict, way: str) -> None:
    """FSDP2 or tensor parallelism, as `from_pretrained(distributed_config=…)` does them."""
    sizes = {f"{way}_size": 2}
    for name in SHARDED[way]:
        kind = name if name in HEADS else "causal" if name == "grouped" else "seq2seq"
        model = load(name, out, **sizes)
        if model.can_generate():
            results[f"{way}/{name}/generated"] = generated(model)  # before any other use: FSDP2 gathers by itself
        results[f"{way}/{name}/gradient"] = worst_gradient(kind, model, MODELS[name]())
        results[f"{way}/{name}/losses"] = with_loop(kind, model)
        model.save_pretrained(out / f"{way}-{name}")


def resumed_fsdp(out: Path, results: dict) -> None:
    """Ten steps, a checkpoint in shards, and ten more by a model and an optimiser that were made anew."""
    model = load("mlm", out, fsdp_size=2)
    optimizer = adamw(model)
    losses = with_loop("mlm", model, range(10), optimizer)
    model.save_pretrained(out / "fsdp-checkpoint", distributed_checkpoint=True)
    save_optimizer_distributed(model, optimizer, str(out / "fsdp-checkpoint" / "optimizer"))
    config = DistributedConfig(fsdp_size=2)
    model = rl.RoFormerLiteForMaskedLM.from_pretrained(out / "fsdp-checkpoint", distributed_config=config)
    optimizer = adamw(model)
    load_optimizer_distributed(model, optimizer, str(out / "fsdp-checkpoint" / "optimizer"))
    results["fsdp/mlm/resumed"] = losses + with_loop("mlm", model, range(10), optimizer)


def main(out: Path) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    results: dict = {}
    if dist.get_rank() == 0:
        for name, make in MODELS.items():
            make().save_pretrained(out / f"start-{name}")
    dist.barrier()
    results["accelerate/mlm"] = with_accelerate("mlm", adamw)
    results["muon/mlm"] = with_accelerate("mlm", muon)
    for kind in KINDS:
        results[f"ddp/{kind}"] = with_trainer(kind, make_model(kind), out / f"ddp-{kind}")
        results[f"trainer-fsdp/{kind}"] = with_trainer(
            kind, load(kind, out, fsdp_size=2), out / f"trainer-fsdp-{kind}"
        )
    results["stream/mlm"] = with_trainer("mlm", make_model("mlm"), out / "stream", streamed_rows("mlm"))
    saving = {"save_strategy": "steps", "save_steps": 10}
    with_trainer("mlm", make_model("mlm"), out / "resumed", **saving)
    results["resumed/mlm"] = with_trainer(
        "mlm", make_model("mlm"), out / "resumed", resume=str(out / "resumed" / "checkpoint-10"), **saving
    )
    for way in SHARDED:
        sharded(out, results, way)
    resumed_fsdp(out, results)
    if dist.get_rank() == 0:
        (out / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
