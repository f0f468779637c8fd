"""Whole trainings by the stock Trainer and its collators: tokens a second and peak memory, a process each."""

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .processes import peak_of_process, python
from .text import read
from .workload import Workload

STEPS, WARM_UP_STEPS = 200, 5
RUN = """
import json, sys
from benchmarks.training import measure_training
print(json.dumps(measure_training(*json.loads(sys.argv[1]))))
"""
PEERS = {"trainer-mlm": "bert", "trainer-seq2seq": "marian"}


def trainings(task: str, work: Workload, files: list[Path], steps: int = STEPS) -> dict[str, dict[str, float]]:
    """What `measure_training` says of ours and of its peer."""
    names = ["ours", PEERS[task]]
    return {
        name: json.loads(python(RUN, json.dumps([task, name, asdict(work), [str(file) for file in files], steps])))
        for name in names
    }


def measure_training(task: str, name: str, fields: dict[str, Any], files: list[str], steps: int) -> dict[str, float]:
    """Train here. `files` is text for trainer-mlm, a source and a target for trainer-seq2seq."""
    import torch
    from transformers import (
        DataCollatorForLanguageModeling,
        DataCollatorForSeq2Seq,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from hf_roformer_lite import RoFormerLiteTokenizer

    from .pairs import PAIRS
    from .stacks import ENCODERS

    work = Workload(**fields)
    torch.manual_seed(work.seed)
    texts = [list(read([Path(file)])) for file in files]
    tokenizer = RoFormerLiteTokenizer.train(
        [text for lines in texts for text in lines], vocab_size=work.vocab_size, algorithm="bpe"
    )
    options = {"truncation": True, "max_length": work.seq}
    if task == "trainer-mlm":
        examples = [dict(tokenizer(text, **options)) for lines in texts for text in lines]
        model, collator = ENCODERS[name](work, "mlm"), DataCollatorForLanguageModeling(tokenizer)
    else:
        sources, targets = texts
        examples = [
            dict(tokenizer(source, text_target=target, **options))
            for source, target in zip(sources, targets, strict=True)
        ]
        model = PAIRS[name](work)
        collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    seen = {"tokens": 0, "warm": 0, "start": 0.0}

    def counting(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = collator([{key: row[key] for key in row if key != "token_type_ids"} for row in rows])
        seen["tokens"] += int(batch["attention_mask"].sum())
        if task == "trainer-seq2seq":
            seen["tokens"] += int((batch["labels"] != -100).sum())
        return batch

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == WARM_UP_STEPS:
                seen["warm"], seen["start"] = seen["tokens"], time.perf_counter()
            elif state.global_step == steps:
                seen["seconds"] = time.perf_counter() - seen["start"]

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=work.batch, learning_rate=5e-4, report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True, bf16=work.dtype == "bfloat16",
            seed=work.seed, use_cpu=work.device == "cpu",
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=examples, data_collator=counting, callbacks=[Clock()])
        loss = trainer.train().training_loss
    speed = (seen["tokens"] - seen["warm"]) / seen["seconds"]
    return {"tokens_per_second": speed, "peak_mib": peak_of_process(work.device) / 2**20, "loss": loss}
