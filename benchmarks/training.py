"""Trains with the stock Trainer and its collators, and measures tokens per second and peak memory.
Each model has a separate process."""

import gzip
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .processes import peak_of_process, python
from .workload import IGNORED, Workload

NUM_STEPS = 200
NUM_WARM_UP_STEPS = 5
RUN = """
import json, sys
from benchmarks.training import measure_training
print(json.dumps(measure_training(*json.loads(sys.argv[1]))))
"""
PEERS = {"trainer-mlm": "bert", "trainer-seq2seq": "marian"}


def trainings(
    task: str, work: Workload, files: list[Path], steps: int = NUM_STEPS
) -> dict[str, dict[str, float]]:
    """The results of `measure_training` for our model and for its contender."""
    names = ["ours", PEERS[task]]
    return {
        name: json.loads(
            python(
                RUN, json.dumps([task, name, asdict(work), [str(file) for file in files], steps])
            )
        )
        for name in names
    }


def read(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text, plain or .gz, each up to its first tab."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        for line in file:
            text = line.rstrip("\n").partition("\t")[0]
            if text.strip():
                yield text


def measure_training(
    task: str, name: str, fields: dict[str, Any], files: list[str], steps: int
) -> dict[str, float]:
    """Train the model `name` in this process. `files` are texts for trainer-mlm, and a source and a
    target for trainer-seq2seq."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    work = Workload(**fields)
    torch.manual_seed(work.seed)
    texts = [list(read(Path(file))) for file in files]
    model, collator, examples = _make_training(task, name, work, texts)
    num_tokens = 0

    def count_and_collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        nonlocal num_tokens
        for row in rows:
            row.pop("token_type_ids", None)
        batch = collator(rows)
        num_tokens += int(batch["attention_mask"].sum())
        if task == "trainer-seq2seq":
            num_tokens += int((batch["labels"] != IGNORED).sum())
        return batch

    class Clock(TrainerCallback):
        """The tokens and seconds after the warm-up."""

        tokens = 0
        seconds = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == NUM_WARM_UP_STEPS:
                self.tokens -= num_tokens
                self.seconds -= time.perf_counter()
            elif state.global_step == steps:
                self.tokens += num_tokens
                self.seconds += time.perf_counter()

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=work.batch,
            learning_rate=5e-4,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            bf16=work.dtype == "bfloat16",
            seed=work.seed,
            use_cpu=work.device == "cpu",
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=examples,
            data_collator=count_and_collate,
            callbacks=[clock],
        )
        loss = trainer.train().training_loss
    return {
        "tokens_per_second": clock.tokens / clock.seconds,
        "peak_mib": peak_of_process(work.device) / 2**20,
        "loss": loss,
    }


def _make_training(
    task: str, name: str, work: Workload, texts: list[list[str]]
) -> tuple[Any, Any, list[dict]]:
    """The model, its collator, and the tokenized examples."""
    from transformers import DataCollatorForLanguageModeling, DataCollatorForSeq2Seq

    from hf_roformer_lite import RoFormerLiteTokenizer

    from .encoder_decoders import ENCODER_DECODERS
    from .stacks import ENCODERS

    lines = [line for text in texts for line in text]
    tokenizer = RoFormerLiteTokenizer.train(lines, vocab_size=work.vocab_size, algorithm="bpe")
    options = {"truncation": True, "max_length": work.seq}
    if task == "trainer-mlm":
        examples = [dict(tokenizer(line, **options)) for line in lines]
        return ENCODERS[name](work, "mlm"), DataCollatorForLanguageModeling(tokenizer), examples
    sources, targets = texts
    examples = [
        dict(tokenizer(source, text_target=target, **options))
        for source, target in zip(sources, targets, strict=True)
    ]
    model = ENCODER_DECODERS[name](work)
    return model, DataCollatorForSeq2Seq(tokenizer, model=model), examples
