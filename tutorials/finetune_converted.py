"""Convert a pretrained BERT or RoFormer, and fine-tune it as a classifier.

python tutorials/finetune_converted.py bert-base reviews.csv classifier --source bert
"""

import argparse

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    pipeline,
)

import hf_roformer_lite  # noqa: F401  so that the Auto classes know its models
from hf_roformer_lite.conversion import convert_checkpoint

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("checkpoint", help="directory with config.json, weights and tokenizer")
parser.add_argument("data", help=".csv with the columns text and label")
parser.add_argument(
    "out", help="where the classifier goes; the converted encoder goes to OUT-encoder"
)
parser.add_argument("--source", default="bert", help="family of the checkpoint: bert, roformer …")
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--learning_rate", type=float, default=3e-5)
arguments = parser.parse_args()

# The converted model gives the same numbers; `hf_roformer_lite.conversion.verify` measures by how
# much they differ.
encoder = f"{arguments.out}-encoder"
convert_checkpoint(arguments.source, arguments.checkpoint, encoder)

rows = load_dataset("csv", data_files=arguments.data, split="train")
labels = sorted(set(rows["label"]))
tokenizer = AutoTokenizer.from_pretrained(encoder)
model = AutoModelForSequenceClassification.from_pretrained(
    encoder,
    num_labels=len(labels),
    id2label=dict(enumerate(labels)),
    label2id={label: number for number, label in enumerate(labels)},
)


def tokenize(batch: dict) -> dict:
    encoded = tokenizer(batch["text"], truncation=True, max_length=512)
    return {**encoded, "labels": [model.config.label2id[label] for label in batch["label"]]}


rows = rows.map(tokenize, batched=True, remove_columns=rows.column_names).train_test_split(
    0.1, seed=0
)
trainer = Trainer(
    model,
    TrainingArguments(
        arguments.out,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=16,
        learning_rate=arguments.learning_rate,
        warmup_steps=0.1,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=rows["train"],
    eval_dataset=rows["test"],
    # It pads the batches. The layers of the model then compute the real tokens only.
    processing_class=tokenizer,
    compute_metrics=lambda outcome: {
        "accuracy": np.mean(outcome.predictions.argmax(-1) == outcome.label_ids)
    },
)
trainer.train()
trainer.save_model(arguments.out)
print(f"accuracy {trainer.evaluate()['eval_accuracy']:.3f}")
print(pipeline("text-classification", arguments.out)("This is a sentence to classify."))
