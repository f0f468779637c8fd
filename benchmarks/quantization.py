"""Compares a saved classifier in float32 and in int8: size, accuracy and speed, measured in turns,
as a Markdown table.

python benchmarks/quantization.py --directory DIR --test_file test.csv
"""

import csv
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BatchEncoding,
    HfArgumentParser,
    PreTrainedModel,
    TorchAoConfig,
)

# The import registers our models.
import hf_roformer_lite  # noqa: F401

METHODS = {
    "int8 weights": Int8WeightOnlyConfig,
    "int8 weights, dynamic int8 activations": Int8DynamicActivationInt8WeightConfig,
}


@dataclass
class Arguments:
    directory: str = field(
        metadata={"help": "a classifier that `roformer-lite train classify` saved"}
    )
    test_file: Path = field(metadata={"help": "CSV with the columns text and label"})
    batch_size: int = 64
    rounds: int = 5


def quantized(directory: str, folder: Path) -> dict[str, PreTrainedModel]:
    """The original model and one model for each method, which are saved to `folder` under their
    keys and loaded from there."""
    models = {"float32": AutoModelForSequenceClassification.from_pretrained(directory)}
    for name, method in METHODS.items():
        config = TorchAoConfig(method())
        models[name] = AutoModelForSequenceClassification.from_pretrained(
            directory, quantization_config=config
        )
    for name, model in models.items():
        model.save_pretrained(folder / name)
    return {
        name: AutoModelForSequenceClassification.from_pretrained(folder / name).eval()
        for name in models
    }


@torch.inference_mode()
def run(model: PreTrainedModel, batches: list[BatchEncoding]) -> tuple[torch.Tensor, float]:
    """The probabilities, `(rows, labels)`, and the seconds."""
    start = time.perf_counter()
    logits = [model(**batch).logits for batch in batches]
    return torch.cat(logits).softmax(-1), time.perf_counter() - start


def main() -> None:
    (arguments,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    with arguments.test_file.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: len(row["text"]))
    tokenizer = AutoTokenizer.from_pretrained(arguments.directory)
    texts = [row["text"] for row in rows]
    size = arguments.batch_size
    batches = [
        tokenizer(texts[start : start + size], padding=True, truncation=True, return_tensors="pt")
        for start in range(0, len(texts), size)
    ]
    with tempfile.TemporaryDirectory() as folder:
        models = quantized(arguments.directory, Path(folder))
        sizes = {
            name: (Path(folder) / name / "model.safetensors").stat().st_size for name in models
        }
    label_ids = models["float32"].config.label2id
    labels = torch.tensor([label_ids[row["label"]] for row in rows])
    # This run is also a warm-up.
    probabilities = {name: run(model, batches)[0] for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(arguments.rounds):
        for name, model in models.items():
            seconds[name].append(run(model, batches)[1])
    print(
        "| weights | file | accuracy | other answers | largest change of a probability | rows/s |"
    )
    print("|---|---|---|---|---|---|")
    for name, found in probabilities.items():
        accuracy = (found.argmax(-1) == labels).double().mean().item()
        others = (found.argmax(-1) != probabilities["float32"].argmax(-1)).sum().item()
        change = (found - probabilities["float32"]).abs().max().item()
        speed = len(rows) / statistics.median(seconds[name])
        print(
            f"| {name} | {sizes[name] / 2**20:.2f} MiB | {accuracy:.2%} "
            f"| {others} of {len(rows):,} | {change:.3f} | {speed:,.0f} |"
        )
    print(
        f"\n{torch.get_num_threads()} threads, batches of {size} texts of similar length, "
        f"median of {arguments.rounds}"
    )


if __name__ == "__main__":
    main()
