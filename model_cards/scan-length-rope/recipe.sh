#!/usr/bin/env bash
# Commands to actions, the length split of SCAN: trained on at most 22 actions, tested on 24 to 48, with rotary and with
# sinusoidal positions. `scan/length_split/` has the lines `IN: jump twice OUT: I_JUMP I_JUMP`. Actions are written as one
# short word each (I_TURN_LEFT becomes LTURN), so that each can be a token.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, re
for split in ("train", "test"):
    with gzip.open(f"scan/length_split/tasks_{split}_length.txt.gz", "rt", encoding="utf-8") as lines:
        pairs = [re.fullmatch("IN: (.*) OUT: (.*)", line.strip()).groups() for line in lines]
    with open(f"length-{split}.csv", "w", encoding="utf-8", newline="") as table:
        rows = [(source, re.sub("I_TURN_(.)\\w+", "\\1TURN", target).replace("I_", "")) for source, target in pairs]
        csv.writer(table).writerows([("source", "target"), *rows])
PYTHON
for positions in rope sinusoidal; do
  roformer-lite train seq2seq \
    --train_file length-train.csv --validation_fraction 0.05 --test_file length-test.csv --seeds 0 1 2 \
    --vocab_size 300 --size tiny --num_train_epochs 5 --per_device_train_batch_size 64 --optim muon --learning_rate 4e-3 \
    --config position_embedding_type=$positions \
    --output_dir scan-length-$positions --overwrite_output_dir \
    --license bsd-3-clause --language en --dataset_title "SCAN, length split"
done
