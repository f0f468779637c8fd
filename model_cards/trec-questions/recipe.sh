#!/usr/bin/env bash
# Six kinds of questions: TREC with its official test part. `sent-conv-torch/` is a copy of harvardnlp/sent-conv-torch on
# GitHub, whose `data/TREC.train.all` and `data/TREC.test.all` have a number and a question in each line.
set -euo pipefail
python - <<'PYTHON'
import csv
names = ("description", "entity", "abbreviation", "human", "number", "location")
for split in ("train", "test"):
    with open(f"sent-conv-torch/data/TREC.{split}.all", encoding="latin-1") as lines:
        rows = [line.rstrip("\n").split(" ", 1) for line in lines]
    with open(f"trec-{split}.csv", "w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("text", "label"), *((text, names[int(number)]) for number, text in rows)])
PYTHON
roformer-lite train classify --train_file trec-train.csv --test_file trec-test.csv --seeds 0 1 2 \
  --output_dir trec-questions --overwrite_output_dir \
  --license other --language en --dataset_title "TREC, six kinds of questions"
