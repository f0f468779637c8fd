"""Train an encoder–decoder on sentence pairs, measure BLEU, and translate.

python tutorials/translate.py pairs.tsv translator --test "a house"
"""

import argparse

import numpy as np
from datasets import load_dataset
from sacrebleu import corpus_bleu
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from hf_roformer_lite import (
    RoFormerLiteForConditionalGeneration,
    RoFormerLiteSeq2SeqConfig,
    RoFormerLiteTokenizer,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("pairs", help=".tsv with the columns source and target")
parser.add_argument("out", help="where the model goes")
parser.add_argument("--size", default="mini", help="tiny, mini, small or base")
parser.add_argument("--vocab_size", type=int, default=8192)
parser.add_argument("--epochs", type=float, default=10)
parser.add_argument("--test", nargs="*", default=[], help="sentences to translate at the end")
arguments = parser.parse_args()

set_seed(0)
pairs = load_dataset("csv", data_files=arguments.pairs, delimiter="\t", quoting=3, split="train")
pairs = pairs.train_test_split(min(1000, len(pairs) // 10), seed=0)
sentences = [*pairs["train"]["source"], *pairs["train"]["target"]]
# Source and target share one vocabulary.
tokenizer = RoFormerLiteTokenizer.train(sentences, vocab_size=arguments.vocab_size)


def tokenize(batch: dict) -> dict:
    return dict(
        tokenizer(batch["source"], text_target=batch["target"], truncation=True, max_length=256)
    )


def bleu(outcome) -> dict[str, float]:
    texts = [
        tokenizer.batch_decode(
            np.where(ids < 0, tokenizer.pad_token_id, ids), skip_special_tokens=True
        )
        for ids in (outcome.predictions, outcome.label_ids)
    ]
    return {"bleu": corpus_bleu(texts[0], [texts[1]]).score}


data = pairs.map(tokenize, batched=True, remove_columns=pairs["train"].column_names)
model = RoFormerLiteForConditionalGeneration(
    RoFormerLiteSeq2SeqConfig.from_preset(arguments.size, vocab_size=len(tokenizer))
)
trainer = Seq2SeqTrainer(
    model,
    Seq2SeqTrainingArguments(
        arguments.out,
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=64,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        label_smoothing_factor=0.1,
        predict_with_generate=True,
        generation_max_length=128,
        generation_num_beams=4,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    processing_class=tokenizer,
    compute_metrics=bleu,
)
trainer.train()
trainer.save_model(arguments.out)
print(f"BLEU {trainer.evaluate()['eval_bleu']:.1f} on {len(data['test'])} unseen pairs")

for sentence in arguments.test:
    inputs = tokenizer(sentence, return_tensors="pt")
    outputs = model.to("cpu").generate(**inputs, num_beams=4, max_new_tokens=128)
    print(f"{sentence} → {tokenizer.decode(outputs[0], skip_special_tokens=True)}")
