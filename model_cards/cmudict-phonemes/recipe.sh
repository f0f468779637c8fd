#!/usr/bin/env bash
# How English words are said: phonemes without stress. `cmudict/cmudict.dict.gz` is CMUdict; its words of letters alone are
# divided by a hash, so that all pronunciations of a word are in one part (a twentieth for validation, a tenth for
# testing). Letters and phonemes are written apart, so that each is a token. The last lines count a word as wrong when
# what is predicted is none of its pronunciations.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, hashlib, json, re
said = {}
with gzip.open("cmudict/cmudict.dict.gz", "rt", encoding="utf-8") as lines:
    for line in lines:
        word, *phonemes = line.partition("#")[0].split()
        word = re.sub(r"\(\d+\)$", "", word)
        if word.isascii() and word.isalpha():
            said.setdefault(word, []).append(" ".join(re.sub(r"\d", "", phoneme) for phoneme in phonemes))
parts = {"train": [], "validation": [], "test": []}
for word in sorted(said):
    number = hashlib.sha256(word.encode()).digest()[0]
    parts["test" if number < 26 else "validation" if number < 39 else "train"].append(word)
for part, words in parts.items():
    with open(f"cmudict-{part}.csv", "w", encoding="utf-8", newline="") as table:
        pairs = [(" ".join(word), p) for word in words for p in dict.fromkeys(said[word][: None if part == "train" else 1])]
        csv.writer(table).writerows([("source", "target"), *pairs])
    if part == "test":
        json.dump({" ".join(word): said[word] for word in words}, open("cmudict-test.json", "w"))
        open("cmudict-test.txt", "w").write("".join(" ".join(word) + "\n" for word in words))
print({part: len(words) for part, words in parts.items()})
PYTHON
roformer-lite train seq2seq \
  --train_file cmudict-train.csv --validation_file cmudict-validation.csv --test_file cmudict-test.csv \
  --vocab_size 400 --size mini --config num_hidden_layers=2 hidden_dropout=0.2 scale_embeddings=true initializer_range=0.02 \
  --num_train_epochs 20 --max_tokens_per_batch 4096 --optim muon --learning_rate 4e-3 --warmup_steps 300 --ema_decay 0.998 \
  --training_arguments adam_beta2=0.98 label_smoothing_factor=0.1 \
  --output_dir cmudict-phonemes --overwrite_output_dir \
  --license bsd-2-clause --language en --dataset_title "CMUdict, words of letters, without stress"
roformer-lite predict cmudict-phonemes --input_file cmudict-test.txt --output_file said.txt --beams 4
python - <<'PYTHON'
import json
known = json.load(open("cmudict-test.json"))
words, said = open("cmudict-test.txt").read().splitlines(), open("said.txt").read().splitlines()
wrong = sum(answer.strip() not in known[word] for word, answer in zip(words, said, strict=True))
print(f"{wrong / len(words):.2%} of {len(words)} words wrong")
PYTHON
