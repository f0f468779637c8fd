"""`python -m benchmarks fine-tuning CHECKPOINT TRAIN VALIDATION TEST`: fine-tune a BERT here and in
transformers.

`roformer-lite train classify` is compared with `BertForSequenceClassification` and the stock
Trainer: the same rows, epochs and batches, each training in a separate process. With several
learning rates, each contender is trained at all of them with the first seed, and with the other
seeds at the rate with the best validation accuracy. The files are .csv with the columns text and
label.
"""

import json
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import HfArgumentParser

from .processes import peak_of_process, python
from .report import show

RUN_HERE = """
import json, sys
from benchmarks.fine_tuning import run_here
run_here(*json.loads(sys.argv[1]))
"""


@dataclass
class Setting:
    """The settings of both contenders."""

    num_train_epochs: float = 4.0
    warmup_steps: float = 0.1
    weight_decay: float = 0.01
    per_device_train_batch_size: int = 32
    max_length: int = field(default=64, metadata={"help": "truncate texts to this many tokens"})


@dataclass
class Choice:
    """The learning rates and seeds with which each contender is trained."""

    learning_rates: list[float] = field(default_factory=lambda: [1e-4])
    seeds: list[int] = field(default_factory=lambda: [42])


def train_ours(
    checkpoint: str, files: list[str], options: dict[str, Any], out: Path
) -> dict[str, float]:
    from roformer_lite.cli import main

    named_files = dict(zip(("train_file", "validation_file", "test_file"), files, strict=True))
    given = {
        **named_files,
        **options,
        "model_name_or_path": checkpoint,
        "output_dir": out / "model",
        "use_cpu": "true",
        "disable_tqdm": "true",
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

    max_length = options.pop("max_length")
    set_seed(options["seed"])
    splits = dict(zip(("train", "validation", "test"), files, strict=True))
    # Texts such as "NA" are not missing values.
    rows = load_dataset(
        "csv", data_files=splits, cache_dir=str(out / "data"), keep_default_na=False
    )
    numbers = {label: number for number, label in enumerate(sorted(set(rows["train"]["label"])))}
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def encode(batch: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(batch["text"], truncation=True, max_length=max_length)
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


CONTENDERS = {"ours": train_ours, "stock": train_stock}


def run_here(name: str, checkpoint: str, files: list[str], options: dict[str, Any]) -> None:
    """Train in this process, and print accuracies, seconds and peak memory as the last line."""
    with tempfile.TemporaryDirectory() as out:
        started = time.monotonic()
        accuracies = CONTENDERS[name](checkpoint, files, options, Path(out))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = {
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "seconds": time.monotonic() - started,
    }
    print(json.dumps({**accuracies, **seconds, "peak_mib": peak_of_process("cpu") / 2**20}))


def run(name: str, checkpoint: str, files: list[str], options: dict[str, Any]) -> dict[str, float]:
    """The results of `run_here` in a fresh process."""
    return json.loads(python(RUN_HERE, json.dumps([name, checkpoint, files, options])))


def runs_at_best_rate(
    name: str, checkpoint: str, files: list[str], options: dict[str, Any], choice: Choice
) -> dict[str, float]:
    """The means over all seeds at the learning rate with the best validation accuracy, and the
    standard deviation of the test accuracy."""
    first, *others = choice.seeds
    by_rate = {}
    for rate in choice.learning_rates:
        given = {**options, "learning_rate": rate, "seed": first}
        by_rate[rate] = run(name, checkpoint, files, given)
    best = max(by_rate, key=lambda rate: by_rate[rate]["validation"])
    found = [by_rate[best]]
    for seed in others:
        given = {**options, "learning_rate": best, "seed": seed}
        found.append(run(name, checkpoint, files, given))
    row = {"learning_rate": best}
    for column in found[0]:
        values = [one[column] for one in found]
        row[column] = statistics.mean(values)
        if column == "test" and len(values) > 1:
            row["test_deviation"] = statistics.stdev(values)
    return row


def main(arguments: list[str]) -> None:
    parser = HfArgumentParser(
        [Setting, Choice], prog="python -m benchmarks fine-tuning", allow_abbrev=False
    )
    for name in ("checkpoint", "train", "validation", "test"):
        parser.add_argument(name)
    setting, choice, given = parser.parse_args_into_dataclasses(arguments)
    options = vars(setting)
    files = [given.train, given.validation, given.test]
    rows = {}
    for name in CONTENDERS:
        rows[name] = runs_at_best_rate(name, given.checkpoint, files, options, choice)
    show({"task": "fine-tuning", "contenders": rows}, Console())
