#!/usr/bin/env bash
# Commands to actions, the simple split of SCAN: `scan/simple_split/` has the lines `IN: jump twice OUT: I_JUMP I_JUMP`.
# Actions are written as one short word each (I_TURN_LEFT becomes LTURN), so that each can be a token.
set -euo pipefail
python - <<'PYTHON'
import csv, gzip, re
for split in ("train", "test"):
    with gzip.open(f"scan/simple_split/tasks_{split}_simple.txt.gz", "rt", encoding="utf-8") as lines:
        pairs = [re.fullmatch("IN: (.*) OUT: (.*)", line.strip()).groups() for line in lines]
    with open(f"scan-{split}.csv", "w", encoding="utf-8", newline="") as table:
        rows = [(source, re.sub("I_TURN_(.)\\w+", "\\1TURN", target).replace("I_", "")) for source, target in pairs]
        csv.writer(table).writerows([("source", "target"), *rows])
PYTHON
roformer-lite train seq2seq \
  --train_file scan-train.csv --validation_fraction 0.05 --test_file scan-test.csv --seeds 0 1 2 \
  --vocab_size 300 --size tiny --num_train_epochs 10 --per_device_train_batch_size 64 --optim muon --learning_rate 4e-3 \
  --output_dir scan-simple --overwrite_output_dir \
  --license bsd-3-clause --language en --dataset_title "SCAN, simple split"
