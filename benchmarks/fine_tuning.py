"""`python -m benchmarks fine-tuning --checkpoint DIR --files TRAIN VALIDATION TEST`: fine-tune a
BERT here and in transformers.

`roformer-lite train classify` is compared with `BertForSequenceClassification` and the stock
Trainer: the same rows, epochs and batches, each training in a separate process. With several
learning rates, each contender is trained at all of them with the first seed, and with the other
seeds at the rate with the best validation accuracy.
"""

import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import python
from .report import Row, report

RUN_HERE = """
import json, sys
from benchmarks.fine_tuning import run_here
run_here(*json.loads(sys.argv[1]))
"""


@dataclass
class Options:
    checkpoint: str = field(metadata={"help": "a pretrained BERT"})
    files: list[str] = field(
        metadata={"help": "of training, validation and test: .csv with the columns text and label"}
    )
    learning_rates: list[float] = field(
        default_factory=lambda: [1e-4],
        metadata={"help": "each contender has the best of them on the validation file"},
    )
    seeds: list[int] = field(default_factory=lambda: [42])
    out: Path | None = field(default=None, metadata={"help": "directory of the result, as JSON"})

    def __post_init__(self) -> None:
        if len(self.files) != 3:
            raise SystemExit(
                f"files must be three, not {len(self.files)}: training, validation, test."
            )


# The settings of both contenders.
SETTINGS = {
    "num_train_epochs": 4,
    "warmup_steps": 0.1,
    "weight_decay": 0.01,
    "per_device_train_batch_size": 32,
}
MAX_LENGTH = 64  # Texts are truncated to this many tokens.
COLUMNS = ["contender", "learning rate", "validation", "test", "CPU seconds"]


def train_by_command(
    checkpoint: str, files: list[str], options: dict[str, Any], out: Path
) -> dict[str, float]:
    from roformer_lite.cli import main

    named_files = dict(zip(("train_file", "validation_file", "test_file"), files, strict=True))
    given = {
        **named_files,
        **options,
        "max_length": MAX_LENGTH,
        "model_name_or_path": checkpoint,
        "output_dir": out / "model",
        "use_cpu": "true",
    }
    words = ["train", "classify"]
    for name, value in given.items():
        words += [f"--{name}", str(value)]
    if main([*words, "--training_arguments", "eval_strategy=no", "save_strategy=no"]):
        raise SystemExit("the training failed")
    metrics = json.loads((out / "model" / "results.json").read_text("utf-8"))["metrics"]
    return {split: metrics[split]["accuracy"] for split in ("validation", "test")}


def train_stock(
    checkpoint: str, files: list[str], options: dict[str, Any], out: Path
) -> dict[str, float]:
    """Fine-tune as in the examples of transformers."""
    from datasets import load_dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    set_seed(options["seed"])
    splits = dict(zip(("train", "validation", "test"), files, strict=True))
    # Texts such as "NA" are not missing values.
    rows = load_dataset(
        "csv", data_files=splits, cache_dir=str(out / "data"), keep_default_na=False
    )
    numbers = {label: number for number, label in enumerate(sorted(set(rows["train"]["label"])))}
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def encode(batch: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(batch["text"], truncation=True, max_length=MAX_LENGTH)
        return {**encoded, "labels": [numbers[label] for label in batch["label"]]}

    encoded = rows.map(encode, batched=True, remove_columns=["text", "label"])
    args = TrainingArguments(
        output_dir=str(out / "model"),
        per_device_eval_batch_size=64,
        logging_steps=50,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(
        AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=len(numbers)),
        args,
        train_dataset=encoded["train"],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    found = {}
    for split in ("validation", "test"):
        prediction = trainer.predict(encoded[split])
        found[split] = float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())
    trainer.save_model()
    return found


CONTENDERS = {"roformer-lite": train_by_command, "stock": train_stock}


def run_here(name: str, checkpoint: str, files: list[str], options: dict[str, Any]) -> None:
    """Train in this process, and print accuracies and seconds as the last line."""
    with tempfile.TemporaryDirectory() as out:
        accuracies = CONTENDERS[name](checkpoint, files, options, Path(out))
    print(json.dumps({**accuracies, "cpu_seconds": time.process_time()}))


def run(name: str, rate: float, seed: int, options: Options) -> dict[str, float]:
    """The results of `run_here` in a fresh process."""
    settings = {**SETTINGS, "learning_rate": rate, "seed": seed}
    given = json.dumps([name, options.checkpoint, options.files, settings])
    return json.loads(python(RUN_HERE, given))


def runs_at_best_rate(name: str, options: Options) -> Row:
    """The results with all seeds at the learning rate with the best validation accuracy."""
    first, *others = options.seeds
    by_rate = {rate: run(name, rate, first, options) for rate in options.learning_rates}
    best = max(by_rate, key=lambda rate: by_rate[rate]["validation"])
    found = [by_rate[best], *(run(name, best, seed, options) for seed in others)]
    columns = {column: [one[column] for one in found] for column in found[0]}
    return {"contender": name, "learning_rate": best, **columns}


def cells_of(row: Row) -> list[str]:
    """The means over all seeds."""
    means = [statistics.mean(row[column]) for column in ("validation", "test", "cpu_seconds")]
    return [row["contender"], f"{row['learning_rate']:g}", *(f"{mean:.4g}" for mean in means)]


def main(options: Options) -> None:
    rows = (runs_at_best_rate(name, options) for name in CONTENDERS)
    report("fine-tuning", options, COLUMNS, rows, cells_of)
