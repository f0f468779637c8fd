"""Train a causal language model on one text file, and let it continue a prompt.

python tutorials/train_from_scratch.py book.txt model --prompt "It was"
"""

import argparse

from datasets import load_dataset
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from hf_roformer_lite import RoFormerLiteConfig, RoFormerLiteForCausalLM, RoFormerLiteTokenizer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("text", help="UTF-8 text; each line is a document")
parser.add_argument("out", help="where the model goes")
parser.add_argument("--size", default="mini", help="tiny, mini, small or base")
parser.add_argument("--vocab_size", type=int, default=8192)
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--prompt", default="The ")
arguments = parser.parse_args()

lines = load_dataset("text", data_files=arguments.text, split="train").filter(
    lambda row: row["text"].strip()
)
tokenizer = RoFormerLiteTokenizer.train(lines["text"], vocab_size=arguments.vocab_size)


def tokenize(rows: dict) -> dict:
    """Each line becomes `[CLS] line [SEP]`; from [SEP] the model learns where to stop."""
    return {"input_ids": tokenizer(rows["text"], truncation=True, max_length=512)["input_ids"]}


lines = lines.map(tokenize, batched=True, remove_columns="text").train_test_split(0.02, seed=0)
model = RoFormerLiteForCausalLM(
    RoFormerLiteConfig.from_preset(arguments.size, vocab_size=len(tokenizer))
)
print(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")

trainer = Trainer(
    model,
    TrainingArguments(
        arguments.out,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=lines["train"],
    eval_dataset=lines["test"],
    # All lines of a batch go into one row, each with its own positions: no padding, and no
    # attention between lines.
    data_collator=DataCollatorWithFlattening(return_flash_attn_kwargs=True),
    processing_class=tokenizer,
)
trainer.train()
trainer.save_model(arguments.out)

prompt = tokenizer(arguments.prompt, return_tensors="pt")
# The prompt must not end with [SEP], which would end the text.
prompt = {name: tensor[:, :-1] for name, tensor in prompt.items()}
text = model.to("cpu").eval().generate(**prompt, max_new_tokens=60, do_sample=True, top_p=0.9)
print(tokenizer.decode(text[0], skip_special_tokens=True))
