"""Train a masked language model on whole documents, thousands of tokens long.

    python tutorials/long_text.py books.txt model --longest 8192

Two things make that cheap. In three of four layers a token sees `--window` neighbours to each side:
the cost of these layers grows with the length and not with its square, and every fourth layer sees
everything. And documents of very different lengths can share a batch, because padding is removed
before the first layer.
"""

import argparse
import time
from pathlib import Path

import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForMaskedLM, RoFormerLiteTokenizer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("text", help="UTF-8 text; a blank line ends a document")
parser.add_argument("out", help="where the model goes")
parser.add_argument("--size", default="mini", help="tiny, mini, small or base")
parser.add_argument("--vocab_size", type=int, default=8192)
parser.add_argument("--window", type=int, default=128)
parser.add_argument(
    "--longest", type=int, default=4096, help="truncate documents to this many tokens"
)
parser.add_argument("--epochs", type=float, default=3)
arguments = parser.parse_args()

documents = [
    part.strip() for part in Path(arguments.text).read_text("utf-8").split("\n\n") if part.strip()
]
tokenizer = RoFormerLiteTokenizer.train(documents, vocab_size=arguments.vocab_size)
rows = [
    tokenizer(document, truncation=True, max_length=arguments.longest) for document in documents
]
print(
    f"{len(rows)} documents of {min(len(r.input_ids) for r in rows)} to "
    f"{max(len(r.input_ids) for r in rows)} tokens"
)

# Rotary positions need no table of a fixed size: `max_position_embeddings` does not limit the
# length.
config = RoFormerLiteConfig.from_preset(
    arguments.size, vocab_size=len(tokenizer), sliding_window=arguments.window
)
config.layer_types = [
    "full_attention"
    if (layer + 1) % 4 == 0 or layer + 1 == config.num_hidden_layers
    else "sliding_attention"
    for layer in range(config.num_hidden_layers)
]
model = RoFormerLiteForMaskedLM(config)
trainer = Trainer(
    model,
    TrainingArguments(
        arguments.out,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=[dict(row) for row in rows],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model(arguments.out)

# Seven short rows padded to the length of a long one: only their real tokens take time.
model = model.to("cpu").eval()
longest, shortest = (
    max(rows, key=lambda row: len(row.input_ids)),
    min(rows, key=lambda row: len(row.input_ids)),
)
for name, batch in (
    ("long alone", [longest]),
    ("long, and seven short", [longest, *[shortest] * 7]),
):
    inputs = tokenizer.pad([dict(row) for row in batch], return_tensors="pt")
    with torch.inference_mode():
        model(**inputs)
        start = time.perf_counter()
        model(**inputs)
    print(f"{name}: {tuple(inputs['input_ids'].shape)} in {time.perf_counter() - start:.3f} s")
