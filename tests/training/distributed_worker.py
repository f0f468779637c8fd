"""The trainings that the tests of distributed training run in one process or in two.

`torchrun distributed_worker.py OUT` runs all of them in two processes. Every training sees the same
batches of four rows: a single process takes all four, two data-parallel processes take two each,
and two tensor-parallel processes take the same four.
"""

import datetime
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from conftest import build, stack_config
from tiny_models import tiny_model
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from toy_training import arguments, logged, make_batch, make_model, make_rows
from transformers import PreTrainedModel, Trainer
from transformers.distributed import DistributedConfig

import hf_roformer_lite as rl
from hf_roformer_lite import padding_free

KINDS = ("mlm", "seq2seq")
STEPS = 20


def with_trainer(kind: str, model: PreTrainedModel, out: Path) -> list[float]:
    """Train with the stock Trainer and return the loss of every step."""
    num_processes = dist.get_world_size() if dist.is_initialized() else 1
    made = arguments(out, per_device_train_batch_size=4 // num_processes, max_steps=STEPS)
    trainer = Trainer(model, made, train_dataset=make_rows(kind), eval_dataset=make_rows(kind))
    trainer.train()
    trainer.save_model(out)
    return logged(trainer)


def with_loop(kind: str, model: torch.nn.Module, is_labelled: bool = True) -> list[float]:
    """Train with a hand-written loop on one batch of all rows and return the loss of every step."""
    batch = make_batch(kind)
    items = (batch["labels"] != -100).sum()
    if not is_labelled:
        batch["labels"] = torch.full_like(batch["labels"], -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        loss = model.train()(**batch, num_items_in_batch=items).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def generated(model: PreTrainedModel) -> list[list[int]]:
    """Return the token ids that greedy and beam search give for rows of different lengths."""
    source = make_batch("seq2seq", slice(2, 5))
    inputs = {"input_ids": source["input_ids"], "attention_mask": source["attention_mask"]}
    if not model.config.is_encoder_decoder:
        # The rows of a decoder are padded to the left, so that new tokens follow the last real one.
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    options = {"max_new_tokens": 6, "min_new_tokens": 6}
    rows = []
    for beams in (1, 3):
        rows += model.eval().generate(**inputs, num_beams=beams, **options).tolist()
    return rows


MODELS = {
    **{kind: lambda kind=kind: make_model(kind) for kind in KINDS},
    "shared": lambda: build(
        rl.RoFormerLiteForConditionalGeneration,
        rl.RoFormerLiteSeq2SeqConfig(
            encoder=stack_config(), decoder=stack_config(), share_embeddings=True
        ),
    ),
    "grouped": lambda: build(
        rl.RoFormerLiteForCausalLM, stack_config("grouped-gated-rms", tie_word_embeddings=False)
    ),
}


# Models of transformers, and the kind of rows that each is trained on.
STOCK = {"bert": "mlm", "llama": "causal"}
DATA_PARALLEL = {
    transformers.BertForMaskedLM: "mlm",
    transformers.ModernBertForMaskedLM: "mlm",
    transformers.LlamaForCausalLM: "causal",
    transformers.BartForConditionalGeneration: "seq2seq",
    transformers.T5ForConditionalGeneration: "seq2seq",
}
# Models that FSDP2 divides into shards.
SHARDED = ("mlm", "shared")
# Models whose tensors are divided between the processes.
PARALLEL = ("mlm", "seq2seq", "grouped")


def kind_of(name: str) -> str:
    """Return the kind of rows that a model of `MODELS` is trained on."""
    return {"shared": "seq2seq", "grouped": "causal"}.get(name, name)


def in_shards(model: PreTrainedModel) -> PreTrainedModel:
    mesh = dist.init_device_mesh("cpu", (2,))
    for part in (*model.base_model.modules(), model):
        if type(part).__name__ in ("BertLayer", "LlamaDecoderLayer") or part is model:
            fully_shard(part, mesh=mesh)
    return model


def load(name: str, out: Path, **sizes) -> PreTrainedModel:
    """Load the saved start of a model of `MODELS`, divided between the processes."""
    config = DistributedConfig(**sizes)
    return type(MODELS[name]()).from_pretrained(out / f"start-{name}", distributed_config=config)


def main(out: Path) -> None:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    results: dict = {}
    if dist.get_rank() == 0:
        for name, make in MODELS.items():
            make().save_pretrained(out / f"start-{name}")
    dist.barrier()
    for kind in KINDS:
        results[f"ddp/{kind}"] = with_trainer(kind, make_model(kind), out / f"ddp-{kind}")
    for name in SHARDED:
        model = load(name, out, fsdp_size=2)
        results[f"fsdp/{name}"] = with_trainer(kind_of(name), model, out / f"fsdp-{name}")
    for name, kind in STOCK.items():
        for is_free in (False, True):
            model = padding_free(tiny_model(name).double(), is_free)
            results[f"fsdp/{name}/{is_free}"] = with_loop(kind, in_shards(model))
    for model_class, kind in DATA_PARALLEL.items():
        name = model_class.config_class.model_type
        for is_free in (False, True):
            model = padding_free(tiny_model(name, model_class).double(), is_free)
            # The second process has a batch without labels.
            results[f"ddp/{name}/{is_free}"] = with_loop(
                kind, DistributedDataParallel(model), is_labelled=dist.get_rank() == 0
            )
    for name in PARALLEL:
        model = load(name, out, tp_size=2)
        if model.can_generate():
            results[f"tp/{name}/generated"] = generated(model)
        results[f"tp/{name}/losses"] = with_loop(kind_of(name), model)
        model.save_pretrained(out / f"tp-{name}")
    if dist.get_rank() == 0:
        (out / "results.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
